"""`AsyncPool` and `AsyncWorker`: the client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from importlib import import_module
from types import TracebackType
from typing import Any, Self, cast

from pool.client import calls
from pool.client.aio_session import AsyncSession
from pool.client.core import log
from pool.client.credentials import key_source
from pool.client.errors import PoolClosed
from pool.client.holding import HeldClaim, Holding
from pool.client.identity import identity, named
from pool.core.errors import PoolError
from pool.core.states import Condition


class AsyncPool:
    """The asyncio twin of `Pool`; belongs to the event loop that first uses it, and starts anew in another. What it
    holds when its loop ends is released.

    async with AsyncPool("redis://…") as pool:
        async with pool.acquire("acme", wait_s=30) as worker:
            ...
    """

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        org_key: str | None = None,
        answer_grace_s: float = calls.ANSWER_GRACE_S,
    ) -> None:
        """`name` shows in Flower and in the name of the reply list. An acquire is given up after wait_s + answer_grace_s. `org_key`, as
        `warmpool org key` prints it, signs every request; without it WARMPOOL_ORG_KEY or the file that WARMPOOL_ORG_KEY_FILE names does."""
        self._url = url
        self._name = named(name)
        self._grace_s = answer_grace_s
        self._source = key_source(org_key)
        self._here: AsyncSession | None = None
        self._closed = False
        # Now, rather than during the first acquire.
        import_module("redis.asyncio")

    def acquire(
        self,
        org: str,
        profile: str = "default",
        *,
        wait_s: float = 0,
        lease_s: float = 30,
        ttl_s: float | None = None,
        request_id: str | None = None,
    ) -> Acquiring:
        """A worker, or `Refused`: to be awaited, or entered with `async with`. Cancelling it leaves nothing behind."""
        wish = calls.wish(org, profile, request_id, wait_s=wait_s, lease_s=lease_s, ttl_s=ttl_s)

        async def acquired() -> AsyncWorker:
            session = self._session()

            def take(result: object) -> AsyncWorker:
                holding = Holding(calls.granted(result), lease_s=lease_s, signal=asyncio.Event())
                return AsyncWorker(self, session.core.holdings.hold(holding, session.now()))

            return await session.ask(calls.acquire(wish, grace_s=self._grace_s), take)

        return Acquiring(acquired)

    async def release(self, claim_id: str, condition: str = Condition.CLEAN) -> str:
        """End a claim: "released", "already_released" or "unknown_claim". Repeating it is harmless."""
        session = self._session()
        return await session.ask(session.core.release(claim_id, condition), calls.outcome)

    async def cancel(self, org: str, request_id: str) -> str:
        """Withdraw a request that waits: "cancelled", "already_answered" or "unknown_request"."""
        return await self._session().ask(calls.cancel(org, request_id), calls.outcome)

    def holds(self, claim_id: str) -> bool:
        """Whether this pool, in this loop, renews that claim."""
        return self._session().core.holdings.holds(claim_id)

    async def close(self) -> None:
        """Stop both tasks. Claims still held are released without waiting for the answer."""
        self._closed = True
        session, self._here = self._here, None
        if session is not None and session.is_here():
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _session(self) -> AsyncSession:
        if self._closed:
            raise PoolClosed
        if self._here is None or not self._here.is_here():
            key = None if self._source is None else self._source()
            self._here = AsyncSession(self._url, identity(self._name, key), self._source)
        return self._here


class AsyncWorker(HeldClaim):
    """The asyncio twin of `Worker`: released on exit, clean unless `taint()` was called."""

    def __init__(self, pool: AsyncPool, holding: Holding) -> None:
        super().__init__(holding)
        self._pool = pool

    async def release(self, condition: str = Condition.CLEAN) -> str:
        """Give it back: "released", "already_released" or "unknown_claim". It cannot be used after that."""
        return await self._pool.release(self.claim_id, self._giving_back(condition))

    async def wait_lost(self) -> None:
        """Wait until the claim is lost."""
        await cast("asyncio.Event", self._holding.signal).wait()

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


class Acquiring:
    """An acquire that has not begun: `await` it, or enter it."""

    def __init__(self, acquired: Callable[[], Awaitable[AsyncWorker]]) -> None:
        self._acquired = acquired
        self._worker: AsyncWorker | None = None

    def __await__(self) -> Generator[Any, None, AsyncWorker]:
        return self._acquired().__await__()

    async def __aenter__(self) -> AsyncWorker:
        self._worker = await self._acquired()
        return self._worker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            await self._worker.__aexit__(kind, error, trace)
