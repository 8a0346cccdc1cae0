"""Many waiters in one process: real acquires of the asyncio client, a client for each org, in an
event loop in its own thread.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from bench.lanes import LONG_S
from pool.client.aio import AsyncPool
from pool.client.aio_held import AsyncWorker
from pool.core.errors import PoolError

T = TypeVar("T")
PATIENCE_S = 60.0


class Waiters:
    """Grants are in `granted`, in the order of their arrival; one that could not wait is there as
    its error.
    """

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._url = url
        self._pools: dict[str, AsyncPool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.granted: queue.SimpleQueue[AsyncWorker | Exception] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def acquire(self, org: str, *, ttl_s: int) -> AsyncWorker:
        """Return a worker now, or raise `Refused`."""
        return self._do(self._acquire(org, wait_s=0, ttl_s=ttl_s))

    def wait_for(self, org: str) -> None:
        """Request a worker that does not exist yet; return once a later message of the same client
        was answered.
        """
        self._do(self._begin(org))
        self._do(self._pool(org).release("c-unknown"))

    def hand_over(self, worker: AsyncWorker) -> AsyncWorker:
        """Release this one; return what the next waiter got."""
        releasing = asyncio.run_coroutine_threadsafe(worker.release(), self._loop)
        got = self.granted.get(timeout=PATIENCE_S)
        if isinstance(got, Exception):
            raise got
        self._releasing = releasing
        return got

    def released(self) -> None:
        """Wait for the answer to the last release."""
        self._releasing.result(PATIENCE_S)

    def release(self, worker: AsyncWorker) -> None:
        self._do(worker.release())

    async def _acquire(self, org: str, *, wait_s: int, ttl_s: int) -> AsyncWorker:
        return await self._pool(org).acquire(org, wait_s=wait_s, lease_s=LONG_S, ttl_s=ttl_s)

    async def _begin(self, org: str) -> None:
        async def wait() -> None:
            try:
                self.granted.put(await self._acquire(org, wait_s=LONG_S, ttl_s=LONG_S))
            except PoolError as exc:
                self.granted.put(exc)

        task = self._loop.create_task(wait())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in self._pools.values():
            await pool.close()

    def _pool(self, org: str) -> AsyncPool:
        if org not in self._pools:
            self._pools[org] = AsyncPool(self._url, name="bench")
        return self._pools[org]

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)
