"""Lets a test kill a thread of one Python process: put this folder on PYTHONPATH, write the name of a thread to the file that THREAD_KILL_FILE names, and
send the signal. An exception that nothing expects is then raised in that thread, wherever it is. A number in place of a name takes the long-lived thread
with that number, counted round and round."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path

SIGNAL = signal.SIGRTMIN + 5
# By how their names begin; all others come and go with what they do.
LONG_LIVED = (
    "lane",
    "timers",
    "outbox",
    "observer",
    "fallback",
    "pod cache",
    "liveness",
    "metrics",
    "following",
    "pulse",
)


class Killed(BaseException):
    """Nothing catches it by name."""


def _kill(*_: object) -> None:
    asked = Path(os.environ["THREAD_KILL_FILE"]).read_text()
    threads = sorted(
        (t for t in threading.enumerate() if t.name.startswith(LONG_LIVED)), key=lambda t: t.name
    )
    if asked.isdigit():
        chosen = threads[int(asked) % len(threads)] if threads else None
    else:
        chosen = next((t for t in threads if t.name == asked), None)
    if chosen is not None and chosen.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(chosen.ident), ctypes.py_object(Killed))


if "THREAD_KILL_FILE" in os.environ:
    signal.signal(SIGNAL, _kill)
