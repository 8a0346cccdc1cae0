"""What every client keeps, blocking or not, with a real pool or a fake one. Each subclass has a ground."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import pytest

from pool.client import AsyncPool, AsyncWorker, AsyncWorkers, ClaimLost, PoolClosed, Refused
from pool.core.errors import InvalidInput
from pool.core.ids import RandomIds
from tests.support.waiting import eventually

T = TypeVar("T")
# The shortest lease: a renewal, which reports what has happened, follows every 1.7 s.
SHORT_S = 5
LONG_S = 60
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class ClientGround(Protocol):
    """What a test needs beside the client."""

    def pool(self) -> Any:
        """Return a new `Pool`, or an `AsyncPool` in a `Loop`."""

    def set_cap(self, org: str, cap: int) -> None: ...

    def lose(self, worker: Any) -> None:
        """Make the worker's pod die."""

    def leave(self, worker: Any) -> None:
        """Make the worker leave while its claim stays."""


class Loop:
    """An `AsyncPool` for a blocking test: each call runs in an event loop of its own thread."""

    def __init__(self, make: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def made() -> AsyncPool:
            pool: AsyncPool = make()
            return pool

        self._pool = self._run(made())

    def acquire(self, *args: Any, **kwargs: Any) -> Any:
        async def acquired() -> AsyncWorker:
            return await self._pool.acquire(*args, **kwargs)

        return _Blocking(self._run, self._run(acquired()))

    def acquire_many(self, *args: Any, **kwargs: Any) -> Any:
        async def acquired() -> AsyncWorkers:
            return await self._pool.acquire_many(*args, **kwargs)

        return _BlockingMany(self._run, self._run(acquired()))

    def run(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        async def run_in_a_thread(worker: AsyncWorker) -> Any:
            return await asyncio.to_thread(fn, _Blocking(self._run, worker))

        return self._run(self._pool.run(run_in_a_thread, *args, **kwargs))

    def adopt(self, claim: Mapping[str, object]) -> Any:
        async def adopted() -> AsyncWorker:
            return await self._pool.adopt(claim)

        return _Blocking(self._run, self._run(adopted()))

    def holds(self, claim_id: str) -> bool:
        async def held() -> bool:
            return self._pool.holds(claim_id)

        return self._run(held())

    def release(self, claim_id: str) -> str:
        return self._run(self._pool.release(claim_id))

    def cancel(self, org: str, request_id: str) -> str:
        return self._run(self._pool.cancel(org, request_id))

    def close(self) -> None:
        self._run(self._pool.close())

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)


class _Blocking:
    """An `AsyncWorker` for a blocking test."""

    def __init__(self, run: Any, worker: AsyncWorker) -> None:
        self._run, self._worker = run, worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def release(self, condition: Any = "clean") -> Any:
        return self._run(self._worker.release(condition))

    def let_go(self) -> dict[str, object]:
        async def gone() -> dict[str, object]:
            return self._worker.let_go()

        found: dict[str, object] = self._run(gone())
        return found


class _BlockingMany(list[_Blocking]):
    """`AsyncWorkers` for a blocking test."""

    def __init__(self, run: Any, workers: AsyncWorkers) -> None:
        super().__init__(_Blocking(run, worker) for worker in workers)
        self._run, self._workers = run, workers

    def __enter__(self) -> _BlockingMany:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._run(self._workers.__aexit__(*raised))


class ClientContract:
    """The suite."""

    @pytest.fixture
    def org(self) -> str:
        """An org of its own, so that tests share a pool."""
        return f"org-{RandomIds().token()[:12].lower()}"

    @pytest.fixture
    def pool(self, ground: ClientGround) -> Iterator[Any]:
        made = ground.pool()
        yield made
        made.close()
        if isinstance(made, Loop):
            made.end()

    def test_a_worker_is_granted_held_and_released_once(self, pool: Any, org: str) -> None:
        worker = pool.acquire(org, wait_s=LONG_S, traceparent=TRACE)
        assert worker.endpoint.startswith("http://")
        assert worker.auth["X-Warmpool-Claim"] == worker.claim_id
        assert worker.auth["traceparent"] == TRACE
        assert (worker.source, worker.lost, worker.leaving) == ("warm", False, None)
        assert pool.holds(worker.claim_id)
        assert worker.release() == "released"
        assert not pool.holds(worker.claim_id)
        with pytest.raises(ClaimLost, match="released here"):
            _ = worker.endpoint
        assert pool.release(worker.claim_id) == "already_released"
        assert pool.release("c-nothing") == "unknown_claim"

    def test_a_request_is_granted_once(self, pool: Any, org: str) -> None:
        first = pool.acquire(org, wait_s=LONG_S, request_id="r-1")
        again = pool.acquire(org, wait_s=LONG_S, request_id="r-1")
        assert (again.claim_id, again.token) == (first.claim_id, first.token)
        assert _refusal(pool, org, wait_s=LONG_S - 1, request_id="r-1").reason == "invalid"
        first.release()
        assert _refusal(pool, org, wait_s=LONG_S, request_id="r-1").reason == "request_spent"

    def test_a_parked_worker_returns_to_its_org_and_a_tainted_one_does_not(self, pool: Any, org: str) -> None:
        first = pool.acquire(org, wait_s=LONG_S)
        first.release()
        second = pool.acquire(org, wait_s=LONG_S)
        assert (second.worker_id, second.source) == (first.worker_id, "hot_idle")
        assert second.epoch > first.epoch
        second.taint()
        second.release()
        third = pool.acquire(org, wait_s=LONG_S)
        assert (third.worker_id != first.worker_id, third.source) == (True, "warm")
        third.release()

    def test_wrong_arguments_are_refused(self, pool: Any, org: str) -> None:
        assert _refusal(pool, org, "no-such-profile").reason == "unknown_profile"
        for wrong in ({"lease_s": 1}, {"wait_s": -1}, {"ttl_s": -1}, {"request_id": ""}):
            refused = _refusal(pool, org, **wrong)
            assert refused.reason == "invalid"
            assert next(iter(wrong)) in refused.detail
        assert _refusal(pool, "not an org").reason == "invalid"

    def test_an_org_at_its_cap_is_refused_or_waits(self, ground: ClientGround, pool: Any, org: str) -> None:
        ground.set_cap(org, 1)
        first = pool.acquire(org, wait_s=LONG_S)
        refused = _refusal(pool, org)
        assert (refused.reason, refused.retry_after_s) == ("org_cap", 1.0)
        assert _refusal(pool, org, wait_s=1).reason == "wait_timeout"
        with ThreadPoolExecutor(1) as threads:
            waiting: Future[Any] = threads.submit(
                pool.acquire, org, wait_s=LONG_S, request_id="r-waits", ttl_s=0
            )
            eventually(lambda: pool.cancel(org, "r-other") == "unknown_request")
            assert not waiting.done()
            first.release()
            second = waiting.result()
        assert second.worker_id == first.worker_id
        second.release()

    def test_a_waiting_request_is_cancelled(self, ground: ClientGround, pool: Any, org: str) -> None:
        ground.set_cap(org, 1)
        first = pool.acquire(org, wait_s=LONG_S, request_id="r-first")
        assert pool.cancel(org, "r-first") == "already_answered"
        assert pool.cancel(org, "r-none") == "unknown_request"
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(_refusal, pool, org, wait_s=LONG_S, request_id="r-waits")
            eventually(lambda: pool.cancel(org, "r-waits") == "cancelled")
            assert waiting.result().reason == "cancelled"
        first.release()

    def test_a_claim_is_handed_on(self, pool: Any, org: str) -> None:
        worker = pool.acquire(org, wait_s=LONG_S)
        claim = worker.let_go()
        assert not pool.holds(worker.claim_id)
        with pytest.raises(ClaimLost, match="let go here"):
            _ = worker.endpoint
        adopted = pool.adopt(claim)
        assert (adopted.claim_id, adopted.token) == (worker.claim_id, claim["token"])
        assert adopted.release() == "released"
        with pytest.raises(ClaimLost):
            pool.adopt(claim)

    def test_the_holder_of_a_leaving_then_lost_worker_is_informed(
        self, ground: ClientGround, pool: Any, org: str
    ) -> None:
        worker = pool.acquire(org, wait_s=LONG_S, lease_s=SHORT_S)
        ground.leave(worker)
        assert eventually(lambda: worker.leaving, within_s=20)
        assert worker.endpoint
        ground.lose(worker)
        eventually(lambda: worker.lost, within_s=30)
        with pytest.raises(ClaimLost) as raised:
            _ = worker.endpoint
        assert raised.value.cause == worker.cause
        assert not pool.holds(worker.claim_id)
        assert pool.release(worker.claim_id) == "already_released"

    def test_several_workers_are_acquired_and_released_together(
        self, ground: ClientGround, pool: Any, org: str
    ) -> None:
        ground.set_cap(org, 2)
        with pool.acquire_many(org, count=2, wait_s=LONG_S, traceparent=TRACE) as workers:
            claims = [worker.claim_id for worker in workers]
            assert len({worker.worker_id for worker in workers}) == len(set(claims)) == 2
            assert all(worker.auth["traceparent"] == TRACE for worker in workers)
        assert [pool.release(claim) for claim in claims] == ["already_released"] * 2
        assert not any(pool.holds(claim) for claim in claims)
        for wrong in (0, 101, True):
            with pytest.raises(InvalidInput, match="count"):
                pool.acquire_many(org, count=wrong)

    def test_none_of_several_workers_is_kept_if_one_is_refused(
        self, ground: ClientGround, pool: Any, org: str
    ) -> None:
        ground.set_cap(org, 2)
        with pool.acquire_many(org, count=2, wait_s=LONG_S):
            pass  # both are parked now, so that the next acquires are decided at once
        with pytest.raises(Refused, match="org_cap"):
            pool.acquire_many(org, count=3)
        with pool.acquire_many(org, count=2, wait_s=LONG_S) as workers:
            assert [worker.source for worker in workers] == ["hot_idle"] * 2

    def test_a_function_runs_again_if_its_worker_is_lost(
        self, ground: ClientGround, pool: Any, org: str
    ) -> None:
        ran: list[str] = []

        def dies_once(worker: Any) -> str:
            ran.append(worker.worker_id)
            if len(ran) == 1:
                ground.lose(worker)
                raise ConnectionResetError("the worker died")
            return str(worker.worker_id)

        assert pool.run(dies_once, org, idempotent=True, wait_s=LONG_S) == ran[1]
        assert (len(ran), len(set(ran))) == (2, 2)

    def test_an_error_of_the_function_is_raised_once_and_its_worker_released(
        self, pool: Any, org: str
    ) -> None:
        ran: list[str] = []

        def fails(worker: Any) -> None:
            ran.append(worker.claim_id)
            raise ValueError("a bug")

        with pytest.raises(ValueError, match="a bug"):
            pool.run(fails, org, idempotent=True, wait_s=LONG_S)
        (claim_id,) = ran
        assert pool.release(claim_id) == "already_released"

    def test_a_closed_pool_has_released_its_claims(self, ground: ClientGround, org: str) -> None:
        pool = ground.pool()
        worker = pool.acquire(org, wait_s=LONG_S)
        pool.close()
        with pytest.raises(PoolClosed):
            pool.acquire(org)
        if isinstance(pool, Loop):
            pool.end()
        other = ground.pool()
        eventually(lambda: other.release(worker.claim_id) == "already_released")
        other.close()
        if isinstance(other, Loop):
            other.end()


def _refusal(pool: Any, *args: Any, **kwargs: Any) -> Refused:
    with pytest.raises(Refused) as raised:
        pool.acquire(*args, **kwargs)
    return raised.value
