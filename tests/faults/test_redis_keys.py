"""Every key that the pool writes to Redis has an expiry or an owner that deletes from it, also
after many callers that end before they read their answers. `WARMPOOL_TEST_LONG=1` runs 5,000 of
them, otherwise several hundred.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from pool.core.names import REPLY_PREFIX, TAKEN_KEY
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, Service, System
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(400)

CLIENTS = 5_000 if os.environ.get("WARMPOOL_TEST_LONG") == "1" else 300

# Keys without expiry, and what deletes from them. The deployment fixes their number.
OWNED = {
    r"acquire|acquire\.general|fleet|bind|passes": "queues: the workers of the role take every message",
    r"warmpool\.taken|warmpool\.taken_since": "acknowledged by the acquire worker that took the call, put back after the visibility timeout",
    r"unacked|unacked_index": "acknowledged by whichever worker took the message, restored after the visibility timeout",
    r"_kombu\.binding(_permanent)?\.(acquire|acquire\.general|fleet|bind|passes|celeryev)": "kombu: one member for each queue",
    r"_kombu\.binding\.celery\.pidbox": "kombu: one member for each worker, removed when that stops",
    r"_kombu\.binding_deadlines": "kombu: one member for each exchange whose queues expire",
    r"warmpool\.kept": "locks: one mark by which an emptied Redis is noticed",
}
# Keys with an expiry.
EXPIRING = {
    r"warmpool\.reply\..+": "an unread answer",
    r"celery-task-meta-.+": "a Celery result",
    r"warmpool\.nonce\..+": "the nonce of a signed request",
    r"warmpool\.lock\..+": "the lock of a pass",
    r"unacked_mutex": "kombu: whose turn it is to restore",
}


@pytest.fixture
def system(tmp_path: Path, postgres: PostgresServer) -> Iterator[System]:
    url = postgres.create_database(tmp_path.name)
    with System(tmp_path, url, settings={"profiles": {"default": {"warm_target": 2, "grace_s": 1}}}) as made:
        yield made


def test_every_redis_key_has_an_expiry_or_an_owner(system: System) -> None:
    system.run(*EVERYTHING)
    system.wait_idle(1)
    with redis.Redis.from_url(system.redis.url, decode_responses=True) as client:
        _storm(system)
        eventually(lambda: _drained(client), within_s=180, every_s=0.2)
        strangers = {
            key: client.ttl(key) for key in client.scan_iter(count=1000) if not _may_stay(client, key)
        }
        assert strangers == {}
        # Answers for the ended callers exist: otherwise the test proves nothing.
        kept = list(client.scan_iter(match=f"{REPLY_PREFIX}*", count=1000))
        assert len(kept) > CLIENTS // 4
        assert all(len(client.lrange(key, 0, -1)) <= 2 for key in kept)


def _storm(system: System) -> None:
    """Each caller sends a request and ends: with its own reply list, or for a Celery result."""
    service = Service(system.redis.url)
    try:
        for number in range(CLIENTS):
            kwargs = {"org": f"org-{number % 7}", "wait_s": 1 if number % 50 == 0 else 0, "lease_s": 5}
            sent: dict[str, Any] = {"queue": "acquire"}
            if number % 2:
                sent["reply_to"] = f"{REPLY_PREFIX}dead-{number}"
            service.app.send_task("pool.acquire", kwargs=kwargs, **sent)
            if number % 10 == 0:
                service.app.send_task("pool.renew", kwargs={"claim_ids": ["c-none"]}, **sent)
                service.app.send_task("pool.release", kwargs={"claim_id": 5}, **sent)
    finally:
        service.close()


def _drained(client: redis.Redis) -> bool:
    return not any(client.llen(queue) for queue in ("acquire", "acquire.general")) and not (
        client.hlen("unacked") or client.hlen(TAKEN_KEY)
    )


def _may_stay(client: redis.Redis, key: str) -> bool:
    if any(re.fullmatch(pattern, key) for pattern in OWNED):
        return True
    # Deleted meanwhile (-2) is as good.
    return any(re.fullmatch(pattern, key) for pattern in EXPIRING) and client.ttl(key) != -1
