"""When `Pool.run` runs a function again, and what it raises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pool.client import AsyncWorker, ClaimLost, InvalidInput, Refused, Worker
from pool.client.testing import FakeAsyncPool, FakePool


def test_without_leave_to_run_twice_a_lost_claim_is_raised(fake_pool: FakePool) -> None:
    ran: list[str] = []

    def fails(worker: Worker) -> None:
        ran.append(worker.claim_id)
        fake_pool.server.lose(worker.claim_id, "pod_gone")
        raise ConnectionResetError("the worker died")

    with pytest.raises(ClaimLost, match="pod_gone") as raised:
        fake_pool.run(fails, "acme")
    assert isinstance(raised.value.__cause__, ConnectionResetError)
    assert len(ran) == 1


def test_a_function_runs_at_most_as_often_as_asked(fake_pool: FakePool) -> None:
    ran: list[str] = []

    def uses_a_lost_worker(worker: Worker) -> str:
        ran.append(worker.claim_id)
        fake_pool.server.lose(worker.claim_id)
        return worker.endpoint

    with pytest.raises(ClaimLost) as raised:
        fake_pool.run(uses_a_lost_worker, "acme", idempotent=True, attempts=2)
    assert raised.value.claim_id == ran[-1]
    assert len(set(ran)) == len(ran) == 2
    assert fake_pool.server.held == []


def test_a_function_that_returns_is_not_run_again_though_its_claim_was_lost(fake_pool: FakePool) -> None:
    def finishes(worker: Worker) -> str:
        fake_pool.server.lose(worker.claim_id)
        return "done"

    assert fake_pool.run(finishes, "acme", idempotent=True) == "done"
    assert [task for task, _ in fake_pool.server.calls] == ["pool.acquire"]


def test_a_claim_that_the_function_released_is_not_lost(fake_pool: FakePool) -> None:
    ran: list[str] = []

    def releases(worker: Worker) -> str:
        ran.append(worker.claim_id)
        worker.release()
        return worker.endpoint

    with pytest.raises(ClaimLost, match="released here"):
        fake_pool.run(releases, "acme", idempotent=True)
    assert len(ran) == 1


def test_a_loss_of_another_claim_is_an_error_of_the_function(fake_pool: FakePool) -> None:
    with fake_pool.acquire("acme") as other:
        fake_pool.server.lose(other.claim_id)
        with pytest.raises(ClaimLost) as raised:
            fake_pool.run(lambda worker: other.endpoint, "acme", idempotent=True)
        assert raised.value.claim_id == other.claim_id
    assert fake_pool.server.held == []


def test_an_unreported_loss_is_found_by_a_renewal(fake_pool: FakePool) -> None:
    ran: list[str] = []

    def loses_silently(worker: Worker) -> str:
        ran.append(worker.claim_id)
        if len(ran) == 1:
            listeners, fake_pool.server._listeners = fake_pool.server._listeners, []
            fake_pool.server.lose(worker.claim_id)
            fake_pool.server._listeners = listeners
            raise RuntimeError("the worker answered nonsense")
        return "done"

    assert fake_pool.run(loses_silently, "acme", idempotent=True) == "done"


@pytest.mark.parametrize("away", ["closed", "down"])
def test_an_error_of_the_function_is_raised_though_the_pool_is_away(fake_pool: FakePool, away: str) -> None:
    def fails(worker: Worker) -> None:
        if away == "closed":
            fake_pool.close()
        else:
            fake_pool.server.go_down()
        raise ConnectionResetError("the network")

    with pytest.raises(ConnectionResetError):
        fake_pool.run(fails, "acme", idempotent=True)


def test_a_refusal_and_a_misspelt_argument_are_raised_before_the_function_runs(fake_pool: FakePool) -> None:
    fake_pool.server.refuse("org_cap")
    with pytest.raises(Refused, match="org_cap"):
        fake_pool.run(lambda worker: 1, "acme", idempotent=True)
    wrong: Any = {"wait": 5}
    with pytest.raises(TypeError, match="wait"):
        fake_pool.run(lambda worker: 1, "acme", **wrong)
    for attempts in (0, True, 1.5):
        with pytest.raises(InvalidInput, match="attempts"):
            fake_pool.run(lambda worker: 1, "acme", attempts=attempts)  # type: ignore[arg-type]


def test_a_cancelled_run_releases_its_worker() -> None:
    async def scenario() -> None:
        async with FakeAsyncPool() as pool:
            entered = asyncio.Event()

            async def waits(worker: AsyncWorker) -> None:
                entered.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(pool.run(waits, "acme", idempotent=True))
            await entered.wait()
            assert len(pool.server.held) == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert pool.server.held == []

    asyncio.run(scenario())
