"""No org delays another: neither with a queue full of unsigned messages, nor with calls that wait
for a lock on its own row.

`make proof` floods one queue among 10,000.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from sqlalchemy import insert

from pool.client import Pool
from pool.core.names import queue_of
from pool.store import schema
from pool.store.sql import now
from tests.support.pushing import Sender
from tests.support.signed import MASTER_KEY, key_of
from tests.support.standing import Standing, drained
from tests.support.system import EVERYTHING, System
from tests.support.waiting import eventually

LONG = os.environ.get("WARMPOOL_TEST_LONG") == "1"
ORGS = 10_000 if LONG else 3_000
FLOOD = 20_000 if LONG else 8_000
# More than the threads of the slow path: each call that waits for a lock occupies a thread.
WARM = 10
LATE_S = 2.0
# Read right before the flooded queue, and half a round away from it.
OTHERS = [f"org-{number:05}" for number in (ORGS // 3, ORGS // 3 + ORGS // 2)]
FLOODED = f"org-{ORGS // 3 + 1:05}"

pytestmark = pytest.mark.timeout(600 if LONG else 240)


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    url = request.getfixturevalue("postgres").create_database("neighbours")
    settings = {
        "pool": {"signed_requests": True, "queue_per_org": True, "master_key": MASTER_KEY},
        "profiles": {"default": {"warm_target": WARM}},
    }
    with System(tmp_path_factory.mktemp("neighbours"), url, settings=settings, measured=True) as made:
        with made.store.write() as tx:
            names = [f"org-{number:05}" for number in range(ORGS)]
            rest = {"weight": 1.0, "hot_idle_floor": 0, "hot_idle_cap": 0, "values": {}}
            rows = [{"id": name, "cap": 0, **rest} for name in names] + [{"id": "capped", "cap": 1, **rest}]
            tx.execute(insert(schema.orgs).values(created_at=now()), rows)
        made.run(*EVERYTHING).wait_idle(WARM)
        yield made
        assert made.wrongs() == []


@pytest.fixture
def system(pool: System) -> Iterator[System]:
    standing = Standing(pool.mend())
    yield pool
    standing.assert_stands()


def test_a_flooded_queue_delays_no_other_org(system: System) -> None:
    """The other orgs call repeatedly during the flood: at no position of the queue reader does a
    caller wait for it.
    """
    took = [0.0]
    with ExitStack() as open_clients, Sender(system) as keyless:
        clients = {
            org: open_clients.enter_context(Pool(system.redis.url, org_key=key_of(org, own_queue=True).text))
            for org in OTHERS
        }
        calm = max(_took(client, org) for org, client in clients.items())
        raw = keyless.encoded(keyless.draft("pool.acquire", org=FLOODED))
        with system["acquire"].frozen():
            for _ in range(0, FLOOD, 1000):
                keyless.redis.lpush(queue_of(FLOODED), *[raw] * 1000)
        while keyless.redis.llen(queue_of(FLOODED)) and max(took) < calm + LATE_S:
            took += [_took(client, org) for org, client in clients.items()]
        assert max(took) < calm + LATE_S, f"of {len(took)} calls; before the flood at most {calm:.2f} s"
        drained(system, (queue_of(FLOODED),))


def test_calls_that_wait_for_their_orgs_row_delay_no_other_org(system: System) -> None:
    """A capped org's calls need its row, which another transaction has locked. A new org's first
    acquire needs only its own row.
    """
    capped, newcomer = key_of("capped"), key_of("newcomer")
    with (
        psycopg.connect(system.database_url) as holder,
        Sender(system, key=capped) as many,
        Sender(system, key=newcomer) as first,
    ):
        holder.execute("SELECT id FROM orgs WHERE id = 'capped' FOR UPDATE")
        for number in range(40):
            many.push(many.draft("pool.acquire", request_id=f"locked-{number}"))
        drained(system)
        began = time.monotonic()
        answer = first.asked("pool.acquire", request_id="the-first", wait_s=10)
        took = time.monotonic() - began
        holder.rollback()
        assert answer["outcome"] == "granted", answer
        assert took < LATE_S, f"{took:.1f} s"
        assert first.asked("pool.release", claim_id=answer["claim_id"]) == {"outcome": "released"}
        eventually(lambda: many.redis.llen(many.address) == 40, within_s=60)


def _took(client: Pool, org: str) -> float:
    """Return how long a call without a worker takes on the org's own queue."""
    began = time.monotonic()
    assert client.cancel(org, "none") == "unknown_request"
    return time.monotonic() - began
