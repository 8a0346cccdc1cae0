"""Run a process whose threads a test can kill, one at a time."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

SIGNAL = signal.SIGRTMIN + 5
_FOLDER = Path(__file__).parent / "killable"
_FILE = "THREAD_KILL_FILE"


def killable(env: Mapping[str, str], file: Path) -> dict[str, str]:
    """Return an environment in which threads of a Python process can be killed."""
    path = os.pathsep.join(filter(None, [str(_FOLDER), env.get("PYTHONPATH", "")]))
    return {**env, "PYTHONPATH": path, _FILE: str(file)}


def kill_thread(pid: int, env: Mapping[str, str], which: str) -> None:
    """Kill the thread of this name, or the long-lived one with this number, in a process that was
    started with this environment. A process that has only just started is left alone, because the
    signal would end it.
    """
    Path(env[_FILE]).write_text(which)
    if _listens(pid):
        os.kill(pid, SIGNAL)


def _listens(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)
