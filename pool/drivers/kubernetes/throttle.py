"""Not more calls than agreed: a bucket of tokens, filled at a steady rate, shared by all threads of a process."""

from __future__ import annotations

import threading

from pool.core.clock import Clock
from pool.core.errors import Transient


class Throttle:
    """`burst` calls at once, `qps` a second over time. Who comes first goes first."""

    def __init__(self, *, qps: float, burst: int, clock: Clock) -> None:
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        # When the bucket would be full again; each call moves it by one token's worth.
        self._full_at = clock.monotonic()

    def take(self, *, give_up_at: float, stop: threading.Event) -> None:
        """Wait for a token; raises `Transient` at once if none would come in time."""
        with self._lock:
            now = self._clock.monotonic()
            full_at = max(self._full_at, now) + 1 / self._qps
            wait_s = full_at - now - self._burst / self._qps
            if now + wait_s > give_up_at:
                raise Transient("too many calls to the API server are waiting (qps)")
            self._full_at = full_at
        if wait_s > 0:
            self._clock.wait(stop, wait_s)
