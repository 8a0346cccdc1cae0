"""A flood of waiters (5,000 with WARMPOOL_TEST_LONG) of one org, on a real deployment with real
pods: the one acquire of another org is served by the next worker that becomes available.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pool.client import Pool
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, Service, System
from tests.support.waiting import eventually

# The whole flood takes minutes on a busy machine.
FLOOD = 5_000 if os.environ.get("WARMPOOL_TEST_LONG") == "1" else 100
WORKERS = 2
SOON_S = 120

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def system(postgres: PostgresServer, tmp_path: Path) -> Iterator[System]:
    """A pool at its cap from the start: all its workers are warm."""
    settings = {"pool": {"max_workers": WORKERS}, "profiles": {"default": {"warm_target": WORKERS}}}
    with System(tmp_path, postgres.create_database("flood"), settings=settings) as made:
        made.run(*EVERYTHING).wait_idle(WORKERS)
        yield made
        assert not made.wrongs()


def waiting(system: System) -> dict[str, int]:
    """Return how many acquires of each org wait, as shown to operators."""
    seen = json.loads(system.command("status", "-o", "json", ok=(0, 1, 2)))
    return {line["org"]: line["waiting"] for line in seen["waiting"]}


def test_flood_of_one_org_does_not_delay_the_acquire_of_another(system: System) -> None:
    service = Service(system.redis.url)
    with Pool(system.redis.url, name="test") as pool, ThreadPoolExecutor(1) as thread:
        held = [pool.acquire("flood", ttl_s=0, lease_s=SOON_S) for _ in range(WORKERS)]
        for _ in range(FLOOD):
            service.send("acquire", org="flood", wait_s=3600)
        eventually(lambda: waiting(system) == {"flood": FLOOD}, within_s=400, every_s=1.0)
        asked = thread.submit(pool.acquire, "lone", wait_s=SOON_S, lease_s=SOON_S)
        eventually(lambda: waiting(system) == {"flood": FLOOD, "lone": 1}, within_s=SOON_S, every_s=0.2)
        held[0].release()
        lone = asked.result(timeout=SOON_S)
        assert lone.worker_id not in {worker.worker_id for worker in held}
        assert waiting(system) == {"flood": FLOOD}
        assert system.live_claims(org="flood") == [held[1].claim_id]
        lone.release()
    service.close()
