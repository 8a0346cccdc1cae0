"""Beat is dead and Redis is down while claims are live and parked workers reach their TTL: the
fallback reaps, no session ends, everything resumes.

`make chaos` runs the long form with an outage of two minutes. `make test` runs a short one, still
longer than a lease.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from pool.client import Pool
from pool.core.states import State
from pool.store import passes, schema
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, System
from tests.support.waiting import eventually

LONG = os.environ.get("WARMPOOL_TEST_LONG") == "1"
OUTAGE_S = 120 if LONG else 20
LEASE_S = 5

pytestmark = pytest.mark.timeout(600 if LONG else 300)


@pytest.fixture
def system(tmp_path: Path, postgres: PostgresServer) -> Iterator[System]:
    url = postgres.create_database(tmp_path.name)
    with System(tmp_path, url, settings={"profiles": {"default": {"warm_target": 3, "grace_s": 2}}}) as made:
        made.run(*EVERYTHING).wait_idle(3)
        yield made


def test_with_beat_and_redis_gone_the_fallback_reaps_and_no_live_claim_ends(system: System) -> None:
    with Pool(system.redis.url) as pool:
        held = pool.acquire("acme", lease_s=LEASE_S, wait_s=20)
        parked = pool.acquire("bolt", ttl_s=LEASE_S, wait_s=20)
        parked_id = parked.worker_id
        parked.release()
        system["beat"].kill()
        system.redis.stop()
        began = time.monotonic()
        eventually(lambda: _state(system, parked_id) == State.RETIRED, within_s=90)
        eventually(lambda: time.monotonic() - began > OUTAGE_S, within_s=OUTAGE_S + 30, every_s=0.5)
        assert system.live_claims(org="acme") == [held.claim_id]
        assert all(system[name].alive() for name in ("acquire", "fleet", "bind", "passes"))

        system.redis.start()
        system.run("beat")
        before = _last_success(system)
        eventually(lambda: _last_success(system) != before, within_s=90)
        first = held.lease_expires_at
        eventually(lambda: held.lease_expires_at > first, within_s=60)
        again = _last_success(system)
        eventually(lambda: _last_success(system) != again, within_s=60)
        assert system.live_claims(org="acme") == [held.claim_id]
        assert not held.lost
        held.release()
    assert system.wrongs() == []


def _state(system: System, worker_id: str) -> str:
    workers = schema.workers
    with system.store.read() as tx:
        return str(tx.execute(select(workers.c.state).where(workers.c.id == worker_id)).scalar_one())


def _last_success(system: System) -> object:
    with system.store.read() as tx:
        return passes.get(tx, "reap").last_success_at
