"""Threads that orgs share. Each org has a bounded part of the threads and a bounded number of calls
in progress, so that slow calls of one org do not delay other orgs.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# What one org may have in progress. Further calls get the answer of an outage, so that callers try
# again later.
MOST_IN_PROGRESS = 1000
MOST_BYTES_IN_PROGRESS = 8_000_000


class SharedThreads:
    """Orgs take turns. The calls of an org run in order."""

    def __init__(
        self,
        threads: int,
        *,
        most_in_progress: int = MOST_IN_PROGRESS,
        most_bytes: int = MOST_BYTES_IN_PROGRESS,
    ) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="at-length")
        self._free = threads
        self._most_in_progress = most_in_progress
        self._most_bytes = most_bytes
        self._bytes: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[Callable[[], Any], int]]] = {}
        self._running: Counter[str] = Counter()
        self._turn = threading.Condition()

    def submit(self, org: str, call: Callable[[], Any], size_bytes: int = 0) -> bool:
        """Run a call soon. Return False if this org has reached its limit of calls or bytes."""
        with self._turn:
            in_progress = len(self._waiting.get(org, ())) + self._running.get(org, 0)
            if in_progress >= self._most_in_progress or (
                in_progress and self._bytes.get(org, 0) + size_bytes > self._most_bytes
            ):
                return False
            self._bytes[org] += size_bytes
            self._waiting.setdefault(org, deque()).append((call, size_bytes))
            self._start()
            return True

    def shutdown(self) -> None:
        """Wait until all calls have run."""
        with self._turn:
            self._turn.wait_for(lambda: not self._waiting and not self._running)
        self._threads.shutdown(wait=True)

    def _start(self) -> None:
        for org in list(self._waiting) if self._free else ():
            if not self._free:
                return
            while self._has_room(org) and (waiting := self._waiting.get(org)):
                call, size_bytes = waiting.popleft()
                self._free -= 1
                self._running[org] += 1
                self._waiting.pop(org)
                if waiting:
                    self._waiting[org] = waiting  # after the other orgs
                self._threads.submit(self._run, org, call, size_bytes)

    def _has_room(self, org: str) -> bool:
        """Return whether an org may start a call. It gets at most half of the threads that other
        orgs leave free, so no single org can occupy all threads.
        """
        running = self._running.get(org, 0)
        return self._free > 0 and running < max(1, (self._free + running) // 2)

    def _run(self, org: str, call: Callable[[], Any], size_bytes: int) -> None:
        try:
            call()
        finally:
            with self._turn:
                self._free += 1
                self._running[org] -= 1
                self._bytes[org] -= size_bytes
                if not self._running[org]:
                    del self._running[org]
                    if org not in self._waiting:
                        del self._bytes[org]
                self._start()
                self._turn.notify_all()
