"""A process identified by its pid and its start time, so that a reused pid is never mistaken for it.

Linux only: it reads `/proc`. A zombie counts as dead, because it does not run any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# The number of fields after the command name. A line with fewer is incomplete.
_FIELDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRef:
    """One process of this boot. `started` is its start in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def in_stat(cls, line: str) -> ProcessRef | None:
        """Return the process that a line in the format of /proc/<pid>/stat describes."""
        stat = _parse(line)
        return None if stat is None else stat.ref

    @classmethod
    def of(cls, pid: int) -> ProcessRef | None:
        """Return the process that has this pid now; None if there is none, or only a zombie."""
        stat = _stat(pid)
        return None if stat is None or stat.dead else stat.ref

    def alive(self) -> bool:
        """Return whether this process still runs."""
        return ProcessRef.of(self.pid) == self

    def exit_code(self) -> int | None:
        """Return its exit code while it is not reaped yet. A signal gives 128 plus its number, as
        in shells.
        """
        stat = _stat(self.pid)
        if stat is None or stat.ref != self or not stat.dead:
            return None
        code = os.waitstatus_to_exitcode(stat.exit_status)
        return code if code >= 0 else 128 - code

    def send(self, sig: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        with contextlib.suppress(ProcessLookupError), _held(self.pid) as handle:
            # The handle refers to the process that had the pid when it was opened, so compare after
            # opening.
            if self.alive():
                signal.pidfd_send_signal(handle, sig)


def boot_id() -> str:
    """Return the id of this boot of the machine. A `ProcessRef` of another boot is invalid."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def boot_s() -> float:
    """Return the seconds since boot: one clock for all processes, which setting the time does not move."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def session_leaders() -> list[ProcessRef]:
    """Return every process that leads a session."""
    stats = (_stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [s.ref for s in stats if s is not None and not s.dead and s.session == s.ref.pid]


def session_members(leader: int) -> list[ProcessRef]:
    """Return every living process of one session."""
    stats = (_stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [s.ref for s in stats if s is not None and not s.dead and s.session == leader]


def parent_of(ref: ProcessRef) -> int:
    """Return the pid of a process's parent; 0 if the process has ended."""
    stat = _stat(ref.pid)
    return stat.parent if stat is not None and stat.ref == ref else 0


def output_of(ref: ProcessRef) -> Path | None:
    """Return the file that a process has as standard output; None if it cannot be read."""
    try:
        return (_PROC / str(ref.pid) / "fd/1").readlink()
    except OSError:
        return None


@contextlib.contextmanager
def _held(pid: int) -> Iterator[int]:
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    ref: ProcessRef
    dead: bool
    parent: int
    session: int
    exit_status: int


def _stat(pid: int) -> _Stat | None:
    try:
        return _parse((_PROC / str(pid) / "stat").read_text(errors="replace"))
    except OSError:
        return None


def _parse(line: str) -> _Stat | None:
    # The command name is in parentheses and may contain anything, even parentheses. The numbers
    # follow the last one.
    head, bracket, tail = line.rpartition(")")
    fields = tail.split()
    if not bracket or len(fields) < _FIELDS:
        return None
    ref = ProcessRef(pid=int(head.split(" ", 1)[0]), started=int(fields[19]))
    return _Stat(
        ref=ref,
        dead=fields[0] in "ZXx",
        parent=int(fields[1]),
        session=int(fields[3]),
        exit_status=int(fields[49]),
    )
