"""The observed state of a pod, from its record, its process and the files of that process. Read-only."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from pool.drivers.local.podfile import Memo, Paths, PodDirectory, Record
from pool.drivers.local.probing import Prober
from pool.drivers.local.processref import ProcessRef, boot_id, boot_s
from pool.drivers.port import LABEL_ROLE, Pod, PodPhase, PodRole

_LOG_TAIL_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLife:
    """The state of a pod's process."""

    phase: PodPhase
    trouble: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    uid: str
    port: int
    ready: bool


class Viewer:
    """Observes the pods of one directory."""

    def __init__(self, pod_dir: PodDirectory, prober: Prober) -> None:
        self._pod_dir = pod_dir
        self._prober = prober
        self._boot_id = boot_id()
        self._node = os.uname().nodename

    def pod(self, record: Record, memo: Memo) -> Pod:
        life = self.life(record, memo)
        status = self._status(record, memo) if life.phase is PodPhase.RUNNING else None
        if status is None and life.phase is PodPhase.RUNNING and record.readiness_path:
            self._prober.begin(record)
        # A placeholder writes no status. It is ready while it runs.
        placeholder = record.labels.get(LABEL_ROLE) == PodRole.PLACEHOLDER
        return Pod(
            name=record.name,
            uid=record.uid,
            version=str(record.version),
            phase=life.phase,
            ready=life.phase is PodPhase.RUNNING and (placeholder or (status is not None and status.ready)),
            terminating=record.ends_by_s is not None,
            endpoint=f"http://127.0.0.1:{status.port}" if status else "",
            node=self._node,
            image=record.image,
            age_s=self._age_s(record),
            labels=record.labels,
            annotations=record.annotations,
            trouble=life.trouble,
            exit_code=life.exit_code,
        )

    def life(self, record: Record, memo: Memo) -> PodLife:
        identity = self.identity(record, memo)
        if identity is not None and identity.alive():
            return PodLife(phase=PodPhase.RUNNING)
        paths = self._pod_dir.paths(record)
        if record.boot_id != self._boot_id:
            return PodLife(phase=PodPhase.ENDED, trouble="the machine was restarted")
        if identity is None:
            if self._starting(record):
                return PodLife(phase=PodPhase.PENDING)
            return PodLife(phase=PodPhase.ENDED, trouble="never started: its creator died")
        code = _exit_code(paths, identity)
        ended = "ended, exit code unknown" if code is None else "ended"
        return PodLife(
            phase=PodPhase.ENDED,
            trouble=": ".join(filter(None, (ended, _last_log_line(paths)))),
            exit_code=code,
        )

    def identity(self, record: Record, memo: Memo) -> ProcessRef | None:
        """Return its process, dead or alive; None if none was started since boot."""
        if record.boot_id != self._boot_id:
            return None
        return memo.load(self._pod_dir.paths(record).proc, ProcessRef.in_stat)

    def was_started(self, record: Record) -> bool:
        """Return whether it ever had a process. A pod of an earlier boot counts as started."""
        return record.boot_id != self._boot_id or self.identity(record, Memo(0.0)) is not None

    def _starting(self, record: Record) -> bool:
        """Return whether a process without an identity is starting. Until it has one, its creator
        or the process itself has the lock.
        """
        lock = self._pod_dir.try_lock(record.name)
        if lock is None:
            return True
        with lock:
            if self._pod_dir.read(record.name, Memo(0.0)) is None:
                self._pod_dir.remove_lock(record.name)
                return True
            # Empty: the process was killed while it wrote the file.
            proc = self._pod_dir.paths(record).proc
            return proc.exists() and proc.stat().st_size > 0

    def _status(self, record: Record, memo: Memo) -> _Status | None:
        status = memo.load(self._pod_dir.paths(record).status, _parse_status)
        return status if status and status.uid == record.uid else None

    def _age_s(self, record: Record) -> float:
        since = record.created_s if record.boot_id == self._boot_id else 0.0
        return max(0.0, boot_s() - since)


def _exit_code(paths: Paths, identity: ProcessRef) -> int | None:
    # In this order, because the exit code is written to the file before the process is reaped.
    code = identity.exit_code()
    if code is not None:
        return code
    try:
        return int(paths.exit.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _last_log_line(paths: Paths) -> str:
    try:
        with paths.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return lines[-1] if lines else ""


def _parse_status(text: str) -> _Status | None:
    """Parse a status; return None if it is invalid, because programs may write it in several parts."""
    try:
        match json.loads(text):
            case {"uid": str(uid), "port": int(port), "ready": bool(ready)} if 0 < port < 65_536:
                return _Status(uid=uid, port=port, ready=ready)
    except ValueError:
        pass
    return None
