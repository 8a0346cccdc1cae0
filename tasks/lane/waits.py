"""Timers for the ends of waits. They are only hints: the database's clock decides, and the reap
ends waits without a timer.

A wait that is decided meanwhile is removed from memory within seconds, even if its deadline is far
away.
"""

from __future__ import annotations

import threading
from typing import Any

from pool.core.contract import Pending
from pool.core.ids import RequestPk
from pool.lifecycle import claiming
from pool.lifecycle.claiming import Answer
from pool.lifecycle.deps import Deps
from pool.store import requests
from tasks.background import Timers
from tasks.lane.replies import Answered

# Waits that end sooner have a timer. The others are checked at this interval.
LOOK_EVERY_S = 10.0
_AT_A_TIME = 1_000


class Waits:
    """Any thread may add."""

    def __init__(self, deps: Deps, timers: Timers) -> None:
        self._deps = deps
        self._timers = timers
        self._lock = threading.Lock()
        # The end of each long wait, on this host's monotonic clock.
        self._later: dict[RequestPk, float] = {}
        self._looking = False

    def __len__(self) -> int:
        """Return the number of long waits."""
        return len(self._later)

    def answered(self, answer: Answer | dict[str, Any]) -> Answered | None:
        """Return the answer to send now, or None for a wait that has just begun: then a timer ends it."""
        if isinstance(answer, Pending):
            self.add(answer.request_pk, answer.until_s + 0.05)
            return None
        return Answered(answer) if isinstance(answer, dict) else Answered(answer.as_dict(), answer.pk)

    def add(self, pk: RequestPk, seconds: float) -> None:
        """Schedule the end of this wait."""
        if seconds <= LOOK_EVERY_S:
            self._remind(pk, seconds)
            return
        with self._lock:
            self._later[pk] = self._deps.clock.monotonic() + seconds
            begins, self._looking = not self._looking, True
        if begins:
            self._timers.after(LOOK_EVERY_S, self.look)

    def look(self) -> None:
        """Remove decided waits, and set timers for those that end before the next check."""
        try:
            self._forget_decided()
        finally:
            with self._lock:
                soon = self._deps.clock.monotonic() + LOOK_EVERY_S
                due = {pk: at for pk, at in self._later.items() if at <= soon}
                for pk in due:
                    del self._later[pk]
                again = self._looking = bool(self._later)
            for pk, at in due.items():
                self._remind(pk, max(0.0, at - self._deps.clock.monotonic()))
            if again:
                self._timers.after(LOOK_EVERY_S, self.look)

    def _forget_decided(self) -> None:
        with self._lock:
            known = list(self._later)
        for some in (known[at : at + _AT_A_TIME] for at in range(0, len(known), _AT_A_TIME)):
            with self._deps.store.read() as tx:
                waiting = requests.still_waiting(tx, some)
            with self._lock:
                for pk in set(some) - waiting:
                    self._later.pop(pk, None)

    def _remind(self, pk: RequestPk, seconds: float) -> None:
        self._timers.after(seconds, lambda: claiming.time_out(self._deps, pk))
