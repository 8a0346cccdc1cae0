"""The long-lived threads of one process. If a target raises, or returns before `stop` is set, it is
logged, counted and restarted after a growing pause. `Threads` reports the health of all threads.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from typing import Any

import structlog

from pool.core.backoff import Backoff
from pool.core.clock import Clock

log = structlog.get_logger(__name__)

Target = Callable[[], object]
_AGAIN = Backoff(first_s=0.1, factor=2.0, limit_s=10.0)
# A target that ran for this time before it failed restarts after the shortest pause.
_CALM_S = 60.0
_LONGEST_CAUSE = 500


class WatchedThread:
    """One thread that runs from `start` until `stop` is set. A target that works in turns calls
    `turned` for each.
    """

    def __init__(
        self, name: str, target: Target, *, stop: threading.Event, stuck_after_s: float, among: Threads
    ) -> None:
        self.name = name
        self._target = target
        self._stop = stop
        self._stuck_after_s = stuck_after_s
        self._among = among
        self._clock = among.clock
        self._turned_at = math.inf
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.turned()
        self._among.add(self)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def turned(self) -> None:
        """Report that a turn begins."""
        self._turned_at = self._clock.monotonic()

    def is_over(self) -> bool:
        """Return whether the thread was stopped and has ended."""
        return self._stop.is_set() and not self.is_alive()

    def is_well(self) -> bool:
        """Return whether the thread is running and not stuck, or was stopped."""
        if self._stop.is_set():
            return True
        return self.is_alive() and self._clock.monotonic() - self._turned_at < self._stuck_after_s

    def _run(self) -> None:
        # Everything is inside the `try`: an exception may be raised into a thread at any line.
        while True:
            try:
                if self._stop.is_set():
                    return
                self._once()
            except BaseException as exc:  # noqa: BLE001 - hit between two runs
                self._count()
                with contextlib.suppress(Exception):
                    log.error("thread_interrupted", thread=self.name, cause=repr(exc)[:_LONGEST_CAUSE])  # noqa: TRY400

    def _once(self) -> None:
        """Run the target; if it failed, report it and pause."""
        began = self._clock.monotonic()
        cause: BaseException | None = None
        try:
            self._target()
        except BaseException as exc:  # noqa: BLE001 - restart it whatever the cause
            cause = exc
        if self._stop.is_set():
            return
        calm = self._clock.monotonic() - began > _CALM_S
        self._failures = 1 if calm else self._failures + 1
        why = "it returned" if cause is None else f"{type(cause).__name__}: {cause}"[:_LONGEST_CAUSE]
        log.error("thread_restarted", thread=self.name, cause=why, in_a_row=self._failures, exc_info=cause)
        self._count()
        self.turned()
        self._clock.wait(self._stop, _AGAIN.nominal(self._failures))
        self.turned()

    def _count(self) -> None:
        with contextlib.suppress(Exception):
            self._among.restarted(self.name)


class Threads:
    """All watched threads of one process. `restarted` is called with the name of each thread that
    is restarted.
    """

    def __init__(self, clock: Clock, restarted: Callable[[str], Any]) -> None:
        self.clock = clock
        self.restarted = restarted
        self._lock = threading.Lock()
        self._watched: list[WatchedThread] = []

    def make(
        self, name: str, target: Target, *, stop: threading.Event, stuck_after_s: float = math.inf
    ) -> WatchedThread:
        """Return a new thread, not started. `stuck_after_s`: longest time between two turns, if it
        reports them.
        """
        return WatchedThread(name, target, stop=stop, stuck_after_s=stuck_after_s, among=self)

    def start(
        self, name: str, target: Target, *, stop: threading.Event, stuck_after_s: float = math.inf
    ) -> WatchedThread:
        """Return a new thread, started."""
        thread = self.make(name, target, stop=stop, stuck_after_s=stuck_after_s)
        thread.start()
        return thread

    def add(self, thread: WatchedThread) -> None:
        with self._lock:
            self._watched = [t for t in self._watched if not t.is_over()] + [thread]

    def unwell(self) -> list[str]:
        """Return the names of the threads that are dead or stuck."""
        with self._lock:
            watched = list(self._watched)
        return [t.name for t in watched if not t.is_well()]
