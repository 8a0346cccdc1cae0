"""Intervals on this host. Instants come from the database (`pool.store.now`); no two hosts' clocks are ever compared."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock and a wait that can be interrupted."""

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
    """What this host thinks the time is: for cookies, and for telling that its clock is wrong. Never to decide about a worker."""
    return int(time.time())
