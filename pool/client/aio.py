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
from pool.client.identity import identity, named
from pool.client.leases import HeldClaim, HeldLease
from pool.core.errors import PoolError
from pool.core.states import Condition


class AsyncPool:
    """Acquire, renew and release workers from asyncio; the counterpart of `Pool`.

    async with AsyncPool("redis://…") as pool:
            async with pool.acquire("acme", wait_s=30) as worker:
                ...

    A pool belongs to the event loop that first uses it. In another loop it starts a new session.
    When its loop ends, it releases the claims that it still holds.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        org_key: str | None = None,
        answer_grace_s: float = calls.ANSWER_GRACE_S,
    ) -> None:
        """Create a pool. `name` appears in Flower and in the name of the reply list.

        An acquire fails after wait_s + answer_grace_s. `org_key`, as printed by `warmpool org key`,
        signs every request. The default is WARMPOOL_ORG_KEY, or the file named by
        WARMPOOL_ORG_KEY_FILE.
        """
        self._url = url
        self._name = named(name)
        self._grace_s = answer_grace_s
        self._source = key_source(org_key)
        self._here: AsyncSession | None = None
        self._closed = False
        # Import it now, so that the first acquire does not have to.
        import_module("redis.asyncio")
        from pool.broker import connecting

        connecting.pool(url)  # it opens no connection; an invalid URL is refused here

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
        """Return an acquire to await or to enter with `async with`; it yields a worker or raises `Refused`.

        If it is cancelled, its request is cancelled, and a claim that was granted meanwhile is
        released.
        """
        arguments = calls.acquire_arguments(
            org, profile, request_id, wait_s=wait_s, lease_s=lease_s, ttl_s=ttl_s
        )

        async def acquired() -> AsyncWorker:
            session = self._session()

            def take(result: object) -> AsyncWorker:
                lease = HeldLease(calls.granted(result), lease_s=lease_s, signal=asyncio.Event())
                return AsyncWorker(self, session.core.leases.hold(lease, session.now()))

            return await session.call(calls.acquire(arguments, grace_s=self._grace_s), take)

        return Acquiring(acquired)

    async def release(self, claim_id: str, condition: str = Condition.CLEAN) -> str:
        """End a claim: return "released", "already_released" or "unknown_claim". Safe to repeat."""
        session = self._session()
        return await session.call(session.core.release(claim_id, condition), calls.outcome)

    async def cancel(self, org: str, request_id: str) -> str:
        """Cancel a waiting request: return "cancelled", "already_answered" or "unknown_request"."""
        return await self._session().call(calls.cancel(org, request_id), calls.outcome)

    def holds(self, claim_id: str) -> bool:
        """Return whether this pool renews that claim in the current event loop."""
        return self._session().core.leases.holds(claim_id)

    async def close(self) -> None:
        """Stop both tasks. Release the claims still held, without waiting for the answer."""
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
    """A claimed worker for asyncio. It is released on exit: clean, unless `taint()` was called."""

    def __init__(self, pool: AsyncPool, lease: HeldLease) -> None:
        super().__init__(lease)
        self._pool = pool

    async def release(self, condition: str = Condition.CLEAN) -> str:
        """Release the worker: return "released", "already_released" or "unknown_claim"."""
        return await self._pool.release(self.claim_id, self._giving_back(condition))

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


class Acquiring:
    """An acquire that has not started: `await` it, or enter it with `async with`."""

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
