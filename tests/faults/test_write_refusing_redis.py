"""A Redis that refuses writes for a while, or fails over, is an outage. No process ends, every call
is answered once it is over, and no answer that Redis refused counts as delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import func, select

from pool.store import schema
from tests.support.honest import Honest
from tests.support.hostile_draft import Draft
from tests.support.pushing import Sender
from tests.support.standing import Standing, passes_go_on
from tests.support.system import EVERYTHING, System
from tests.support.waiting import eventually
from tests.support.write_refusing import WAYS, failover, lasts, refusing

WARM = 6
REFUSED_FOR_S = 3.0
ANSWERED_WITHIN_S = 40.0

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    url = request.getfixturevalue("postgres").create_database("write_refusing")
    settings = {
        "pool": {"max_workers": WARM, "hot_idle_ttl_s": 900},
        "profiles": {"default": {"warm_target": WARM}, "scarce": {"warm_target": 0}},
        "orgs": {"busy": {"hot_idle_floor": 2, "cap": 2}},
    }
    with System(tmp_path_factory.mktemp("refusing"), url, settings=settings, measured=True) as made:
        made.run(*EVERYTHING).wait_idle(WARM)
        yield made
        assert made.wrongs() == []


@pytest.fixture
def system(pool: System) -> Iterator[System]:
    standing = Standing(pool.mend())
    yield pool
    standing.assert_stands()


@pytest.mark.parametrize("way", WAYS)
def test_redis_that_refuses_writes_is_an_outage(system: System, way: str) -> None:
    """Calls are in the queue when the refusal begins: some are decided at once, one by its timer.
    Callers of the client call throughout.
    """
    standing = Standing(system)
    with Sender(system) as plain, Honest(system.redis.url, org="busy", key=None, threads=4, plain=0) as busy:
        busy.goes_on(20)
        calls = [_plain(plain, f"{way}-{n}", ttl_s=900) for n in range(2)]
        calls.append(_plain(plain, f"{way}-waiting", profile="scarce", wait_s=1))
        with ExitStack() as outage:
            with system["acquire"].frozen():
                plain.redis.lpush("acquire", *map(plain.encoded, calls))
                outage.enter_context(refusing(system.redis, way))
            lasts(REFUSED_FOR_S)
            assert _marked(system, way) == 0, "an answer that Redis refused counts as delivered"
        answers = [plain.result(call, within_s=ANSWERED_WITHIN_S) for call in calls]
        assert [answer["outcome"] for answer in answers] == ["granted", "granted", "refused"], answers
        assert answers[2]["reason"] == "wait_timeout", answers
        for answer in answers[:2]:
            assert plain.asked("pool.release", claim_id=answer["claim_id"]) == {"outcome": "released"}
        busy.goes_on(20)
        passes_go_on(system)
        assert busy.complaints() == []
    eventually(lambda: _marked(system, way) == 3, within_s=ANSWERED_WITHIN_S)
    standing.assert_stands()


def test_a_failover_of_redis_ends_no_process(system: System) -> None:
    with Sender(system) as plain:
        for _ in range(3):
            assert plain.asked("pool.cancel", org="acme", request_id="none") == {"outcome": "unknown_request"}
            passes_go_on(system)
            failover(system.redis)
        assert plain.asked("pool.cancel", org="acme", request_id="none") == {"outcome": "unknown_request"}
        passes_go_on(system)


def _plain(sender: Sender, request_id: str, **kwargs: object) -> Draft:
    """Send a call as any Celery app does: it is not repeated, and its answer is a Celery result."""
    draft = sender.draft("pool.acquire", org="acme", request_id=request_id, **kwargs)
    draft.reply_to = "a-queue-of-celery"
    return draft


def _marked(system: System, way: str) -> int:
    """Return how many of these requests are marked as answered."""
    requests = schema.requests
    found = select(func.count()).where(
        requests.c.request_id.like(f"{way}-%"), requests.c.replied_at.is_not(None)
    )
    with system.store.read() as tx:
        return int(tx.execute(found).scalar_one())
