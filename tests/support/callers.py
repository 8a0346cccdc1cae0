"""Callers that repeat each request until it is answered, with threads and with asyncio. They detect
two holders of one worker, requests without an answer, and how long nothing was granted.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

from pool.client import AsyncPool, BrokerDown, Pool
from pool.core.errors import PoolError, Transient
from pool.core.ids import new_task_id
from tests.support.waiting import eventually

PATIENCE_S = 60.0
WAIT_S = 20
PAUSE_S = 0.25
AGAIN_S = 0.1


class Callers:
    """Some threads of one `Pool`, and as many tasks of one `AsyncPool`."""

    def __init__(
        self, url: str, *, org: str, each: int = 3, profiles: tuple[str, ...] = ("default",)
    ) -> None:
        self._url = url
        self._org = org
        self._profiles: Iterator[str] = itertools.cycle(profiles)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._holders: dict[str, str] = {}
        self.complaints: list[str] = []
        # When a request was granted, and by which client.
        self.granted: list[tuple[float, str]] = []
        self.asked = 0
        self.repeated = 0
        self._threads = [threading.Thread(target=self._block, daemon=True) for _ in range(each)]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._loop(each)), daemon=True))
        self._pool = Pool(url, name="callers")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                self.complaints.append(f"{thread.name} did not end")
        self._pool.close()

    def goes_on(self, count: int = 20) -> None:
        """Wait until both clients were granted `count` more workers."""
        first = len(self.granted)

        def both() -> bool:
            kinds = [kind for _, kind in self.granted[first:]]
            return bool(self.complaints) or min(kinds.count("threads"), kinds.count("asyncio")) >= count

        eventually(both, within_s=PATIENCE_S, every_s=0.05)
        assert not self.complaints, self.complaints

    def longest_gap_s(self, since: float) -> dict[str, float]:
        """Return the longest time without a grant since then, of each client."""
        found = {}
        for kind in ("threads", "asyncio"):
            times = [since, *(at for at, by in self.granted if by == kind and at > since)]
            found[kind] = max(later - earlier for earlier, later in itertools.pairwise(times))
        return found

    def _block(self) -> None:
        while not self._stop.is_set():
            try:
                self._round()
            except Exception as exc:  # noqa: BLE001 - whatever it is, a caller was harmed
                self.complaints.append(f"{type(exc).__name__}: {exc}")
            self._stop.wait(PAUSE_S)

    def _round(self) -> None:
        arguments = self._request()
        while True:
            try:
                worker = self._pool.acquire(**arguments)
                break
            except BrokerDown:
                self._again()
        self._took(worker, "threads")
        self._gives_up(worker)
        while True:
            try:
                self._expect_released(self._pool.release(worker.claim_id))
                break
            except Transient:
                self._again()

    async def _loop(self, count: int) -> None:
        async with AsyncPool(self._url, name="callers-aio") as pool:
            await asyncio.gather(*(self._tasks(pool) for _ in range(count)))

    async def _tasks(self, pool: AsyncPool) -> None:
        while not self._stop.is_set():
            try:
                await self._async_round(pool)
            except Exception as exc:  # noqa: BLE001 - whatever it is, a caller was harmed
                self.complaints.append(f"asyncio {type(exc).__name__}: {exc}")
            await asyncio.sleep(PAUSE_S)

    async def _async_round(self, pool: AsyncPool) -> None:
        arguments = self._request()
        while True:
            try:
                worker = await pool.acquire(**arguments)
                break
            except BrokerDown:
                self.repeated += 1
                await asyncio.sleep(AGAIN_S)
        self._took(worker, "asyncio")
        self._gives_up(worker)
        while True:
            try:
                self._expect_released(await pool.release(worker.claim_id))
                break
            except Transient:
                await asyncio.sleep(AGAIN_S)

    def _request(self) -> dict[str, Any]:
        with self._lock:
            self.asked += 1
            profile = next(self._profiles)
        return {"org": self._org, "profile": profile, "wait_s": WAIT_S, "request_id": new_task_id()}

    def _again(self) -> None:
        self.repeated += 1
        self._stop.wait(AGAIN_S)

    def _took(self, worker: Any, kind: str) -> None:
        with self._lock:
            self.granted.append((time.monotonic(), kind))
            if other := self._holders.get(worker.worker_id):
                self.complaints.append(f"{worker.worker_id}: {worker.claim_id} and {other}")
            self._holders[worker.worker_id] = worker.claim_id

    def _gives_up(self, worker: Any) -> None:
        with self._lock:
            self._holders.pop(worker.worker_id, None)

    @staticmethod
    def _expect_released(outcome: str) -> None:
        if outcome not in ("released", "already_released"):
            raise PoolError(f"the release returned {outcome}")
