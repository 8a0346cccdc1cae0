"""Threads that a worker process keeps beside its tasks: the outbox, deadlines of waiters, and marks of delivered answers. What they hold
may be lost with the process; the passes find it in the table."""

from __future__ import annotations

import contextlib
import heapq
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from pool.clock import Clock
from pool.errors import PoolError

log = structlog.get_logger(__name__)

_END = object()


class Outbox:
    """Things that somebody else need not wait for, dealt with by one thread: all that has gathered, in the order in which it came. `close` deals
    with what is left."""

    def __init__(self, name: str, deal: Callable[[list[Any]], None]) -> None:
        self._things: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._deal = deal
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, thing: Any) -> None:
        self._things.put(thing)

    def close(self, timeout_s: float = 10.0) -> None:
        self._things.put(_END)
        self._thread.join(timeout=timeout_s)

    def _run(self) -> None:
        ended = False
        while not ended:
            things = [self._things.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    things.append(self._things.get_nowait())
            ended = _END in things
            try:
                self._deal([thing for thing in things if thing is not _END])
            except Exception:  # what they hold may be lost, the thread may not
                log.exception("outbox_stumbled")


@dataclass(order=True)
class _Due:
    at: float
    call: Callable[[], Any] = field(compare=False)


class Timers:
    """Calls at a time on this host's monotonic clock, by one thread. Only hints: the callee asks the database's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: list[_Due] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, call: Callable[[], Any]) -> None:
        with self._changed:
            heapq.heappush(self._due, _Due(self._clock.monotonic() + seconds, call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="timers", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except PoolError as exc:
                log.warning("timer_left_to_the_pass", cause=str(exc))

    def _next(self) -> Callable[[], Any] | None:
        with self._changed:
            while not self._closed:
                left = self._due[0].at - self._clock.monotonic() if self._due else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._due).call
                self._changed.wait(left)
        return None


class Gathering:
    """Things that are dealt with together: whatever was added within a short time after the first."""

    def __init__(self, timers: Timers, within_s: float, deal: Callable[[list[Any]], None]) -> None:
        self._timers = timers
        self._within_s = within_s
        self._deal = deal
        self._lock = threading.Lock()
        self._things: dict[Any, None] = {}

    def add(self, thing: Any) -> None:
        with self._lock:
            first = not self._things
            self._things[thing] = None
        if first:
            self._timers.after(self._within_s, self.flush)

    def flush(self) -> None:
        with self._lock:
            things, self._things = list(self._things), {}
        if things:
            self._deal(things)
