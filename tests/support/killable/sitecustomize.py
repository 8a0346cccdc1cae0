"""Lets a test kill a thread of one Python process. Put this folder on PYTHONPATH, write the name of
a thread to the file that THREAD_KILL_FILE names, and send the signal. An unexpected exception is
then raised in that thread, wherever it is. A number instead of a name selects the long-lived thread
with that number, modulo their count.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path

SIGNAL = signal.SIGRTMIN + 5
# Prefixes of the names of long-lived threads; all others end with their work.
LONG_LIVED = (
    "lane",
    "timers",
    "outbox",
    "observer",
    "fallback",
    "pod cache",
    "preflight",
    "liveness",
    "metrics",
    "following",
    "pulse",
)


class Killed(BaseException):
    """No code catches it by name."""


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
