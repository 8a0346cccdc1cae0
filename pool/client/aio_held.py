"""`AsyncWorker` and `AsyncWorkers`, and an acquire of them that has not started."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from pool.client.core import log
from pool.client.errors import PoolClosed
from pool.client.leases import HeldClaim, HeldLease
from pool.core.errors import PoolError
from pool.core.literals import ReleaseCondition, ReleaseOutcome
from pool.core.states import Condition

if TYPE_CHECKING:
    from pool.client.aio import AsyncPool


class AsyncWorker(HeldClaim):
    """A claimed worker for asyncio. It is released on exit: clean, unless `taint()` was called."""

    def __init__(self, pool: AsyncPool, lease: HeldLease) -> None:
        super().__init__(lease)
        self._pool = pool

    async def release(self, condition: ReleaseCondition | Condition = Condition.CLEAN) -> ReleaseOutcome:
        """Release the worker: return "released", "already_released" or "unknown_claim"."""
        return await self._pool.release(self.claim_id, self._giving_back(condition))

    def let_go(self) -> dict[str, object]:
        """Stop renewing the claim without releasing it, and return it for `adopt` in another process.

        `Worker.let_go` describes what is returned.
        """
        claim = self._handing_on()
        self._pool.let_go(self.claim_id)
        return claim

    async def wait_lost(self) -> None:
        """Wait until the claim is lost."""
        await cast("asyncio.Event", self._lease.signal).wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._pool.holds(self.claim_id):
                await self.release()
        except PoolError as trouble:
            log.warning("release_unanswered claim=%s error=%s", self.claim_id, trouble)


class AsyncWorkers(tuple[AsyncWorker, ...]):
    """Workers that were acquired together. They are released together on exit."""

    _pool: AsyncPool

    @classmethod
    def of(cls, pool: AsyncPool, workers: Iterable[AsyncWorker]) -> Self:
        made = cls(workers)
        made._pool = pool
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(PoolClosed):
            await self._pool.release_held([worker.claim_id for worker in self])


Held = TypeVar("Held", bound=AsyncWorker | AsyncWorkers)


class Acquiring(Generic[Held]):
    """An acquire or an adoption that has not started: `await` it, or enter it with `async with`."""

    def __init__(self, acquired: Callable[[], Awaitable[Held]]) -> None:
        self._acquired = acquired
        self._worker: Held | None = None

    def __await__(self) -> Generator[Any, None, Held]:
        return self._acquired().__await__()

    async def __aenter__(self) -> Held:
        self._worker = await self._acquired()
        return self._worker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            await self._worker.__aexit__(kind, error, trace)
