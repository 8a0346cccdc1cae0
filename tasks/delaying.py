"""Calls that are to be carried out a little later (Celery's `eta` and `countdown`), kept by the lane's own thread. What is kept here is also kept at the
broker or sent again by its caller, so that nothing is lost with the process."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter

from pool.clock import Clock
from tasks.mailbox import Taken

MOST_S = 60
MOST_DELAYED_BYTES = 16_000
MOST_OF_AN_ORG = 100
MOST = 1000


class Delayed:
    """In order of their time, by this host's monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
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
