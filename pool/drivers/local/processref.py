"""A process known by its pid and its start, so that a pid which the kernel has given out again is never taken for it.

Linux only: `/proc` is the referee. A zombie counts as dead, since nothing of it runs any more.
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
# How many there are behind the command's name; a line with fewer was cut short.
_FIELDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRef:
    """One process of this boot: `started` is its start in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def in_stat(cls, line: str) -> ProcessRef | None:
        """The process that a line of the form of /proc/<pid>/stat speaks of."""
        stat = _parse(line)
        return None if stat is None else stat.ref

    @classmethod
    def of(cls, pid: int) -> ProcessRef | None:
        """The process that has this pid now; None if there is none, or only a zombie."""
        stat = _stat(pid)
        return None if stat is None or stat.dead else stat.ref

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessRef.of(self.pid) == self

    def exit_code(self) -> int | None:
        """How it ended, as long as its parent has not asked; 128 and more for a signal, as shells say it."""
        stat = _stat(self.pid)
        if stat is None or stat.ref != self or not stat.dead:
            return None
        code = os.waitstatus_to_exitcode(stat.exit_status)
        return code if code >= 0 else 128 - code

    def send(self, sig: signal.Signals) -> None:
        """Send it a signal; one that has ended gets none."""
        with contextlib.suppress(ProcessLookupError), _held(self.pid) as handle:
            # The handle is of whoever had the pid when it was opened; only now does comparing mean something.
            if self.alive():
                signal.pidfd_send_signal(handle, sig)


def boot_id() -> str:
    """Which boot of this machine it is; a `ProcessRef` of another boot means nothing."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def boot_s() -> float:
    """Seconds since the machine started: one clock for all its processes, which setting the time does not move."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def session_leaders() -> list[ProcessRef]:
    """Every process that leads a session of its own."""
    stats = (_stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [s.ref for s in stats if s is not None and not s.dead and s.session == s.ref.pid]


def session_members(leader: int) -> list[ProcessRef]:
    """Every living process of one session."""
    stats = (_stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [s.ref for s in stats if s is not None and not s.dead and s.session == leader]


def parent_of(ref: ProcessRef) -> int:
    """The pid of a process's parent; 0 if it has ended."""
    stat = _stat(ref.pid)
    return stat.parent if stat is not None and stat.ref == ref else 0


def output_of(ref: ProcessRef) -> Path | None:
    """The file behind a process's standard output; None if it may not be asked."""
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
    # The command's name is in brackets and may hold anything, brackets included; the numbers follow the last one.
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
