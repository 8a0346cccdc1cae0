"""Start, stop and find processes. They survive a supervisor that is killed.

Each has its own session (Ctrl-C and SIGHUP of the terminal do not reach it), a log file as its
output, and no other descriptor of the supervisor, so that the next supervisor can take it over.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pool.core.clock import Clock
from pool.drivers.local.processref import ProcessRef, output_of, parent_of, session_leaders
from pool.ops.up.account import Account, privileges

_LOG_LIMIT_BYTES = 10 * 1024 * 1024
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended. The exit code of an adopted process is unknown, because it was not our child."""

    code: int | None

    @property
    def clean(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        if self.code is None:
            return "ended (exit code unknown, because an earlier run started it)"
        if self.code < 0:
            return f"was killed by {_signal_name(-self.code)}"
        return f"ended with exit code {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A running process, ours or adopted."""

    ref: ProcessRef
    child: subprocess.Popen[bytes] | None = None

    @classmethod
    def launch(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        folder: Path | None = None,
        account: Account | None = None,
    ) -> Process:
        """Start a process in its own session, with its output appended to `log`. Raises OSError if
        it cannot be executed.

        It runs in `folder` (default: the current directory) and under `account` (default: our own).
        """
        _rotate(log)
        with log.open("ab") as output:
            # S603: our own command line, without a shell.
            child = subprocess.Popen(  # noqa: S603
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                start_new_session=True,
                **privileges(account),
            )
        # A child that has already ended is a zombie until we wait for it: it has no ref, and needs none.
        ref = ProcessRef.of(child.pid) or ProcessRef(pid=child.pid, started=-1)
        return cls(ref=ref, child=child)

    def exit(self) -> Exit | None:
        """Return how the process ended; None while it runs."""
        if self.child is not None:
            code = self.child.poll()
            return None if code is None else Exit(code=code)
        return None if self.ref.alive() else Exit(code=None)

    def send(self, sig: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        self.ref.send(sig)


def stop_all(asked: Mapping[ProcessRef, signal.Signals], *, grace_s: float, clock: Clock) -> None:
    """Stop processes that are not our children: send each its signal, wait up to `grace_s`, then send
    SIGKILL."""
    for signals in (asked, dict.fromkeys(asked, signal.SIGKILL)):
        for ref, sig in signals.items():
            ref.send(sig)
        deadline = clock.monotonic() + grace_s
        while any(ref.alive() for ref in asked) and clock.monotonic() < deadline:
            clock.wait(threading.Event(), _POLL_S)


def writers_to(logs: Path) -> dict[ProcessRef, str]:
    """Return all running components with their names: session leaders whose output is one of our logs.

    This also finds components whose supervisor was killed before it could record them. Postgres
    gives each of its processes a session; those are left out, because their parent ends them.
    """
    outputs = {ref: output_of(ref) for ref in session_leaders() if ref.pid != os.getpid()}
    found = {
        ref: log.stem for ref, log in outputs.items() if log and log.parent == logs and log.suffix == ".log"
    }
    names = {ref.pid: name for ref, name in found.items()}
    return {ref: name for ref, name in found.items() if names.get(parent_of(ref)) != name}


def _rotate(log: Path) -> None:
    """Rename a large log to `.log.1`, so that restarts do not fill the disk."""
    if log.exists() and log.stat().st_size > _LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
