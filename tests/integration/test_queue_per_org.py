"""A queue for each org, on a real server with the ACL lines that the command prints: an org writes
to its own queue and reads its own answers, and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from pool.broker import acl
from pool.client import AsyncPool, BrokerDenied, Pool
from pool.client.messages import Message
from pool.core.ids import RandomIds, new_task_id
from pool.core.signing import HEADER, Asked, sign
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.signed import MASTER_KEY, key_of, recipe, refusals, refused_and_nothing_else
from tests.support.system import ROOT, System
from tests.support.waiting import eventually

# One name is a prefix of the other; the last org is created while the pool runs.
ORGS = ("acme", "acme.eu", "bolt", "late")
PATIENCE_S = 30.0

pytestmark = pytest.mark.timeout(240)


def password(user: str) -> str:
    return f"the password of {user}".replace(" ", "-")


def shipped_acl() -> str:
    """Return the file as the chart renders it."""
    text = (ROOT / "charts" / "warmpool" / "files" / "users.acl").read_text()
    return re.sub(
        r"\{\{ \.(\w+) \| sha256sum \}\}",
        lambda found: hashlib.sha256(password(found[1]).encode()).hexdigest(),
        text,
    )


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[System]:
    lines = [acl.line(org, acl.org_rules(org), password(org)) for org in ORGS]
    server = RedisServer(appendonly=True, acl="\n".join([shipped_acl().strip(), *lines, ""]))
    pool = {"signed_requests": True, "queue_per_org": True}
    settings = {
        "pool": {**pool, "master_key": MASTER_KEY},
        "profiles": {"default": {"warm_target": 5}},
        "orgs": {"auto_create": False},
    }
    control = server.url_of("control", password("control"))
    with System(
        tmp_path_factory.mktemp("queues"),
        postgres.create_database("queue_per_org"),
        settings=settings,
        redis=server,
        broker_url=control,
    ) as made:
        for org in ORGS[:-1]:
            made.command("org", "set", org)
        made.run("acquire", "fleet")
        made.command("pass", "run", "reconcile_warm")
        made.wait_idle(5)
        yield made
        assert all(part.alive() for part in made.parts.values()), made.tails()


def url_of(system: System, org: str) -> str:
    return system.redis.url_of(org, password(org))


def key(org: str) -> str:
    return key_of(org, own_queue=True).text


def test_the_commands_print_what_an_orgs_services_need(system: System, tmp_path: Any) -> None:
    file = tmp_path / "password"
    file.write_text(f"{password('acme')}\n")
    printed = system.command("org", "acl", "acme", "--password-file", str(file)).strip()
    assert printed == acl.line("acme", acl.org_rules("acme"), password("acme"))
    assert password("acme") not in printed
    assert system.command("org", "acl", "acme", "--user", "svc").startswith("user svc off ")
    assert system.command("org", "key", "acme").strip() == key("acme")


@pytest.mark.parametrize("org", ORGS[:2])
def test_an_org_is_served_with_its_own_acl_line(system: System, org: str) -> None:
    url = url_of(system, org)
    with Pool(url, org_key=key(org), name="svc") as pool, pool.acquire(org, wait_s=20) as worker:
        assert worker.claim_id in system.live_claims(org=org)
        assert pool.cancel(org, "none") == "unknown_request"

    async def once() -> str:
        async with AsyncPool(url, org_key=key(org)) as pool, pool.acquire(org, wait_s=20) as worker:
            return str(await worker.release())

    assert asyncio.run(once()) == "released"
    namespace: dict[str, Any] = {}
    exec(recipe(), namespace)
    app = Celery("service", broker=url, backend=url, set_as_current=False)
    try:
        granted = namespace["ask"](app, key(org), "pool.acquire", wait_s=20).get(timeout=PATIENCE_S)
        assert granted["outcome"] == "granted", granted
        released = namespace["ask"](app, key(org), "pool.release", claim_id=granted["claim_id"])
        assert released.get(timeout=PATIENCE_S) == {"outcome": "released"}
    finally:
        app.close()


def test_a_new_org_is_served_without_a_restart(system: System) -> None:
    pids = {name: part.pid for name, part in system.parts.items()}
    with Pool(url_of(system, "late"), org_key=key("late")) as pool:
        system.command("org", "set", "late")
        with pool.acquire("late", wait_s=20) as worker:
            assert worker.claim_id in system.live_claims(org="late")
    assert {name: part.pid for name, part in system.parts.items()} == pids


ALLOWED = [
    "LPUSH acquire.acme. {}", "BLPOP warmpool.reply.acme:svc.1 0.01", "RPUSH warmpool.reply.acme:svc.1 {}",
    "EXPIRE warmpool.reply.acme:svc.1 60", "GET celery-task-meta-acme:1", "MGET celery-task-meta-acme:1",
    "TIME", "PING",
]  # fmt: skip
REFUSED = [
    "LPUSH acquire {}", "LPUSH acquire.bolt. {}", "LPUSH acquire.acme.eu. {}", "LPUSH acquire.general {}",
    "LPUSH fleet {}", "LPUSH bind {}",
    "LPUSH passes {}", "RPOP acquire.acme.", "LRANGE acquire.acme. 0 -1", "LLEN acquire.acme.",
    "DEL acquire.acme.", "BLPOP acquire.acme. 0.01",
    "BLPOP warmpool.reply.bolt:svc.1 0.01", "BLPOP warmpool.reply.acme.eu:svc.1 0.01",
    "RPUSH warmpool.reply.bolt:svc.1 {}",
    "BLPOP warmpool.reply.svc.1 0.01", "GET celery-task-meta-bolt:1", "GET celery-task-meta-acme.eu:1",
    "GET celery-task-meta-1",
    "SET celery-task-meta-acme:1 {}", "SUBSCRIBE celery-task-meta-bolt:1",
    "SUBSCRIBE celery-task-meta-acme.eu:1", "PSUBSCRIBE celery-task-meta-*",
    "PUBLISH celery-task-meta-acme:1 {}", "GET warmpool.nonce.acme:1", "DEL warmpool.nonce.acme:1",
    "SET warmpool.lock.reap x",
    "SADD _kombu.binding.acquire x", "HGETALL unacked", "SCAN 0", "KEYS *", "EVAL return(1) 0", "FLUSHALL",
    "INFO", "ACL LIST", "CONFIG GET *",
    "PUBLISH /0.celery.pidbox {}", "MONITOR",
]  # fmt: skip


def test_the_acl_line_permits_an_org_its_own_keys_and_nothing_else(system: System) -> None:
    went_through = []
    with redis.Redis.from_url(url_of(system, "acme"), retry=None) as client:
        for line in ALLOWED:
            client.execute_command(*line.split(" "))
        for line in REFUSED:
            try:
                client.execute_command(*line.split(" "))
            except redis.exceptions.NoPermissionError:
                continue
            except redis.exceptions.ResponseError as exc:
                went_through.append(f"{line}: {exc}")
            else:
                went_through.append(line)
    assert went_through == []


def test_the_acl_line_of_the_chart_is_the_one_that_the_command_prints() -> None:
    assert acl.line("producer", acl.producer_rules(), password("producer")) in shipped_acl().splitlines()


def test_a_key_of_another_org_is_refused_on_an_orgs_own_queue(system: System) -> None:
    with Pool(url_of(system, "acme"), org_key=key("bolt")) as pool, pytest.raises(BrokerDenied):
        pool.acquire("bolt")


def push(system: System, *, reply_to: str, task_id: str, signed_by: str) -> str:
    """Push to acme's own queue."""
    message = Message(
        task="pool.acquire", kwargs={"request_id": RandomIds().request()}, task_id=task_id, origin="test",
        reply_to=reply_to
    )  # fmt: skip
    with redis.Redis.from_url(url_of(system, "acme")) as client:
        asked = Asked(task=message.task, task_id=task_id, address=reply_to, args=[], kwargs=message.kwargs)
        signature = sign(
            key_of(signed_by), asked, expires_s=int(client.time()[0]) + 300, nonce=RandomIds().token()
        )
        client.lpush("acquire.acme.", message.encoded(new_task_id(), {HEADER: signature}))
    return signature


def test_no_answer_is_written_to_keys_of_another_org(system: System) -> None:
    with redis.Redis.from_url(system.redis.url_of("control", password("control"))) as control:
        for reply_to, task_id in (
            ("warmpool.reply.bolt:x", "acme:1"),
            ("warmpool.reply.acme.eu:x", "acme:2"),
            ("", "bolt:3"),
            ("", "4"),
        ):
            known = len(refusals(system))
            with refused_and_nothing_else(system, "outside the keys of this org"):
                push(system, reply_to=reply_to, task_id=task_id, signed_by="acme")
            assert len(refusals(system)) == known + 1
            assert not control.exists(
                reply_to or f"celery-task-meta-{task_id}", f"celery-task-meta-{task_id}"
            )


def test_the_queue_of_one_org_does_not_delay_the_others(system: System) -> None:
    """A thousand meaningless messages of one org, and one caller of another org."""
    with redis.Redis.from_url(url_of(system, "acme")) as client:
        client.lpush("acquire.acme.", *["{}"] * 1000)
    with Pool(url_of(system, "bolt"), org_key=key("bolt")) as pool:
        assert pool.cancel("bolt", "none") == "unknown_request"
    with redis.Redis.from_url(system.redis.url_of("control", password("control"))) as control:
        eventually(lambda: not control.llen("acquire.acme."), within_s=PATIENCE_S)
