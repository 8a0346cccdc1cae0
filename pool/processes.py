"""A process known by its pid and its start, so that a pid which the kernel has given out again is never taken for it.

Linux only: `/proc` is the referee. A zombie counts as dead, since nothing of it runs any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRef:
    """One process of this boot: `started` is its start in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessRef | None:
        """The process that has this pid now; None if there is none, or only a zombie."""
        stat = _stat(pid)
        return None if stat is None or stat.dead else cls(pid=pid, started=stat.started)

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessRef.of(self.pid) == self

    def send(self, sig: signal.Signals) -> None:
        """Send it a signal; one that has ended gets none."""
        with contextlib.suppress(ProcessLookupError), _held(self.pid) as handle:
            # The handle is of whoever had the pid when it was opened; only now does comparing mean something.
            if self.alive():
                signal.pidfd_send_signal(handle, sig)


def boot_id() -> str:
    """Which boot of this machine it is; a `ProcessRef` of another boot means nothing."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def session_leaders() -> list[ProcessRef]:
    """Every process that leads a session of its own."""
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    stats = ((pid, _stat(pid)) for pid in pids)
    return [
        ProcessRef(pid=pid, started=stat.started)
        for pid, stat in stats
        if stat is not None and not stat.dead and stat.session == pid
    ]


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
    dead: bool
    session: int
    started: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name is in brackets and may hold anything, brackets included; the numbers follow the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(dead=fields[0] in "ZX", session=int(fields[3]), started=int(fields[19]))
