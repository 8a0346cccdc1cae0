"""Calls to execute later (Celery's `eta` and `countdown`), kept by the thread of the lane.

The broker keeps each of them too, or its caller sends it again, so nothing is lost with the
process.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from datetime import datetime

from celery.exceptions import TaskRevokedError

from pool.core.clock import Clock
from tasks.lane.exchange import Failure, Taken, TaskReply

MOST_S = 60
MOST_DELAYED_BYTES = 16_000
MOST_OF_AN_ORG = 100
MOST = 1000


class Delayed:
    """Delayed calls, ordered by their time on this host's monotonic clock."""

    def __init__(self, clock: Clock, now: Callable[[], datetime]) -> None:
        self._clock = clock
        self._now = now
        self._heap: list[tuple[float, int, Taken]] = []
        self._numbers = itertools.count()
        self._of: Counter[str] = Counter()

    def add(self, taken: Taken, delay_s: float) -> bool:
        """Add a call. Return False if there is no room."""
        org = str(taken.proven.org or "")
        if len(self._heap) >= MOST or (org and self._of[org] >= MOST_OF_AN_ORG):
            return False
        self._of[org] += 1
        heapq.heappush(self._heap, (self._clock.monotonic() + delay_s, next(self._numbers), taken))
        return True

    def in_time(self, taken: list[Taken], replies: list[TaskReply]) -> list[Taken]:
        """Return the calls to execute now. The others are delayed or, if expired, revoked, as in Celery.

        Both are decided by this host's clock.
        """
        if not any(t.message.eta or t.message.expires for t in taken):
            return taken
        now, fresh = self._now(), []
        for each in taken:
            message = each.message
            if message.expires is not None and message.expires <= now:
                replies.append(TaskReply(taken=each, failure=Failure("REVOKED", TaskRevokedError("expired"))))
            elif message.eta is None or message.eta <= now:
                fresh.append(each)
            elif objection := self._delay(each, (message.eta - now).total_seconds()):
                replies.append(TaskReply.invalid(each, objection))
        return fresh

    def _delay(self, taken: Taken, delay_s: float) -> str:
        """Keep a call until its time. Return an objection if it cannot be kept."""
        advice = "send the task when it is due"
        if len(taken.message.raw) > MOST_DELAYED_BYTES:
            return f"eta: a message of more than {MOST_DELAYED_BYTES} bytes cannot be delayed; {advice}"
        if delay_s > MOST_S:
            return f"eta: {delay_s:.0f} s ahead is above the maximum of {MOST_S}; {advice}"
        return "" if self.add(taken, delay_s) else f"eta: there are too many delayed calls; {advice}"

    def due(self) -> list[Taken]:
        """Remove and return the calls whose time has come."""
        found, now = [], self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            found.append(self._leave())
        return found

    def everything(self) -> list[Taken]:
        """Remove and return all calls."""
        return [self._leave() for _ in range(len(self._heap))]

    def _leave(self) -> Taken:
        *_, taken = heapq.heappop(self._heap)
        org = str(taken.proven.org or "")
        self._of[org] -= 1
        if not self._of[org]:
            del self._of[org]
        return taken
