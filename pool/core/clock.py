"""Measure intervals on this host. Times come from the database (`pool.store.now`); clocks of two
hosts are never compared.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock with an interruptible wait."""

    def monotonic(self) -> float: ...

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Wait until `stop` is set (True) or the seconds have passed (False)."""


class SystemClock:
    """This host's monotonic clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        return stop.wait(seconds)


def wall_s() -> int:
    """Return this host's time, for cookies and to detect a wrong clock. Never decide about a worker by it."""
    return int(time.time())
