"""Callbacks, errbacks, chains, groups and chords of a stock Celery app on the pool's tasks: they run with
the answer, also if it comes later than the message or its process dies, once per answer.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from celery import chain, chord, group
from celery.result import AsyncResult
from sqlalchemy import select, text

from pool.client import Pool
from pool.core.contract import Release
from pool.core.errors import Transient
from pool.core.ids import ClaimId
from pool.core.states import Condition, State
from pool.lifecycle import claiming
from pool.lifecycle.claiming import AcquireCall
from pool.store import schema
from tasks.lane.arguments import parsed
from tasks.lane.exchange import Taken
from tasks.lane.messages import IncomingMessage, read
from tests.integration.test_end_to_end import EventListener
from tests.support.hostile import INTERNAL_TASKS
from tests.support.hostile_draft import follower, hostile_followers
from tests.support.postgres_server import PostgresServer
from tests.support.pushing import Sender, never_sent
from tests.support.shop import RUNS, Shop
from tests.support.standing import Standing
from tests.support.system import EVERYTHING, System
from tests.support.waiting import eventually
from tests.support.world import World, some_settings

WARM = 3
SOON_S = 40.0
SEED = 7

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[System]:
    settings = {
        "pool": {
            "max_workers": WARM + 1,
            "hot_idle_ttl_s": 0,
            "follower_queues": ["celery", "billing", "closed"],
        },
        "profiles": {
            "default": {"warm_target": WARM, "grace_s": 1},
            "bound": {"warm_target": 1, "grace_s": 1, "activation_path": "/activate"},
        },
    }
    folder = tmp_path_factory.mktemp("followed")
    with System(folder, postgres.create_database("followed"), settings=settings, measured=True) as made:
        made.run(*EVERYTHING).wait_idle(WARM)
        yield made


@pytest.fixture(scope="module")
def shop_process(system: System) -> Iterator[Shop]:
    with Shop(system.redis.url) as made:
        yield made


@pytest.fixture
def shop(system: System, shop_process: Shop) -> Iterator[Shop]:
    """A pool with all its workers free, and no runs yet."""
    system.mend()
    system.wait_idle(WARM)
    shop_process.redis.delete(RUNS)
    yield shop_process
    with Pool(system.redis.url, name="test") as pool:
        for claim_id in system.live_claims():
            pool.release(claim_id)


def once(shop: Shop, task: str = "shop.work") -> dict[str, Any]:
    """Return the only run of a task, after a later task of the same worker has run."""
    eventually(lambda: shop.runs(task), within_s=SOON_S)
    assert shop.task("work", {"outcome": "later"}).apply_async().get(timeout=SOON_S) == "later"
    [run] = [run for run in shop.runs(task) if run["got"] != {"outcome": "later"}]
    return run


def all_taken(system: System, shop: Shop) -> list[str]:
    """Take every worker of the default profile, so that the next acquire waits. The pool is full: its
    last place has the worker of the other profile, or a further one that an earlier test asked for.
    """
    eventually(
        lambda: sum(system.count(State.IDLE, profile=name) for name in ("default", "bound")) == WARM + 1,
        within_s=60,
    )
    free = system.count(State.IDLE, profile="default")
    answers = group(shop.sig("acquire", org="other", lease_s=600) for _ in range(free))().get(timeout=SOON_S)
    assert [each["outcome"] for each in answers] == ["granted"] * free, answers
    return [each["claim_id"] for each in answers]


def test_a_chain_goes_on_with_an_answer_that_is_given_at_once(shop: Shop) -> None:
    result = chain(shop.sig("acquire", org="acme", wait_s=30), shop.task("work"))()
    assert result.get(timeout=SOON_S) == "granted"
    run = once(shop)
    assert (run["id"], run["parent"]) == (result.id, result.parent.id)
    assert run["got"] == result.parent.get(timeout=SOON_S)


def test_a_link_without_an_id_gets_one_that_depends_on_the_call_only(shop: Shop) -> None:
    ids = []
    for _ in range(2):
        shop.redis.delete(RUNS)
        given = shop.sig("acquire", org="acme", request_id="same").set(link=[shop.task("work")])
        given.apply_async(task_id="the-same-call").get(timeout=SOON_S)
        ids += [run["id"] for run in eventually(shop.runs, within_s=SOON_S)]
        if len(ids) == 1:
            [mark] = shop.redis.keys("warmpool.followed.the-same-call:c-*")
            shop.redis.delete(mark)
    assert len(ids) == 2
    assert ids[0] == ids[1]


def test_a_refusal_is_an_answer_like_any_other(shop: Shop) -> None:
    sig = shop.sig("acquire", org="acme", profile="no-such-profile")
    sig.set(link=[shop.task("work")], link_error=[shop.task("failed")]).apply_async()
    assert once(shop)["got"]["outcome"] == "refused"
    assert shop.runs("shop.failed") == []


def test_a_chain_goes_on_after_a_wait(system: System, shop: Shop) -> None:
    [first, *_] = all_taken(system, shop)
    result = chain(
        shop.sig("acquire", org="acme", wait_s=60), shop.task("work", more="!").set(queue="billing")
    )()
    _waits(system)
    assert shop.runs() == []
    shop.sig("release", claim_id=first).apply_async().get(timeout=SOON_S)
    assert result.get(timeout=SOON_S) == "granted!"
    assert once(shop)["id"] == result.id


def test_a_chain_goes_on_after_an_activation(shop: Shop) -> None:
    """The answer comes from the process that activates the worker."""
    result = chain(shop.sig("acquire", org="acme", profile="bound", wait_s=60), shop.task("work"))()
    assert result.get(timeout=SOON_S) == "granted"
    assert once(shop)["id"] == result.id


def test_a_chain_goes_on_after_a_wait_that_ends_in_a_refusal(system: System, shop: Shop) -> None:
    all_taken(system, shop)
    result = chain(shop.sig("acquire", org="acme", wait_s=1), shop.task("work"))()
    assert result.get(timeout=SOON_S) == "refused"
    assert once(shop)["got"]["reason"] == "wait_timeout"


def test_a_chain_goes_on_once_if_the_process_that_took_its_call_is_killed(system: System, shop: Shop) -> None:
    [first, *_] = all_taken(system, shop)
    result = chain(shop.sig("acquire", org="acme", wait_s=120), shop.task("work"))()
    _waits(system)
    system["acquire"].kill()
    system.mend()
    shop.sig("release", claim_id=first).apply_async()
    assert result.get(timeout=SOON_S) == "granted"
    assert once(shop)["id"] == result.id


def test_a_chain_goes_on_once_if_the_deciding_process_is_killed_before_it_answers(
    system: System, shop: Shop
) -> None:
    [first, *_] = all_taken(system, shop)
    result = chain(shop.sig("acquire", org="acme", wait_s=120), shop.task("work"))()
    _waits(system)
    release = Release(claim_id=ClaimId(first), condition=Condition.CLEAN)
    claiming.serve(_a_killed_process(system).deps, [release])
    assert result.get(timeout=SOON_S) == "granted"
    assert once(shop)["id"] == result.id


def test_a_message_whose_process_was_killed_before_its_answer_is_followed_once(
    system: System, shop: Shop
) -> None:
    """Its answer is delivered from the table; the message is delivered again, then twice."""
    acquire = shop.sig("acquire", org="acme", lease_s=600).set(queue="elsewhere")
    result = chain(acquire, shop.task("work"))()
    raw = str(shop.redis.lpop("elsewhere"))
    message = read(raw.encode(), 100_000)
    assert isinstance(message, IncomingMessage)
    call = parsed(Taken(message=message))
    assert isinstance(call, AcquireCall)
    with contextlib.suppress(Transient):  # it has not the key to answer with
        claiming.serve(_a_killed_process(system).deps, [call])
    assert result.get(timeout=SOON_S) == "granted"
    once(shop)
    for _ in range(2):
        shop.redis.lpush("acquire", raw)
        shop.sig("cancel", org="acme", request_id="none").apply_async().get(timeout=SOON_S)
    assert once(shop)["id"] == result.id


def _a_killed_process(system: System) -> World:
    """What it commits has no effects: as of a process that was killed there."""
    return World(system.store, some_settings(max_workers=WARM + 1, hot_idle_ttl_max_s=3600))


def test_the_body_of_a_chord_of_two_acquires_gets_both_answers_in_order(system: System, shop: Shop) -> None:
    header = [shop.sig("acquire", org=org, lease_s=600) for org in ("acme", "bolt")]
    result = chord(header, shop.task("total"))()
    assert result.get(timeout=SOON_S) == ["granted", "granted"]
    run = once(shop, "shop.total")
    assert [each["claim_id"] for each in run["got"]] == [
        system_claim(system, org) for org in ("acme", "bolt")
    ]
    left: Any = shop.redis.keys("celery-taskset-meta-*.[js]")
    assert left == []


def system_claim(system: System, org: str) -> str:
    [claim_id] = system.live_claims(org=org)
    return claim_id


def test_a_chord_may_mix_acquires_that_wait_and_tasks_of_the_service(system: System, shop: Shop) -> None:
    [first, *_] = all_taken(system, shop)
    header = [shop.sig("acquire", org="acme", wait_s=60), shop.task("work", {"outcome": "own"})]
    result = chord(header, chain(shop.task("total"), shop.task("work")))()
    _waits(system)
    shop.sig("release", claim_id=first).apply_async()
    assert result.get(timeout=SOON_S) == "several"
    assert [each if isinstance(each, str) else each["outcome"] for each in once(shop, "shop.total")["got"]] == [
        "granted", "own",
    ]  # fmt: skip


def test_results_of_a_group_are_readable(system: System, shop: Shop) -> None:
    found = group(shop.sig("acquire", org="acme"), shop.sig("cancel", org="acme", request_id="x"))()
    assert [each["outcome"] for each in found.get(timeout=SOON_S)] == ["granted", "unknown_request"]


def test_a_chain_may_go_on_with_a_group_or_a_chord(shop: Shop) -> None:
    found = chain(shop.sig("acquire", org="acme"), group(shop.task("work"), shop.task("work", more="2")))()
    assert found.get(timeout=SOON_S) == ["granted", "granted2"]
    both = group(shop.task("work"), shop.task("work", more="2"))
    found = chain(shop.sig("acquire", org="acme"), both, shop.task("total"))()
    assert found.get(timeout=SOON_S) == ["granted", "granted2"]


def test_a_nested_group_keeps_its_shape_in_the_results_of_a_chord(shop: Shop) -> None:
    """As the service's own tasks do."""

    def shape(one: Any) -> Any:
        shop.redis.delete(RUNS)
        header = [group(one, one.clone()), chain(one.clone(), one.clone())]
        chord(header, shop.task("total"))().get(timeout=SOON_S)
        return json.loads(
            json.dumps(once(shop, "shop.total")["got"]).replace('{"outcome": "unknown_request"}', "1")
        )

    own = shape(shop.task("work", {"outcome": "own"}).set(immutable=True))
    pools = shape(shop.sig("cancel", org="acme", request_id="x").set(immutable=True))
    assert json.loads(json.dumps(own).replace('"own"', "1")) == pools


def test_caller_tasks_in_a_chain_go_through_the_same_entry(system: System, shop: Shop) -> None:
    claim = shop.sig("acquire", org="acme", lease_s=600).apply_async().get(timeout=SOON_S)["claim_id"]
    release = shop.app.signature(
        "pool.release", kwargs={"claim_id": claim}, immutable=True, queue="elsewhere"
    )
    renew = shop.app.signature("pool.renew", kwargs={"claim_ids": [claim]}, immutable=True)
    result = chain(shop.sig("cancel", org="acme", request_id="x"), renew, release, shop.task("work"))()
    assert result.get(timeout=SOON_S) == "released"
    assert system.live_claims(org="acme") == []


def test_a_failed_call_runs_its_errback_and_ends_its_chain(system: System, shop: Shop) -> None:
    sig = shop.sig("acquire", org="acme", wait_s=0)
    with system.store.write() as tx:  # the function fails until it is as it was
        tx.execute(text("ALTER TABLE requests RENAME COLUMN profile TO renamed"))
    try:
        result: Any = chain(sig, shop.task("work")).apply_async(link_error=shop.task("failed"))
        run = eventually(lambda: shop.runs("shop.failed"), within_s=90)[0]
    finally:
        with system.store.write() as tx:
            tx.execute(text("ALTER TABLE requests RENAME COLUMN renamed TO profile"))
    assert run["got"] == result.parent.id
    assert AsyncResult(result.id, app=shop.app).state == "FAILURE"
    assert shop.runs() == []


def test_a_revoked_acquire_that_waits_is_cancelled_and_no_other(system: System, shop: Shop) -> None:
    all_taken(system, shop)
    other = shop.sig("acquire", org="acme", wait_s=600).apply_async()
    given = shop.sig("acquire", org="acme", wait_s=600, request_id="mine").apply_async()
    _waits(system, 2)
    for task in (given, other):
        shop.app.control.revoke([task.id, "unknown", "x" * 300, "\x00"])
        eventually(partial(_is_cancelled, shop, task.id), within_s=SOON_S)
        _waits(system, 1 if task is given else 0)


def test_events_have_the_time_of_receipt_and_the_runtime_of_a_wait(system: System, shop: Shop) -> None:
    [first, *_] = all_taken(system, shop)
    with EventListener(shop.app) as listener:
        waits = shop.sig("acquire", org="acme", wait_s=60).apply_async()
        _waits(system)
        shop.sig("release", claim_id=first).apply_async()
        eventually(partial(listener.succeeded, waits.id), within_s=SOON_S)
    events = {each["type"]: each for each in listener.heard if each.get("uuid") == waits.id}
    received, started, done = (events[f"task-{kind}"] for kind in ("received", "started", "succeeded"))
    assert done["runtime"] > 0
    assert received["timestamp"] <= started["timestamp"] <= done["timestamp"]
    # The database and the acquire worker measure the same span, each with its own clock.
    assert done["runtime"] == pytest.approx(done["timestamp"] - received["timestamp"], abs=2.0)


def test_hostile_followers_are_refused_and_nothing_of_them_is_sent(system: System, shop: Shop) -> None:
    chance, standing = random.Random(SEED), Standing(system)
    with Sender(system) as sender, never_sent(system, "hostile-mark"):
        count = 0
        for number in range(40):
            task = chance.choice(INTERNAL_TASKS)
            for each in hostile_followers(task, chance):
                draft = sender.draft("pool.cancel", org="acme", request_id="none")
                draft.embed[chance.choice(("callbacks", "errbacks", "chain"))] = each
                draft.embed["callbacks"] = [*each, follower("shop.work", task_id=f"hostile-mark-{number}")]
                sender.push(draft)
                count += 1
        valid = sender.draft("pool.cancel", org="acme", request_id="none")
        sender.push(valid)
        answers: list[dict[str, Any]] = []
        while not answers or answers[-1] != {"outcome": "unknown_request"}:
            answers += sender.answers()
    refused = [each for each in answers[:-1] if not each["detail"].startswith("link: ")]
    assert refused == []
    assert len(answers) > count / 2
    standing.assert_stands()
    assert shop.redis.llen("fleet") == shop.redis.llen("passes") == 0


def test_followers_that_redis_refuses_cost_no_other_caller_its_answer(system: System, shop: Shop) -> None:
    """The name of the queue is a key of another type."""
    shop.redis.set("closed", "not a list")
    try:
        with system["acquire"].frozen():
            work = shop.task("work").set(queue="closed")
            sent = [
                shop.sig("cancel", org="acme", request_id="x").set(link=link).apply_async()
                for link in ([], [work], [])
            ]
        answers = [each.get(timeout=SOON_S) for each in sent]
    finally:
        shop.redis.delete("closed")
    assert answers == [{"outcome": "unknown_request"}] * 3


def test_followers_of_one_call_are_sent_although_one_is_refused(shop: Shop) -> None:
    shop.redis.set("closed", "not a list")
    try:
        sig = shop.sig("cancel", org="acme", request_id="x")
        sig.set(link=[shop.task("work").set(queue="closed"), shop.task("work")]).apply_async()
        once(shop)
    finally:
        shop.redis.delete("closed")


def _is_cancelled(shop: Shop, task_id: str) -> bool:
    """Celery marks it as revoked at once; then comes the answer of the pool."""
    meta = json.loads(str(shop.redis.get(f"celery-task-meta-{task_id}") or "{}"))
    return bool(meta.get("status") == "SUCCESS" and meta["result"]["reason"] == "cancelled")


def _waits(system: System, count: int = 1) -> None:
    R = schema.requests

    def open_requests() -> bool:
        with system.store.read() as tx:
            return len(tx.execute(select(R.c.pk).where(R.c.state == "waiting")).all()) == count

    eventually(open_requests, within_s=SOON_S)
