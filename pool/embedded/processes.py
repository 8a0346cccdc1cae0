"""Processes that we start, stop and find again. They belong to nobody: a supervisor that is killed takes none with it.

Each has a session of its own (a terminal's Ctrl-C and hang-up do not reach it), a log file as its output and no other
descriptor of ours, so that it can outlive us and be adopted by the next one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pool.clock import Clock
from pool.processes import ProcessRef, output_of, session_leaders

_LOG_LIMIT_BYTES = 10 * 1024 * 1024
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended. The code of one that was adopted is not known: it was not our child."""

    code: int | None

    @property
    def clean(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        if self.code is None:
            return "ended (adopted, so its exit code is not known)"
        if self.code < 0:
            return f"was killed by {_signal_name(-self.code)}"
        return f"ended with exit code {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A running process, ours or adopted."""

    ref: ProcessRef
    child: subprocess.Popen[bytes] | None = None

    @classmethod
    def launch(cls, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> Process:
        """Start it in a session of its own, its output appended to `log`. Raises OSError if it can not be executed."""
        _rotate(log)
        with log.open("ab") as output:
            # S603: what runs is our own command line, no shell in between.
            child = subprocess.Popen(  # noqa: S603
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        # A child that has already ended is a zombie until we wait for it: no ref can be had, and none is needed.
        ref = ProcessRef.of(child.pid) or ProcessRef(pid=child.pid, started=-1)
        return cls(ref=ref, child=child)

    def exit(self) -> Exit | None:
        """How it ended; None while it runs."""
        if self.child is not None:
            code = self.child.poll()
            return None if code is None else Exit(code=code)
        return None if self.ref.alive() else Exit(code=None)

    def send(self, sig: signal.Signals) -> None:
        """Send it a signal; one that has ended gets none."""
        self.ref.send(sig)


def stop_all(refs: Sequence[ProcessRef], *, grace_s: float, clock: Clock) -> None:
    """End processes that are not our children: SIGTERM, a bounded wait, then SIGKILL. Returns when none is left."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        for ref in refs:
            ref.send(sig)
        deadline = clock.monotonic() + grace_s
        while any(ref.alive() for ref in refs) and clock.monotonic() < deadline:
            clock.wait(threading.Event(), _POLL_S)


def writers_to(logs: Path) -> dict[ProcessRef, str]:
    """Components that run, whoever started them, each with its name: session leaders whose output is a log of ours.

    This finds what a supervisor started and was killed before it could record it.
    """
    found = {ref: output_of(ref) for ref in session_leaders() if ref.pid != os.getpid()}
    return {
        ref: log.stem for ref, log in found.items() if log and log.parent == logs and log.suffix == ".log"
    }


def _rotate(log: Path) -> None:
    """Keep one old log, so that a component that runs for months does not fill the disk."""
    if log.exists() and log.stat().st_size > _LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
