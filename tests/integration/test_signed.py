"""Signed requests on real acquire workers: an invalid signature is refused, journalled, and changes
nothing; a valid request is served, also when the broker delivers its message twice.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.request import urlopen

import pytest
from celery import Celery
from sqlalchemy import select

from pool.client import AsyncPool, Pool, Refused
from pool.client.messages import Message
from pool.core.ids import OrgId, RandomIds
from pool.core.names import TAKEN_KEY, TAKEN_SINCE_KEY
from pool.core.settings import OrgDefaults
from pool.core.signing import HEADER
from pool.core.states import State
from pool.store import audit, orgs, schema
from tests.support.clock_skew import skewed
from tests.support.postgres_server import PostgresServer
from tests.support.signed import (
    MASTER_KEY,
    SignedCaller,
    count,
    key_of,
    recipe,
    refusals,
    refused_and_nothing_else,
    written,
)
from tests.support.system import System
from tests.support.waiting import eventually

WARM = 6
PATIENCE_S = 30.0
# Orgs are read again every 5 s.
KNOWN_WITHIN_S = 15.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def system(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    url = postgres.create_database("signed")
    # No parked worker drains while a test compares what is written.
    pool = {"signed_requests": True, "master_key": MASTER_KEY, "hot_idle_ttl_s": 900}
    settings = {"pool": pool, "profiles": {"default": {"warm_target": WARM}}}
    with System(tmp_path_factory.mktemp("signed"), url, settings=settings, measured=True) as made:
        made.run("acquire", "fleet")
        refill(made)
        yield made
        assert not made.wrongs()
        assert all(part.alive() for part in made.parts.values()), made.tails()


def refill(system: System, count: int = WARM) -> None:
    system.command("pass", "run", "reconcile_warm")
    system.wait_idle(count)


@pytest.fixture
def caller(system: System) -> Iterator[SignedCaller]:
    if system.count(State.IDLE) < 3:
        refill(system)
    made = SignedCaller(system)
    yield made
    made.close()


def test_both_clients_and_the_command_line_are_served_with_a_key(system: System) -> None:
    key = key_of("acme").text
    with Pool(system.redis.url, org_key=key) as pool, pool.acquire("acme", wait_s=20) as worker:
        with urlopen(f"{worker.endpoint}/healthz", timeout=10) as answer:
            assert answer.status == 200
        pool._session().core.leases.renewals()

    async def once() -> str:
        async with AsyncPool(system.redis.url, org_key=key) as pool, pool.acquire("acme", wait_s=20) as found:
            return str(await found.release())

    assert asyncio.run(once()) == "released"
    # The master key signs for any org; an org key only for its org.
    printed = system.command("acquire", "--org", "acme", "--wait", "20", "--json")
    claim = json.loads(printed)["claim_id"]
    bolt = {"WARMPOOL_ORG_KEY": key_of("bolt").text}
    assert system.command("release", claim, env=bolt, ok=(1,)).strip() == "unknown_claim"
    assert system.command("release", claim).strip() == "released"
    assert system.command("org", "key", "acme").strip() == key


def test_without_a_key_the_client_is_refused_with_an_explanation(system: System) -> None:
    with Pool(system.redis.url) as pool, pytest.raises(Refused, match="only signed requests") as no:
        pool.acquire("acme")
    assert no.value.reason == "invalid"


def test_a_celery_app_is_served_by_the_recipe_in_the_documentation(system: System) -> None:
    namespace: dict[str, Any] = {}
    exec(recipe(), namespace)
    app = Celery("service", broker=system.redis.url, backend=system.redis.url, set_as_current=False)
    try:
        ask, key = namespace["ask"], key_of("acme").text
        granted = ask(app, key, "pool.acquire", org="acme", wait_s=20).get(timeout=PATIENCE_S)
        assert granted["outcome"] == "granted", granted
        renewed = ask(app, key, "pool.renew", claim_ids=[granted["claim_id"]]).get(timeout=PATIENCE_S)
        assert set(renewed["renewed"]) == {granted["claim_id"]}
        released = ask(app, key, "pool.release", claim_id=granted["claim_id"])
        assert released.get(timeout=PATIENCE_S) == {"outcome": "released"}
    finally:
        app.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forged:
    """A message that was signed correctly, and a change to it."""

    message: Message
    signature: str | None
    address: str = ""


ACME = key_of("acme")
# A change to a message, given its sender, the message, and a claim of its org; and the text of the
# refusal.
WRONGS: dict[str, tuple[str, Callable[[SignedCaller, Message, str], Forged]]] = {
    "unsigned": ("signature is missing", lambda _, m, __: Forged(message=m, signature=None)),
    "nonsense": ("malformed", lambda _, m, __: Forged(message=m, signature="1:acme:nonsense")),
    "another org's key": (
        "does not match",
        lambda c, m, _: Forged(message=m, signature=c.signature(m, replace(key_of("bolt"), org="acme"))),
    ),
    "another org in the signature": (
        "does not match",
        lambda c, m, _: Forged(message=m, signature=c.signature(m, ACME).replace(":acme:", ":bolt:")),
    ),
    "another org in the argument": ("org must be 'acme'", lambda c, m, _: signed_for(c, m, org="bolt")),
    "altered": (
        "does not match",
        lambda c, m, _: Forged(
            message=replace(m, kwargs={**m.kwargs, "lease_s": 3600}), signature=c.signature(m, ACME)
        ),
    ),
    "re-labelled": ("does not match", lambda c, _, claim: relabelled(c, claim)),
    "another id": (
        "does not match",
        lambda c, m, _: Forged(message=replace(m, task_id="another"), signature=c.signature(m, ACME)),
    ),
    "another address": (
        "does not match",
        lambda c, m, _: Forged(
            message=replace(m, reply_to=f"{c.address}.stolen"),
            signature=c.signature(m, ACME),
            address=f"{c.address}.stolen",
        ),
    ),
    "expired": (
        "has expired",
        lambda c, m, _: Forged(message=m, signature=c.signature(m, ACME, valid_s=-1)),
    ),
    "lasting": (
        "valid for longer",
        lambda c, m, _: Forged(message=m, signature=c.signature(m, ACME, valid_s=10_000)),
    ),
    "a version that was never given": (
        "not accepted",
        lambda c, m, _: Forged(message=m, signature=c.signature(m, key_of("acme", 2))),
    ),
}


def signed_for(caller: SignedCaller, message: Message, **arguments: Any) -> Forged:
    changed = replace(message, kwargs={**message.kwargs, **arguments})
    return Forged(message=changed, signature=caller.signature(changed, ACME))


def relabelled(caller: SignedCaller, claim: str) -> Forged:
    """A signature of a harmless task on one that ends a claim, with the same arguments."""
    release = caller.message("pool.release", {"claim_id": claim})
    return Forged(message=release, signature=caller.signature(replace(release, task="pool.renew"), ACME))


@pytest.mark.parametrize("wrong", WRONGS)
def test_forged_altered_expired_or_relabelled_requests_are_refused_journalled_and_change_nothing(
    system: System, caller: SignedCaller, wrong: str
) -> None:
    words, forge = WRONGS[wrong]
    held = caller.granted("acme")
    asked = caller.message("pool.acquire", {"org": "acme", "request_id": RandomIds().request()})
    forged = forge(caller, asked, held["claim_id"])
    with refused_and_nothing_else(system, words):
        caller.push(forged.message, forged.signature)
        answer = caller.answer(forged.address)
        assert (answer["outcome"], answer["reason"]) == ("refused", "invalid"), answer
        assert words in answer["detail"]
    assert caller.ask("pool.release", ACME, claim_id=held["claim_id"]) == {"outcome": "released"}


def test_refusals_are_counted(system: System, caller: SignedCaller) -> None:
    def counted() -> float:
        with urlopen(f"http://127.0.0.1:{system.metrics_ports['acquire']}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        name = 'warmpool_requests_unproven_total{trouble="unsigned"}'
        return next(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = counted()
    caller.push(caller.message("pool.cancel", {"org": "acme", "request_id": "x"}), None)
    caller.answer()
    assert counted() == before + 1


def test_a_replay_is_refused_and_changes_nothing(system: System, caller: SignedCaller) -> None:
    acme = key_of("acme")
    message = caller.message("pool.acquire", {"org": "acme", "request_id": RandomIds().request()})
    raw = caller.push(message, caller.signature(message, acme))
    granted = caller.answer()
    assert granted["outcome"] == "granted", granted
    eventually(lambda: caller.redis.exists(f"warmpool.nonce.acme:{nonce_of(raw)}"), within_s=5)
    with refused_and_nothing_else(system, "already used"):
        caller.redis.lpush("acquire", raw)
        assert caller.answer()["reason"] == "invalid"
    renewal = caller.message("pool.renew", {"claim_ids": [granted["claim_id"]]})
    again = caller.push(renewal, caller.signature(renewal, acme))
    assert granted["claim_id"] in caller.answer()["renewed"]
    with refused_and_nothing_else(system, "already used"):
        caller.redis.lpush("acquire", again)
        assert caller.answer()["reason"] == "invalid"
    assert caller.ask("pool.release", acme, claim_id=granted["claim_id"]) == {"outcome": "released"}
    with refused_and_nothing_else(system, "already used"):
        caller.redis.lpush("acquire", raw, again)
        assert [caller.answer()["reason"] for _ in range(2)] == ["invalid", "invalid"]


def test_after_the_nonces_are_lost_a_replay_grants_nothing_twice(
    system: System, caller: SignedCaller
) -> None:
    acme = key_of("acme")
    message = caller.message("pool.acquire", {"org": "acme", "request_id": RandomIds().request()})
    raw = caller.push(message, caller.signature(message, acme))
    granted = caller.answer()
    spent = f"warmpool.nonce.acme:{nonce_of(raw)}"
    eventually(lambda: caller.redis.delete(spent), within_s=PATIENCE_S)
    caller.redis.lpush("acquire", raw)
    assert caller.answer() == granted
    eventually(lambda: caller.redis.delete(spent), within_s=PATIENCE_S)
    caller.ask("pool.release", acme, claim_id=granted["claim_id"])
    claims = count(system, schema.claims)
    caller.redis.lpush("acquire", raw)
    assert caller.answer()["reason"] == "request_spent"
    assert count(system, schema.claims) == claims


def test_the_copy_of_a_result_does_not_take_the_place_of_the_answer(
    system: System, caller: SignedCaller
) -> None:
    message = caller.message("pool.cancel", {"org": "acme", "request_id": "none"}, reply_to="not-a-list")
    result = f"celery-task-meta-{message.task_id}"
    raw = caller.push(message, caller.signature(message, key_of("acme")))
    eventually(lambda: caller.redis.exists(result), within_s=PATIENCE_S)
    eventually(lambda: caller.redis.exists(f"warmpool.nonce.acme:{nonce_of(raw)}"), within_s=5)
    answered = caller.redis.get(result)
    with refused_and_nothing_else(system, "already used"):
        caller.redis.lpush("acquire", raw)
    assert caller.redis.get(result) == answered
    assert json.loads(answered or b"")["result"] == {"outcome": "unknown_request"}


def test_the_copy_of_a_request_that_waits_takes_nothing_from_it(system: System, caller: SignedCaller) -> None:
    acme = key_of("capped")
    with system.store.write() as tx:
        orgs.seed(tx, OrgId("capped"), OrgDefaults(cap=1))
    first = caller.granted("capped")
    message = caller.message(
        "pool.acquire", {"org": "capped", "request_id": RandomIds().request(), "wait_s": 60}
    )
    raw = caller.push(message, caller.signature(message, acme))
    eventually(lambda: caller.redis.exists(f"warmpool.nonce.capped:{nonce_of(raw)}"), within_s=PATIENCE_S)
    with refused_and_nothing_else(system, "already used"):
        caller.redis.lpush("acquire", raw)
    assert caller.nothing_came()
    other = SignedCaller(system)
    assert other.ask("pool.release", acme, claim_id=first["claim_id"]) == {"outcome": "released"}
    other.close()
    second = caller.answer()
    assert second["outcome"] == "granted", second
    assert caller.nothing_came()
    assert caller.ask("pool.release", acme, claim_id=second["claim_id"]) == {"outcome": "released"}


def test_an_unanswered_message_is_answered_when_it_is_redelivered(
    system: System, caller: SignedCaller
) -> None:
    """The worker is killed while it has a signed message; the broker delivers the same message
    again, with its signature.
    """
    message = caller.message("pool.cancel", {"org": "acme", "request_id": "none"}, reply_to="not-a-list")
    raw = ""
    with system.store.engine.connect() as locked:
        locked.exec_driver_sql("LOCK TABLE requests IN ACCESS EXCLUSIVE MODE")
        raw = caller.push(message, caller.signature(message, key_of("acme")))
        eventually(lambda: not caller.redis.llen("acquire") and caller.redis.hlen(TAKEN_KEY), within_s=10)
        system["acquire"].kill()
        locked.rollback()
    caller.redis.delete(TAKEN_KEY, TAKEN_SINCE_KEY)
    system.mend()
    caller.redis.lpush("acquire", raw)
    result = f"celery-task-meta-{message.task_id}"
    eventually(lambda: caller.redis.exists(result), within_s=PATIENCE_S)
    assert json.loads(caller.redis.get(result) or b"")["result"] == {"outcome": "unknown_request"}


def test_an_org_cannot_renew_release_or_cancel_claims_of_another_org(
    system: System, caller: SignedCaller
) -> None:
    acme, bolt = key_of("acme"), key_of("bolt")
    held = caller.granted("acme", request_id=RandomIds().request())
    mine = caller.granted("bolt")
    claim, before = held["claim_id"], written(system)
    assert caller.ask("pool.renew", bolt, claim_ids=[claim]) == {
        "renewed": {},
        "gone": {claim: "unknown_claim"},
    }
    for condition in ("clean", "tainted"):
        answer = caller.ask("pool.release", bolt, claim_id=claim, condition=condition)
        assert answer == {"outcome": "unknown_claim"}
    assert caller.ask("pool.cancel", bolt, request_id="x") == {"outcome": "unknown_request"}
    with refused_and_nothing_else(system, "org must be"):
        assert caller.ask("pool.cancel", bolt, org="acme", request_id="x")["reason"] == "invalid"
    assert written(system) == before
    # Both at once: each gets its own answer.
    both = caller.ask("pool.renew", bolt, claim_ids=[claim, mine["claim_id"]])
    assert (set(both["renewed"]), both["gone"]) == ({mine["claim_id"]}, {claim: "unknown_claim"})
    for key, expected in ((bolt, "unknown_claim"), (acme, "released")):
        message = caller.message("pool.release", {"claim_id": claim})
        caller.push(message, caller.signature(message, key))
        assert caller.answer() == {"outcome": expected}
    assert caller.ask("pool.release", bolt, claim_id=mine["claim_id"]) == {"outcome": "released"}


def test_the_org_may_be_omitted_because_the_key_names_it(system: System, caller: SignedCaller) -> None:
    answer = caller.ask("pool.acquire", key_of("acme"), wait_s=20)
    assert answer["outcome"] == "granted", answer
    assert answer["claim_id"] in system.live_claims(org="acme")
    caller.ask("pool.release", key_of("acme"), claim_id=answer["claim_id"])


def test_an_old_key_is_accepted_during_the_overlap_and_no_longer(
    system: System, caller: SignedCaller
) -> None:
    system.command("org", "set", "turning")
    first, second = key_of("turning"), key_of("turning", 2)
    assert caller.ask("pool.cancel", first, request_id="x")["outcome"] == "unknown_request"
    printed = system.command("org", "change-key", "turning", "--overlap", "60", "--why", "a leaver")
    assert printed.strip() == second.text
    with system.store.read() as tx:
        changed = audit.of(tx, "org turning")[-1]
    assert (changed.what, "a leaver" in changed.why) == ("org_key_changed", True)

    def honoured(version: int) -> bool:
        answer = caller.ask("pool.cancel", key_of("turning", version), request_id="x")
        return bool(answer["outcome"] != "refused")

    eventually(lambda: honoured(2), within_s=KNOWN_WITHIN_S, every_s=0.3)
    assert honoured(1)
    assert not honoured(3)
    system.shift_clock(61)
    eventually(lambda: not honoured(1), within_s=KNOWN_WITHIN_S, every_s=0.3)
    assert honoured(2)
    system.command("org", "change-key", "turning", "--overlap", "0")
    eventually(lambda: honoured(3) and not honoured(2), within_s=KNOWN_WITHIN_S, every_s=0.3)
    assert "not accepted" in refusals(system)[-1].why or "more like" in refusals(system)[-1].why


def test_a_caller_cannot_have_an_internal_task_sent_as_its_follower(
    system: System, caller: SignedCaller
) -> None:
    """It would be sent with the permissions of the acquire worker, to queues that its sender may
    not write.
    """
    follower = {"task": "pool.reap", "args": [], "kwargs": {}, "options": {"queue": "passes"}, "immutable": True,
                "subtask_type": None}  # fmt: skip
    for word in ("callbacks", "errbacks", "chain", "chord"):
        message = caller.message("pool.cancel", {"org": "acme", "request_id": "none"})
        envelope = json.loads(message.encoded("tag", {HEADER: caller.signature(message, key_of("acme"))}))
        body = [[], dict(message.kwargs), {word: follower if word == "chord" else [follower]}]
        envelope["body"], envelope["properties"]["body_encoding"] = json.dumps(body), None
        if word == "chord":
            envelope["headers"]["group"] = "g"
        caller.redis.lpush("acquire", json.dumps(envelope))
        answer = caller.answer()
        assert (answer["outcome"], answer["reason"]) == ("refused", "invalid"), answer
        assert answer["detail"].startswith("link: ")
    assert not [m for m in caller.redis.lrange("passes", 0, -1) if b"pool.reap" in m]


def test_a_revoke_cancels_no_signed_request(system: System, caller: SignedCaller) -> None:
    """It proves no org. Its repetition is sent, and answered, after the first one was carried out."""
    system.command("org", "set", "narrow", "--cap", "1")
    held = caller.granted("narrow")
    message = caller.message("pool.acquire", {"org": "narrow", "wait_s": 60})
    caller.push(message, caller.signature(message, key_of("narrow")))
    open_ = select(schema.requests.c.state).where(schema.requests.c.request_id == message.task_id)

    def state() -> str | None:
        with system.store.read() as tx:
            found: str | None = tx.execute(open_).scalar_one_or_none()
        return found

    eventually(lambda: state() == "waiting")
    app = Celery("service", broker=system.redis.url, backend=system.redis.url, set_as_current=False)
    try:
        for _ in range(2):
            replies = app.control.revoke(message.task_id, reply=True, timeout=2) or []
            assert any(name.startswith("acquire@") for each in replies for name in each), replies
    finally:
        app.close()
    assert state() == "waiting"
    assert caller.ask("pool.cancel", key_of("narrow"), org="narrow", request_id=message.task_id)
    caller.ask("pool.release", key_of("narrow"), claim_id=held["claim_id"])


def test_pickle_and_unknown_content_are_refused_and_end_no_worker(
    system: System, caller: SignedCaller
) -> None:
    pid, before = system["acquire"].pid, count(system, schema.claims)
    message = caller.message("pool.acquire", {"org": "acme", "wait_s": 20})
    whole = json.loads(message.encoded("tag", {HEADER: caller.signature(message, key_of("acme"))}))
    for content in ("application/x-python-serialize", "application/x-yaml", "application/data", "", None):
        caller.redis.lpush("acquire", json.dumps({**whole, "content-type": content}))
    caller.redis.lpush("acquire", b"\x80\x04\x95", "[]")
    assert caller.ask("pool.cancel", key_of("acme"), request_id="x") == {"outcome": "unknown_request"}
    eventually(lambda: not caller.redis.hlen(TAKEN_KEY), within_s=PATIENCE_S)
    assert (system["acquire"].alive(), system["acquire"].pid) == (True, pid)
    assert count(system, schema.claims) == before


@pytest.mark.parametrize("wrong_s", [3600, -3600])
def test_clocks_that_are_an_hour_off_change_no_decision_about_a_signature(
    system: System, caller: SignedCaller, wrong_s: int
) -> None:
    """The acquire worker's clock, then the client's: both use the broker's time."""
    system.skew("acquire", wrong_s)
    held = caller.granted("acme")
    assert caller.ask("pool.release", ACME, claim_id=held["claim_id"]) == {"outcome": "released"}
    message = caller.message("pool.cancel", {"request_id": "x"})
    for valid_s, words in ((-1, "has expired"), (10_000, "valid for longer")):
        caller.push(message, caller.signature(message, ACME, valid_s=valid_s))
        assert words in caller.answer()["detail"]
    client = {**skewed(dict(os.environ), -wrong_s), "WARMPOOL_ORG_KEY": ACME.text}
    printed = system.command("acquire", "--org", "acme", "--wait", "20", "--json", env=client)
    claim = json.loads(printed)["claim_id"]
    assert system.command("release", claim, env=client).strip() == "released"


def nonce_of(raw: str) -> str:
    return str(json.loads(raw)["headers"][HEADER]).split(":")[4]
