"""The long-lived threads of one process. One runner keeps each of them: a target that raises, or that returns while it is still wanted, is
logged, counted and run again after a pause that grows. The health of all of them is read in one place."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from typing import Any

import structlog

from pool.backoff import Backoff
from pool.clock import Clock

log = structlog.get_logger(__name__)

Target = Callable[[], object]
_AGAIN = Backoff(first_s=0.1, factor=2.0, limit_s=10.0)
# A target that ran this long before it failed starts again after the shortest pause.
_CALM_S = 60.0
_LONGEST_CAUSE = 500


class WatchedThread:
    """One thread, from `start` until `stop` is set. A target that works in turns reports each by `turned`."""

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
        """Whether it was told to end and has ended."""
        return self._stop.is_set() and not self.is_alive()

    def is_well(self) -> bool:
        """Whether it runs and has turned lately, or was told to end."""
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
        except BaseException as exc:  # noqa: BLE001 - whatever ends it, it is still wanted
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
    """All of one process. `restarted` is called with the name of each thread that had to be run again."""

    def __init__(self, clock: Clock, restarted: Callable[[str], Any]) -> None:
        self.clock = clock
        self.restarted = restarted
        self._lock = threading.Lock()
        self._watched: list[WatchedThread] = []

    def make(
        self, name: str, target: Target, *, stop: threading.Event, stuck_after_s: float = math.inf
    ) -> WatchedThread:
        """A thread that is watched from its start on. `stuck_after_s`: longest time between two turns, if it reports them."""
        return WatchedThread(name, target, stop=stop, stuck_after_s=stuck_after_s, among=self)

    def start(
        self, name: str, target: Target, *, stop: threading.Event, stuck_after_s: float = math.inf
    ) -> WatchedThread:
        """The same, started."""
        thread = self.make(name, target, stop=stop, stuck_after_s=stuck_after_s)
        thread.start()
        return thread

    def add(self, thread: WatchedThread) -> None:
        with self._lock:
            self._watched = [t for t in self._watched if not t.is_over()] + [thread]

    def unwell(self) -> list[str]:
        """The names of those that are dead or stuck."""
        with self._lock:
            watched = list(self._watched)
        return [t.name for t in watched if not t.is_well()]
