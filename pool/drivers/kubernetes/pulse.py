"""Check periodically that the API server answers.

A watch may be silent for a minute and be healthy, or its server may hang. A small read in quiet
times distinguishes the two, so that a cache is never taken for fresh without proof.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pool.core.errors import PoolError
from pool.core.threads import Threads, WatchedThread
from pool.drivers.kubernetes.api import KubeApi

EVERY_S = 5.0


class Pulse:
    """A thread from `start` to `close`. It makes a call only if no other call was answered recently."""

    def __init__(self, api: KubeApi, ask: Callable[[], object], *, threads: Threads) -> None:
        self._api = api
        self._ask = ask
        self._threads = threads
        self._clock = threads.clock
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: WatchedThread | None = None

    def start(self) -> None:
        """Start the thread, unless it was started before."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = self._threads.start("pulse", self._run, stop=self._stop)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        while not self._clock.wait(self._stop, EVERY_S):
            if self._clock.monotonic() - self._api.answered_at < EVERY_S:
                continue
            try:
                self._ask()
            except PoolError:
                continue  # the age of the last answer shows it
