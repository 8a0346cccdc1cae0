"""Limit the rate of calls: a token bucket, shared by all threads of a process."""

from __future__ import annotations

import threading

from pool.core.clock import Clock
from pool.core.errors import Transient


class Throttle:
    """Allows `burst` calls at once and `qps` calls per second over time. First come, first served."""

    def __init__(self, *, qps: float, burst: int, clock: Clock) -> None:
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        # When the bucket would be full again. Each call moves it by one token.
        self._full_at = clock.monotonic()

    def take(self, *, give_up_at: float, stop: threading.Event) -> None:
        """Wait for a token. Raise `Transient` at once if none would be available in time."""
        with self._lock:
            now = self._clock.monotonic()
            full_at = max(self._full_at, now) + 1 / self._qps
            wait_s = full_at - now - self._burst / self._qps
            if now + wait_s > give_up_at:
                raise Transient("too many calls to the API server are waiting (qps)")
            self._full_at = full_at
        if wait_s > 0:
            self._clock.wait(stop, wait_s)
