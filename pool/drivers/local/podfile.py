"""The files of the local pods: paths, atomic reads and writes, locks.

anchor               created with the directory; while it exists, an empty directory has no pods
pods/<name>.lock     locked (flock) by the process that changes the pod; created first, removed last,
                     never replaced; these files are the list of pods
pods/<name>.json     the record, replaced as a whole; its version grows with each write
pods/<name>.secret   the companion: the worker's key, readable only by its owner
run/<name>.<uid>/    the files of one process: proc (its identity), status, exit, log
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pool.core.errors import InvalidInput, Transient
from pool.core.names import DNS_LABEL, DNS_LABEL_RULE

T = TypeVar("T")

# If a file did not change during this time, its next change will change its mtime, however coarse
# the clock of the file system is.
_SETTLED_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the driver stores about a pod. What its process writes is in other files."""

    name: str
    uid: str
    version: int
    boot_id: str
    created_s: float
    image: str
    grace_s: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    # Set by delete: when the grace period ends (`processref.boot_s`), and whether SIGTERM was sent.
    ends_by_s: float | None = None
    told: bool = False
    # Of a program of the profile: where the driver probes it, unless it writes its own status.
    port: int = 0
    readiness_path: str = ""

    def changed(self, **changes: Any) -> Record:
        """Return the next version."""
        return replace(self, version=self.version + 1, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The files of one process of a pod."""

    run: Path

    @property
    def proc(self) -> Path:
        return self.run / "proc"

    @property
    def status(self) -> Path:
        return self.run / "status"

    @property
    def exit(self) -> Path:
        return self.run / "exit"

    @property
    def log(self) -> Path:
        return self.run / "log"


class Memo:
    """Parsed files, read again only if they have changed.

    A new memo reads everything. A memo created `after` another one starts with the entries that the
    other one used; entries that are not used any more are dropped.
    """

    def __init__(self, now: float, *, after: Memo | None = None) -> None:
        self._now = now
        self._before = after.entries if after else {}
        self.entries: dict[Path, tuple[tuple[int, int, int], float, bool, Any]] = {}

    def load(self, path: Path, parse: Callable[[str], T]) -> T | None:
        """Return the parsed text of the file, or None if it does not exist."""
        try:
            stat = path.stat()
            sign = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            old = self.entries.get(path) or self._before.get(path)
            if old is None or old[0] != sign or not old[2]:
                since = old[1] if old and old[0] == sign else self._now
                old = (sign, since, self._now - since > _SETTLED_S, parse(path.read_text()))
        except FileNotFoundError:
            return None
        self.entries[path] = old
        value: T = old[3]
        return value


class PodLock:
    """The lock of one pod. Once lent to a starting process, it is held until that process releases
    it too.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lent = False

    def lend(self) -> int:
        """Return the descriptor to pass to a child. Our copy is then closed without unlocking."""
        self._lent = True
        return self._fd

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A process forked meanwhile may have a copy of the descriptor, so unlock explicitly.
        if not self._lent:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)


class PodDirectory:
    """The directory of all pods."""

    def __init__(self, root: Path) -> None:
        # Absolute, because pods and other processes have other working directories.
        self._root = root.absolute()
        self._pods = self._root / "pods"
        self._run = self._root / "run"
        for directory in (self._root, self._pods, self._run):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._root / "anchor").touch()

    def anchored(self) -> bool:
        return (self._root / "anchor").exists()

    def names(self) -> list[str]:
        """Return the names of all pods. Pods that are just being created or removed may be included."""
        return self._with_suffix(".lock")

    def companions(self) -> list[str]:
        return self._with_suffix(".secret")

    def paths(self, record: Record) -> Paths:
        return Paths(run=self._run / f"{record.name}.{record.uid}")

    def secret(self, name: str) -> Path:
        return self._file(name, ".secret")

    def read(self, name: str, memo: Memo) -> Record | None:
        """Return a pod's record, or None if it does not exist. Raise if the directory itself cannot
        be read.
        """
        record = memo.load(self._file(name, ".json"), _parse_record)
        if record is None:
            self._pods.stat()
        return record

    def write(self, record: Record) -> Record:
        replace_file(self._file(record.name, ".json"), json.dumps(asdict(record)))
        return record

    def try_lock(self, name: str) -> PodLock | None:
        """Return the pod's lock, or None if another process has it."""
        path = self._file(name, ".lock")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(fd).st_ino:
                return PodLock(fd)
        except (BlockingIOError, FileNotFoundError):
            pass  # locked, or removed between open and lock
        os.close(fd)
        return None

    def remove(self, record: Record) -> bool:
        """Remove the files of a pod, the record last. Return False if files remain. Needs its lock."""
        run = self.paths(record).run
        shutil.rmtree(run, ignore_errors=True)
        if run.exists():
            return False
        self.secret(record.name).unlink(missing_ok=True)
        self._file(record.name, ".json").unlink(missing_ok=True)
        self.remove_lock(record.name)
        return True

    def remove_lock(self, name: str) -> None:
        """Remove the lock file of a name that has no pod. Needs that lock."""
        self._file(name, ".lock").unlink(missing_ok=True)

    def _with_suffix(self, suffix: str) -> list[str]:
        with os.scandir(self._pods) as entries:
            names = [entry.name.removesuffix(suffix) for entry in entries if entry.name.endswith(suffix)]
        return sorted(name for name in names if DNS_LABEL.fullmatch(name))

    def _file(self, name: str, suffix: str) -> Path:
        if not DNS_LABEL.fullmatch(name):
            raise InvalidInput("name", f"must be {DNS_LABEL_RULE}; got {name!r}")
        return self._pods / f"{name}{suffix}"


def replace_file(path: Path, text: str) -> None:
    """Write a file atomically, readable only by its owner."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    draft.replace(path)


def _parse_record(text: str) -> Record:
    try:
        return Record(**json.loads(text))
    except (ValueError, TypeError) as exc:
        raise Transient(f"cannot parse the record of a pod: {exc}") from exc
