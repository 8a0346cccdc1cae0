"""`AsyncPool`: the client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib import import_module
from types import TracebackType
from typing import Self, TypeVar, Unpack

from pool.client import calls, running
from pool.client.aio_held import Acquiring, AsyncWorker, AsyncWorkers
from pool.client.aio_session import AsyncSession
from pool.client.calls import Limits
from pool.client.core import log
from pool.client.credentials import key_source
from pool.client.defaults import broker_url
from pool.client.defaults import org as org_or_default
from pool.client.errors import PoolClosed
from pool.client.identity import identity, named
from pool.client.leases import HeldLease
from pool.core.errors import PoolError
from pool.core.literals import CancelOutcome, ReleaseCondition, ReleaseOutcome
from pool.core.states import Condition

T = TypeVar("T")


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
        url: str | None = None,
        *,
        name: str | None = None,
        org_key: str | None = None,
        answer_grace_s: float = calls.ANSWER_GRACE_S,
    ) -> None:
        """Create a pool. `url` is the broker's; the default is WARMPOOL_BROKER_URL.

        `name` is shown with the claims of this client, and is in the name of its reply list.

        An acquire fails after wait_s + answer_grace_s. `org_key`, as printed by `warmpool org key`,
        signs every request. The default is WARMPOOL_ORG_KEY, or the file named by
        WARMPOOL_ORG_KEY_FILE.
        """
        self._url = broker_url(url)
        self._name = named(name)
        self._grace_s = answer_grace_s
        self._source = key_source(org_key)
        self._here: AsyncSession | None = None
        self._closed = False
        # Import it now, so that the first acquire does not have to.
        import_module("redis.asyncio")
        from pool.broker import connecting

        connecting.pool(self._url)  # it opens no connection; an invalid URL is refused here

    def acquire(  # noqa: PLR0913 - the arguments of the task
        self,
        org: str | None = None,
        profile: str = "default",
        *,
        wait_s: float = 0,
        lease_s: float = calls.LEASE_S,
        ttl_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Acquiring[AsyncWorker]:
        """Return an acquire to await or to enter with `async with`; it yields a worker or raises `Refused`.

        The default org is that of the key, the default `traceparent` that of the current
        OpenTelemetry span.

        If it is cancelled, its request is cancelled, and a claim that was granted meanwhile is
        released.
        """
        call = calls.acquiring(
            org_or_default(org, self._source),
            profile,
            request_id,
            grace_s=self._grace_s,
            wait_s=wait_s,
            lease_s=lease_s,
            ttl_s=ttl_s,
            traceparent=traceparent,
        )

        async def acquired() -> AsyncWorker:
            session = self._session()
            return await session.call(call, self._taking(session, lease_s, call.traceparent))

        return Acquiring(acquired)

    def acquire_many(
        self,
        org: str | None = None,
        profile: str = "default",
        *,
        count: int,
        **limits: Unpack[Limits],
    ) -> Acquiring[AsyncWorkers]:
        """Return an acquire of `count` workers together, to await or to enter with `async with`.

        `Pool.acquire_many` describes the arguments and the errors.
        """
        org = org_or_default(org, self._source)
        together = [
            calls.acquiring(org, profile, grace_s=self._grace_s, **limits)
            for _ in range(calls.number_of(count))
        ]

        async def acquired() -> AsyncWorkers:
            session, lease_s = self._session(), limits.get("lease_s", calls.LEASE_S)
            take = self._taking(session, lease_s, together[0].traceparent)
            return AsyncWorkers.of(self, await session.call_all(together, take))

        return Acquiring(acquired)

    async def run(
        self,
        fn: Callable[[AsyncWorker], Awaitable[T]],
        org: str | None = None,
        profile: str = "default",
        *,
        idempotent: bool = False,
        attempts: int = running.ATTEMPTS,
        **limits: Unpack[Limits],
    ) -> T:
        """Return `await fn(worker)`, run with a worker that is released afterwards.

        `Pool.run` describes the arguments and the errors.
        """
        for left in reversed(range(running.attempts_of(attempts, idempotent=idempotent))):
            async with self.acquire(org, profile, **limits) as worker:
                try:
                    return await fn(worker)
                except Exception as error:
                    if not await self._is_lost(worker, error, may_run_again=idempotent):
                        raise
                    lost = running.loss(worker, error)
            if not left:
                raise lost
            log.info("run_again claim=%s cause=%s attempts_left=%d", worker.claim_id, worker.cause, left)
        raise AssertionError("unreachable")

    async def release(
        self, claim_id: str, condition: ReleaseCondition | Condition = Condition.CLEAN
    ) -> ReleaseOutcome:
        """End a claim: return "released", "already_released" or "unknown_claim". Safe to repeat."""
        session = self._session()
        return await session.call(session.core.release(claim_id, condition), calls.released)

    async def cancel(self, org: str | None, request_id: str) -> CancelOutcome:
        """Cancel a waiting request: return "cancelled", "already_answered" or "unknown_request".

        None is the org of the key.
        """
        call = calls.cancel(org_or_default(org, self._source), request_id)
        return await self._session().call(call, calls.cancelled)

    def adopt(self, claim: Mapping[str, object], *, lease_s: float | None = None) -> Acquiring[AsyncWorker]:
        """Return the adoption of a claim, to await or to enter with `async with`.

        `Pool.adopt` describes the arguments and the errors.
        """
        grant, lease_s = calls.adopted(claim), calls.lease_of(claim, lease_s)

        async def adopted() -> AsyncWorker:
            session = self._session()
            lease = HeldLease(grant, lease_s=lease_s, signal=asyncio.Event())

            def take(result: object) -> AsyncWorker:
                renewed = lease.adopted(calls.renewal(result))
                return AsyncWorker(self, session.core.leases.hold(renewed, session.now()))

            return await session.call(calls.renew([grant.claim_id], patience_s=calls.BRIEF_S), take)

        return Acquiring(adopted)

    def let_go(self, claim_id: str) -> None:
        """Stop renewing a claim without releasing it: it ends with its lease."""
        self._session().core.leases.drop(claim_id)

    def holds(self, claim_id: str) -> bool:
        """Return whether this pool renews that claim in the current event loop."""
        return self._session().core.leases.holds(claim_id)

    async def release_held(self, claim_ids: Collection[str]) -> None:
        """Release those of these claims that this pool still holds, all at once. Failures are only logged."""
        session = self._session()
        together = session.core.give_back(session.core.leases.among(claim_ids))
        try:
            if together:
                await session.call_all(together, calls.released)
        except PoolError as trouble:
            log.warning("release_unanswered claims=%d error=%s", len(together), trouble)

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

    def _taking(
        self, session: AsyncSession, lease_s: float, traceparent: str
    ) -> Callable[[object], AsyncWorker]:
        def take(result: object) -> AsyncWorker:
            grant, signal = calls.granted(result), asyncio.Event()
            lease = HeldLease(grant, lease_s=lease_s, signal=signal, traceparent=traceparent)
            return AsyncWorker(self, session.core.leases.hold(lease, session.now()))

        return take

    async def _is_lost(self, worker: AsyncWorker, error: Exception, *, may_run_again: bool) -> bool:
        """Return whether the claim has ended. A renewal finds out, if it is not reported yet."""
        for pause_s in running.looks(error, worker, may_run_again=may_run_again):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await worker.wait_lost()
            try:
                if worker.lost or not self.holds(worker.claim_id):
                    break
                session = self._session()
                await session.call(running.question(worker), session.core.renewed)
            except PoolError:  # the server cannot be reached: it stays an error of `fn`
                break
        return worker.lost

    def _session(self) -> AsyncSession:
        if self._closed:
            raise PoolClosed
        if self._here is None or not self._here.is_here():
            self._here = self._new_session()
        return self._here

    def _new_session(self) -> AsyncSession:
        key = None if self._source is None else self._source()
        return AsyncSession(self._url, identity(self._name, key), self._source)
