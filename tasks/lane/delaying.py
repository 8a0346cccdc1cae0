"""Calls that are to be carried out a little later (Celery's `eta` and `countdown`), kept by the lane's own thread. What is kept here is also kept at the
broker or sent again by its caller, so that nothing is lost with the process."""

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
    """In order of their time, by this host's monotonic clock."""

    def __init__(self, clock: Clock, now: Callable[[], datetime]) -> None:
        self._clock = clock
        self._now = now
        self._heap: list[tuple[float, int, Taken]] = []
        self._numbers = itertools.count()
        self._of: Counter[str] = Counter()

    def add(self, taken: Taken, delay_s: float) -> bool:
        """False if there is no room for it."""
        org = str(taken.proven.org or "")
        if len(self._heap) >= MOST or (org and self._of[org] >= MOST_OF_AN_ORG):
            return False
        self._of[org] += 1
        heapq.heappush(self._heap, (self._clock.monotonic() + delay_s, next(self._numbers), taken))
        return True

    def in_time(self, taken: list[Taken], replies: list[TaskReply]) -> list[Taken]:
        """Return those that are to be carried out now. The others wait for their time or, past it, are given up, as Celery does; both are by this
        host's clock."""
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
        """Keep it until its time; the objection if it cannot be kept."""
        advice = "send the task when it is due"
        if len(taken.message.raw) > MOST_DELAYED_BYTES:
            return f"eta: a message of more than {MOST_DELAYED_BYTES} bytes is not kept; {advice}"
        if delay_s > MOST_S:
            return f"eta: {delay_s:.0f} s ahead is above the maximum of {MOST_S}; {advice}"
        return "" if self.add(taken, delay_s) else f"eta: too many delayed calls are in hand; {advice}"

    def due(self) -> list[Taken]:
        """Those whose time has come; they leave."""
        found, now = [], self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            found.append(self._leave())
        return found

    def everything(self) -> list[Taken]:
        """All of them; they leave."""
        return [self._leave() for _ in range(len(self._heap))]

    def _leave(self) -> Taken:
        *_, taken = heapq.heappop(self._heap)
        org = str(taken.proven.org or "")
        self._of[org] -= 1
        if not self._of[org]:
            del self._of[org]
        return taken
