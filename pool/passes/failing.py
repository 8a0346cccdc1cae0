"""Which passes of this process keep raising, and whether any of them can still run.

A pass that raises harms no other pass: the process goes on, and its supervisor sees an exit only
when none of the passes can run.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection

from pool.core.periods import LONGEST_TICK_S, PERIODS_S

# Passes that run at least once a minute. The last run of a rarer pass may be an hour old.
FREQUENT = frozenset(name for name, period_s in PERIODS_S.items() if period_s <= LONGEST_TICK_S)


class FailingPasses:
    """Counts the runs that raised. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._consecutive: Counter[str] = Counter()
        # Cause and number of the runs that raised since any pass of this process last succeeded.
        self._causes: dict[str, str] = {}
        self._since_success: Counter[str] = Counter()

    def succeeded(self, name: str) -> None:
        """Record a success: this pass can run, so the process can."""
        with self._lock:
            self._consecutive.pop(name, None)
            self._since_success.clear()
            self._causes.clear()

    def raised(self, name: str, cause: str) -> int:
        """Record a run that raised and return the number of consecutive ones of this pass."""
        with self._lock:
            self._consecutive[name] += 1
            self._since_success[name] += 1
            self._causes[name] = cause
            return self._consecutive[name]

    def keeps_raising(self, name: str) -> bool:
        """Return whether this run is the one with which the pass reached the limit."""
        with self._lock:
            return self._consecutive[name] == self._limit

    def none_can_run(self, paused: Callable[[], Collection[str]]) -> dict[str, str]:
        """Return the cause of each pass if none of this process can run, otherwise nothing.

        Since the last success of any pass here, every frequent pass that is not paused has raised,
        one of them as many times as the limit. `paused` is called only if that may be so.
        """
        with self._lock:
            worst, causes = max(self._since_success.values(), default=0), dict(self._causes)
        if worst < self._limit:
            return {}
        return causes if causes.keys() >= FREQUENT - set(paused()) else {}
