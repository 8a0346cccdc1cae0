"""Bad messages on the queues: callers get a refusal that names the field, nothing is written, no
process ends, and the next valid request is served.

`tests/unit/test_contract.py` and `test_config.py` try far more values on the parsers alone; here
they arrive as messages.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import func, select

from pool.client.messages import Message
from pool.store import schema
from pool.store.engine import Tx
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, Service, System
from tests.support.waiting import eventually

MESSAGES = 250
SEED = 20_261
# The arguments of each task, and the queue that its worker reads.
CALLER_FACING: dict[str, tuple[str, ...]] = {
    "pool.acquire": ("org", "profile", "request_id", "lease_s", "ttl_s", "wait_s"),
    "pool.renew": ("claim_ids",),
    "pool.release": ("claim_id", "condition"),
    "pool.cancel": ("org", "request_id"),
}
INTERNAL: dict[str, tuple[str, tuple[str, ...]]] = {
    "pool.spawn": ("fleet", ("worker_id",)),
    "pool.retire": ("fleet", ("worker_id",)),
    "pool.activate": ("bind", ("worker_id", "claim_id", "epoch")),
    "pool.stamp": ("bind", ("worker_id",)),
    "pool.refill": ("passes", ("profile",)),
    "pool.reap": ("passes", ()),
    "pool.canary": ("acquire", ()),
    "no.such.task": ("fleet", ("x",)),
}
# No field accepts any of the first values; the others are texts, which only ids accept.
WRONG: tuple[Any, ...] = (
    *(-1, 0.5, 1e308, 2**70, True, [], {}, [[[]]], {"a": {"b": None}}, ["x", 1]),
    *("", "x" * 5000, "\x00"),
)
# A TTL that is too long is lowered, not refused.
LONG = frozenset({1e308, 2**70})
NO_NAMES = (" ", "a b", "\u202e", "'; DROP TABLE workers", "-", "ü")
IDS = frozenset({"request_id", "claim_id", "claim_ids"})


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[System]:
    folder: Path = tmp_path_factory.mktemp("system")
    url = postgres.create_database("bad_input")
    with System(folder, url, settings={"profiles": {"default": {"warm_target": 2}}}) as made:
        made.run(*EVERYTHING).wait_idle(2)
        yield made


def test_bad_arguments_are_refused_with_a_detail_and_write_nothing(system: System) -> None:
    chance = random.Random(SEED)
    service, before = Service(system.redis.url), _written(system)
    sent = []
    for _ in range(MESSAGES):
        task, fields = chance.choice(list(CALLER_FACING.items()))
        given: dict[str, Any] = {"org": "acme", "request_id": "r", "claim_id": "c", "claim_ids": ["c"]}
        wrong = chance.choice(fields)
        values = WRONG if wrong in IDS else (*WRONG, *NO_NAMES)
        if wrong == "ttl_s":
            values = tuple(v for v in values if not isinstance(v, int | float) or v not in LONG)
        given = {k: v for k, v in given.items() if k in fields} | {wrong: chance.choice(values)}
        sent.append((task, wrong, given, service.send(task.removeprefix("pool."), **given)))
    for task, wrong, given, result in sent:
        answer = result.get(timeout=60)
        if task == "pool.renew" and given["claim_ids"] == []:
            assert answer == {"renewed": {}, "gone": {}}
            continue
        assert (answer.get("outcome"), answer.get("reason")) == ("refused", "invalid"), (task, given, answer)
        assert wrong in answer["detail"], (task, given, answer)
    service.close()
    assert _written(system) == before
    _serves(system)


def test_no_message_on_any_queue_ends_a_process(system: System) -> None:
    chance = random.Random(SEED + 1)
    pids = {name: part.pid for name, part in system.parts.items()}
    queues = ("acquire", "fleet", "bind", "passes")
    with redis.Redis.from_url(system.redis.url) as raw:
        for _ in range(MESSAGES):
            raw.lpush(*_message(chance))
        for queue in queues:
            raw.lpush(queue, b"\xff\xfe", "not json", "[]", "null", '"text"', "{}", json.dumps({"body": 1}))
            # Ten megabytes in one field.
            raw.lpush(queue, _encoded("pool.acquire", {"org": "x" * 10_000_000}))
        eventually(lambda: not any(raw.llen(queue) for queue in queues), within_s=120, every_s=0.2)
    _serves(system)
    assert {name: part.pid for name, part in system.parts.items() if part.alive()} == pids, system.tails()
    assert not system.wrongs()


def _message(chance: random.Random) -> tuple[str, str]:
    """Return a queue, and a task for it whose arguments are wrong, too many, or missing."""
    task, (queue, fields) = chance.choice(list(INTERNAL.items()))
    given = {field: chance.choice(WRONG) for field in fields if chance.random() < 0.9}
    if chance.random() < 0.2:
        given["surplus"] = chance.choice(WRONG)
    return queue, _encoded(task, given)


def _encoded(task: str, given: dict[str, Any]) -> str:
    message = json.loads(Message(task=task, kwargs={}, task_id=f"t-{task}", origin="test").encoded("tag"))
    body = json.dumps([[], given, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    message["body"] = base64.b64encode(body.encode()).decode()
    return json.dumps(message)


def _serves(system: System) -> None:
    service = Service(system.redis.url)
    granted = service.granted("acme")
    assert service.call("release", claim_id=granted["claim_id"])["outcome"] == "released"
    service.close()


def _written(system: System) -> dict[str, int]:
    """Return the number of rows in the tables that callers can write."""

    def rows(tx: Tx, table: Any) -> int:
        return int(tx.execute(select(func.count()).select_from(table)).scalar_one())

    with system.store.read() as tx:
        return {table.name: rows(tx, table) for table in (schema.requests, schema.claims, schema.orgs)}
