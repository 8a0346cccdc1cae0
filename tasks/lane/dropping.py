"""Count dropped messages by reason, and log them in at most one line per second, so that a flood
does not fill the log.
"""

from __future__ import annotations

import threading
from collections import Counter

import structlog

from pool.core.clock import Clock
from pool.metrics import Metrics
from tasks.lane.messages import DropReason

log = structlog.get_logger(__name__)

EVERY_S = 1.0
_SHOWN = 200


class Dropped:
    """Any thread may add. Messages not logged yet are logged with the next one, or by `flush`."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._counter = metrics.messages_refused
        self._clock = clock
        self._turn = threading.Lock()
        self._unlogged: Counter[str] = Counter()
        self._cause = ""
        self._logged_at = -EVERY_S
        for why in DropReason:
            self._counter.labels(str(why))

    def add(self, why: DropReason, count: int = 1, cause: str = "") -> None:
        if not count:
            return
        self._counter.labels(str(why)).inc(count)
        with self._turn:
            self._unlogged[str(why)] += count
            self._cause = cause[:_SHOWN] or self._cause
        self.flush()

    def flush(self) -> None:
        """Log what has gathered, unless a line was logged less than a second ago."""
        with self._turn:
            now = self._clock.monotonic()
            if not self._unlogged or now - self._logged_at < EVERY_S:
                return
            counts, cause = dict(self._unlogged), self._cause
            self._unlogged.clear()
            self._cause, self._logged_at = "", now
        log.warning("messages_dropped", **counts, **({"cause": cause} if cause else {}))
