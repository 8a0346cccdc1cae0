"""The local driver: implements `pool.drivers.port` with processes, files and locks of one machine.

Any process may act on any pod; none owns one. Every change happens under the pod's lock and
increments the version of its record. A deletion is a mark in the record. Each later read or list of
the pod continues the deletion.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from pool.core.clock import Clock
from pool.core.errors import Transient
from pool.core.ids import RandomIds
from pool.drivers.local import process, starting
from pool.drivers.local.ending import Ender
from pool.drivers.local.podfile import Memo, PodDirectory, PodLock, Record, replace_file
from pool.drivers.local.probing import Prober
from pool.drivers.local.processref import boot_id, boot_s
from pool.drivers.local.viewing import Viewer
from pool.drivers.port import (
    LABEL_PROFILE,
    LABEL_ROLE,
    LABEL_WORKER,
    NOTE_REVISION,
    Gone,
    Listing,
    Pod,
    PodPhase,
    PodSpec,
    Stamp,
    StampResult,
    Word,
)
from pool.drivers.self_report import read_self_report

log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 0.1
_LOCK_AGAIN_S = 0.005
_UNCLAIMED = Stamp(org=None, claim_id=None, epoch=0, busy=False)


class LocalDriver:
    """Pods as processes, with their files under `root`."""

    def __init__(self, root: Path, *, clock: Clock, call_timeout_s: float) -> None:
        self._clock = clock
        self._call_timeout_s = call_timeout_s
        self._ids = RandomIds()
        self._children = process.Children()
        self._never = threading.Event()
        with _translated():
            self._pod_dir = PodDirectory(root)
            self._prober = Prober(self._pod_dir, clock)
            self._viewer = Viewer(self._pod_dir, self._prober)
        self._ender = Ender(self._pod_dir, self._viewer)
        self._observed = (Listing(pods=(), anchored=False), -math.inf)

    def create(self, spec: PodSpec) -> Pod:
        self._children.reap()
        with _translated():
            while (pod := self._made(spec)) is None:
                pass
        return pod

    def delete(self, name: str, uid: str, *, grace_s: int | None = None) -> None:
        self._children.reap()
        with _translated():
            if not self._is_there(name, uid):
                return
            with self._locked(name):
                record = self._pod_dir.read(name, self._new_memo())
                if record is None:
                    self._pod_dir.remove_lock(name)
                elif uid in ("", record.uid):
                    marked = self._ender.mark(record, record.grace_s if grace_s is None else grace_s)
                    self._ender.carry_on(marked, self._new_memo())

    def read(self, name: str) -> Pod | None:
        self._children.reap()
        with _translated():
            return self._look(name, self._new_memo())

    # Files of this machine: to read them is cheap.
    recent = read

    def list(self) -> Listing:
        return self._observe(self._new_memo())

    def cached(self) -> Listing:
        listing, at = self._observed
        return replace(listing, age_s=self._clock.monotonic() - at)

    def watch(self, stop: threading.Event) -> Iterator[Pod | Gone]:
        told: dict[str, Pod] = {}
        memo = self._new_memo()
        while not stop.is_set():
            began = self._clock.monotonic()
            memo = Memo(began, after=memo)
            try:
                seen = {pod.name: pod for pod in self._observe(memo).pods}
            except Transient as exc:
                # No event is yielded and the age of `cached` grows until the directory can be read
                # again.
                log.warning("pods_unreadable", error=str(exc))
            else:
                yield from _changes(told, seen)
                told = seen
            # Large directories are scanned less often, so that scanning never takes all the time.
            self._clock.wait(stop, max(_LOOK_EVERY_S, 4 * (self._clock.monotonic() - began)))

    def stamp(self, pod: Pod, stamp: Stamp) -> StampResult:
        with _translated():
            if not self._is_there(pod.name, pod.uid):
                return StampResult.GONE
            with self._locked(pod.name):
                record = self._pod_dir.read(pod.name, self._new_memo())
                if record is None or record.uid != pod.uid:
                    return StampResult.GONE
                if record.ends_by_s is not None:
                    return StampResult.TERMINATING
                if str(record.version) != pod.version:
                    return StampResult.CONFLICT
                labels = _merged(record.labels, stamp.labels())
                annotations = _merged(record.annotations, stamp.annotations())
                if (labels, annotations) != (record.labels, record.annotations):
                    self._pod_dir.write(record.changed(labels=labels, annotations=annotations))
                return StampResult.WRITTEN

    def word(self, pod: Pod) -> Word:
        now = self.read(pod.name)
        if now is None or now.uid != pod.uid or now.phase is PodPhase.ENDED:
            return Word.UNUSED
        if not now.endpoint:
            return Word.SILENT
        return read_self_report(now.endpoint, timeout_s=self._call_timeout_s, clock=self._clock)

    def companions(self) -> tuple[str, ...]:
        with _translated():
            return tuple(self._pod_dir.companions())

    def delete_companions(self, name: str) -> None:
        with _translated():
            if not self._pod_dir.secret(name).exists():
                return
            with self._locked(name):
                if self._pod_dir.read(name, self._new_memo()) is None:
                    self._pod_dir.secret(name).unlink(missing_ok=True)
                    self._pod_dir.remove_lock(name)

    def close(self) -> None:
        self._prober.close()
        self._children.reap()

    def _observe(self, memo: Memo) -> Listing:
        began = self._clock.monotonic()
        self._children.reap()
        with _translated():
            # Check the anchor last: a directory that was removed meanwhile must not count as empty.
            pods = tuple(pod for name in self._pod_dir.names() if (pod := self._look(name, memo)))
            listing = Listing(pods=pods, anchored=self._pod_dir.anchored())
        self._observed = (listing, began)
        return listing

    def _look(self, name: str, memo: Memo) -> Pod | None:
        record = self._pod_dir.read(name, memo)
        if record is not None and self._ender.is_due(record, memo):
            lock = self._pod_dir.try_lock(name)
            if lock is not None:
                with lock:
                    record = self._pod_dir.read(name, self._new_memo())
                    if record is None:
                        self._pod_dir.remove_lock(name)
                    else:
                        record = self._ender.carry_on(record, self._new_memo())
        return None if record is None else self._viewer.pod(record, memo)

    def _made(self, spec: PodSpec) -> Pod | None:
        """Return the pod; None if a pod of that name, and its lock, were just removed."""
        with self._locked(spec.name) as lock:
            record = self._pod_dir.read(spec.name, self._new_memo())
            if record is None:
                record = self._pod_dir.write(self._new_record(spec))
            elif (record := self._ender.carry_on(record, self._new_memo())) is None:
                return None
            if record.ends_by_s is None:
                self._complete(record, spec, lock)
            return self._viewer.pod(record, self._new_memo())

    def _complete(self, record: Record, spec: PodSpec, lock: PodLock) -> None:
        """Create what the pod lacks: its companion, and its process if none was ever started."""
        secret = self._pod_dir.secret(record.name)
        if spec.secret and not secret.exists():
            replace_file(secret, spec.secret)
        if self._viewer.was_started(record):
            return
        paths = self._pod_dir.paths(record)
        paths.run.mkdir(mode=0o700, exist_ok=True)
        pid = process.launch(
            starting.command(spec),
            env=starting.environment(spec, record, self._pod_dir),
            lock_fd=lock.lend(),
            proc_file=paths.proc,
            log_file=paths.log,
        )
        self._children.add(pid, paths.exit)

    def _new_record(self, spec: PodSpec) -> Record:
        labels = {LABEL_WORKER: spec.name, LABEL_PROFILE: spec.profile, LABEL_ROLE: str(spec.role)}
        return Record(
            name=spec.name,
            uid=self._ids.token(),
            version=1,
            boot_id=boot_id(),
            created_s=boot_s(),
            image=spec.image,
            grace_s=spec.grace_s,
            labels=_merged(labels, _UNCLAIMED.labels()),
            annotations=_merged({NOTE_REVISION: spec.revision}, _UNCLAIMED.annotations()),
            port=starting.free_port(),
            readiness_path=spec.readiness_path if starting.is_probed(spec) else "",
        )

    def _is_there(self, name: str, uid: str) -> bool:
        """Return whether there is such a pod. Avoids creating a lock file for a missing pod."""
        record = self._pod_dir.read(name, self._new_memo())
        return record is not None and uid in ("", record.uid)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[PodLock]:
        give_up = self._clock.monotonic() + self._call_timeout_s
        while (lock := self._pod_dir.try_lock(name)) is None:
            if self._clock.monotonic() >= give_up:
                raise Transient(f"pod {name} is locked by another process")
            self._clock.wait(self._never, _LOCK_AGAIN_S)
        with lock:
            yield lock

    def _new_memo(self) -> Memo:
        return Memo(self._clock.monotonic())


def _changes(told: dict[str, Pod], seen: dict[str, Pod]) -> Iterator[Pod | Gone]:
    for name, pod in told.items():
        if name not in seen or seen[name].uid != pod.uid:
            yield Gone(name=name, uid=pod.uid)
    for name, pod in seen.items():
        if name not in told or replace(told[name], age_s=pod.age_s) != pod:
            yield pod


def _merged(now: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """Return `now` with `wanted` applied; a value of None removes the key."""
    return {k: v for k, v in {**now, **wanted}.items() if v is not None}


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise Transient(f"cannot access the local pods: {exc}") from exc
