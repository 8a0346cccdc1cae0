"""A claim goes from one process to another: one client lets it go, the other adopts it. And what a
client takes from its environment.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from pool.client import AsyncPool, ClaimLost, InvalidInput, Pool, Refused
from pool.core.signing import OrgKey
from tests.support.redis_server import RedisServer
from tests.support.standin_pool import RENEWED_END, StandIn, a_grant

ADOPT = """
import json, sys
from pool.client import Pool
with Pool(sys.argv[1]) as pool, pool.adopt(json.load(sys.stdin)) as worker:
    print(worker.endpoint, worker.auth["Authorization"], pool.holds(worker.claim_id))
"""


@pytest.fixture(scope="module")
def service() -> Iterator[StandIn]:
    with RedisServer() as running, StandIn(running.url) as answering:
        yield answering


def renewals(service: StandIn, claim_id: str) -> int:
    return sum(claim_id in kwargs["claim_ids"] for _, kwargs in service.ran("pool.renew"))


def test_another_process_adopts_a_claim_that_was_let_go_and_releases_it(service: StandIn) -> None:
    with Pool(service.url) as pool:
        with pool.acquire("acme", lease_s=7) as worker:
            endpoint, proof = worker.endpoint, worker.auth["Authorization"]
            claim = worker.let_go()
            assert not pool.holds(worker.claim_id)
            with pytest.raises(ClaimLost, match="let go here"):
                _ = worker.endpoint
        assert service.claim(worker.claim_id) == "live", "the block did not release it"
    assert service.claim(worker.claim_id) == "live", "close did not release it"
    assert claim["lease_s"] == 7
    done = subprocess.run(
        [sys.executable, "-c", ADOPT, service.url], input=json.dumps(claim), capture_output=True, text=True
    )
    assert done.stdout.strip() == f"{endpoint} {proof} True", done.stderr
    assert service.claim(worker.claim_id) == "clean"


def test_adopting_renews_at_once(service: StandIn) -> None:
    with Pool(service.url) as pool:
        claim = pool.acquire("acme").let_go()
        assert renewals(service, str(claim["claim_id"])) == 0
        worker = pool.adopt(claim)
        assert renewals(service, worker.claim_id) == 1
        assert worker.lease_expires_at.isoformat() == RENEWED_END.replace("Z", "+00:00").replace(".000", "")


def test_a_claim_that_has_ended_cannot_be_adopted(service: StandIn) -> None:
    with Pool(service.url) as pool:
        claim = pool.acquire("acme").let_go()
        service.end_claim(str(claim["claim_id"]), "its lease expired")
        with pytest.raises(ClaimLost, match="its lease expired"):
            pool.adopt(claim)
        assert not pool.holds(str(claim["claim_id"]))


def test_the_answer_of_a_celery_app_can_be_adopted(service: StandIn) -> None:
    with Pool(service.url) as pool:
        kwargs = {"org": "acme", "request_id": "by-celery"}
        with Celery(broker=service.url, backend=service.url) as app:
            answer = app.send_task("pool.acquire", kwargs=kwargs, queue="acquire").get(timeout=20)
            backend: Any = app.backend
            backend.result_consumer.stop()
        with pool.adopt(answer) as worker:
            assert worker.claim_id == answer["claim_id"]
        assert service.claim(worker.claim_id) == "clean"


def test_a_refusal_cannot_be_adopted(service: StandIn) -> None:
    with Pool(service.url) as pool, pytest.raises(Refused) as caught:
        pool.adopt({"outcome": "refused", "reason": "org_cap", "detail": "full", "retry_after_s": 2})
    assert caught.value.reason == "org_cap"


@pytest.mark.parametrize(
    ("claim", "field"),
    [({}, "claim"), ({"outcome": "granted"}, "claim"), ({**a_grant(), "lease_s": "long"}, "lease_s")],
)
def test_what_is_no_claim_is_named(service: StandIn, claim: dict[str, object], field: str) -> None:
    with Pool(service.url) as pool, pytest.raises(InvalidInput) as caught:
        pool.adopt(claim)
    assert caught.value.field == field


def test_a_client_with_a_key_and_the_url_of_its_environment_needs_no_arguments(
    service: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = OrgKey(org="keyed", version=1, secret="0" * 64).text
    monkeypatch.setenv("WARMPOOL_BROKER_URL", service.url)
    monkeypatch.setenv("WARMPOOL_ORG_KEY", key)

    async def asynchronously() -> None:
        async with AsyncPool() as pool, pool.acquire(request_id="async") as worker:
            assert await pool.cancel(None, "async") == "already_answered"
            assert service.claim(worker.claim_id) == "live"

    with Pool() as pool, pool.acquire(request_id="blocking"):
        assert pool.cancel(None, "blocking") == "already_answered"
    asyncio.run(asynchronously())
    made = {kwargs["request_id"] for _, kwargs in service.ran("pool.acquire") if kwargs["org"] == "keyed"}
    assert made == {"async", "blocking"}


def test_the_asyncio_client_lets_go_and_adopts(service: StandIn) -> None:
    async def scenario() -> str:
        async with AsyncPool(service.url) as first, AsyncPool(service.url) as second:
            async with first.acquire("acme") as worker:
                claim = worker.let_go()
            assert not first.holds(worker.claim_id)
            assert service.claim(worker.claim_id) == "live"
            async with second.adopt(claim) as adopted:
                assert second.holds(adopted.claim_id)
                assert adopted.token == claim["token"]
            assert service.claim(worker.claim_id) == "clean"
            with pytest.raises(ClaimLost, match="clean"):
                await second.adopt(claim)
            return worker.claim_id

    claim_id = asyncio.run(scenario())
    assert service.claim(claim_id) == "clean"
