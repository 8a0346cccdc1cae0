"""Background threads of a worker process: the outbox, deadlines of waiters, and marks of delivered
answers.

Their contents may be lost with the process; the passes find the work in the table.
"""

from __future__ import annotations

import contextlib
import heapq
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from pool.core.clock import Clock
from pool.core.errors import Transient
from pool.core.threads import Threads, WatchedThread
from pool.metrics.catalog import Item

log = structlog.get_logger(__name__)

_END = object()
# The longest wait for work. A thread without a turn for longer is stuck, not idle.
_TURN_S = 5.0
# Several calls to a database that does not answer, each with its own timeout.
STUCK_S = 120.0
# The most things to keep during an outage.
_MOST_KEPT = 10_000

# Called for each item that is skipped: its kind, its name, and the exception.
LeftOut = Callable[[Item, object, Exception], object]


class Outbox:
    """A queue whose contents are processed by one thread, so that callers do not wait.

    Everything that has gathered is processed together, in order. `close` processes the rest.
    """

    def __init__(self, name: str, deal: Callable[[list[Any]], None], threads: Threads) -> None:
        self._things: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._deal = deal
        self._ended = threading.Event()
        self._thread = threads.make(name, self._run, stop=self._ended, stuck_after_s=STUCK_S)
        self._thread.start()

    def put(self, thing: Any) -> None:
        self._things.put(thing)

    def close(self, timeout_s: float = 10.0) -> None:
        self._things.put(_END)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._thread.turned()
            things: list[Any] = []
            with contextlib.suppress(queue.Empty):
                things.append(self._things.get(timeout=_TURN_S))
                while True:
                    things.append(self._things.get_nowait())
            if _END in things:
                self._ended.set()
            try:
                self._deal([thing for thing in things if thing is not _END])
            except Exception:  # the batch may be lost, but the thread must not end
                log.exception("outbox_stumbled")


@dataclass(order=True)
class _Due:
    at: float
    call: Callable[[], Any] = field(compare=False)


class Timers:
    """Calls at a time of this host's monotonic clock, made by one thread.

    They are only hints: the called function reads the database's clock.
    """

    def __init__(self, clock: Clock, threads: Threads, left_out: LeftOut) -> None:
        self._clock = clock
        self._threads = threads
        self.left_out = left_out
        self._due: list[_Due] = []
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread: WatchedThread | None = None

    def after(self, seconds: float, call: Callable[[], Any]) -> None:
        with self._changed:
            heapq.heappush(self._due, _Due(self._clock.monotonic() + seconds, call))
            if self._thread is None:
                self._thread = self._threads.make(
                    "timers", self._run, stop=self._closed, stuck_after_s=STUCK_S
                )
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed.set()
            self._changed.notify()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Transient as exc:
                log.warning("timer_left_to_the_pass", cause=str(exc))
            except Exception as exc:  # noqa: BLE001 - other timers must still run
                self.left_out(Item.TIMER, _name(call), exc)

    def _next(self) -> Callable[[], Any] | None:
        with self._changed:
            while not self._closed.is_set():
                if self._thread is not None:
                    self._thread.turned()
                left = self._due[0].at - self._clock.monotonic() if self._due else _TURN_S
                if left <= 0:
                    return heapq.heappop(self._due).call
                self._changed.wait(min(left, _TURN_S))
        return None


class Gathering:
    """Things that are processed together: all that were added shortly after the first one.

    One that fails is skipped. During an outage all are kept for later.
    """

    def __init__(
        self, timers: Timers, within_s: float, deal: Callable[[list[Any]], None], *, item: Item
    ) -> None:
        self._timers = timers
        self._within_s = within_s
        self._deal = deal
        self._item = item
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
        if not things:
            return
        try:
            self._deal(things)
        except Transient as exc:
            self._keep(things, exc)
        except Exception as exc:  # noqa: BLE001 - only the one that fails is skipped
            self._one_by_one(things, exc)

    def _one_by_one(self, things: list[Any], exc: Exception) -> None:
        if len(things) == 1:
            self._timers.left_out(self._item, things[0], exc)
            return
        for number, thing in enumerate(things):
            try:
                self._deal([thing])
            except Transient as away:
                self._keep(things[number:], away)
                return
            except Exception as bad:  # noqa: BLE001
                self._timers.left_out(self._item, thing, bad)

    def _keep(self, things: list[Any], exc: Transient) -> None:
        log.warning("flush_put_off", item=str(self._item), count=len(things), cause=str(exc))
        for thing in things[:_MOST_KEPT]:
            self.add(thing)


def _name(call: Callable[[], Any]) -> str:
    inner = getattr(call, "func", call)
    return getattr(inner, "__qualname__", repr(inner))
