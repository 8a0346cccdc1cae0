"""Races on Postgres, without sleeps: several open transactions in one thread, where the order of lines is the interleaving. What must block
runs in a thread of its own and is seen to be blocked before the others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from sqlalchemy import select, text

from pool import answering, claiming, holding, matching, retiring
from pool.after import After
from pool.contract import Acquire, Granted, Pending, RefusedAnswer, Release
from pool.deps import Deps
from pool.ids import ClaimId, OrgId, ProfileName, WorkerId
from pool.passes import reconcile_warm
from pool.profiles import revision
from pool.records import Claim, ReplyTo
from pool.states import ClaimEnd, Outcome, Reason, State
from pool.store import Store, Tx, claims, orgs, requests, schema, targets, workers
from tests.support.open_store import OpenStore
from tests.support.waiting import eventually
from tests.support.world import World

T = TypeVar("T")
DEFAULT = ProfileName("default")


@pytest.fixture
def world(postgres_store: Store) -> Iterator[World]:
    made = World(postgres_store)
    yield made
    made.check()


def inside(world: World, tx: Tx) -> Deps:
    return replace(world.deps, store=OpenStore(tx))  # type: ignore[arg-type]


def aside(call: Callable[[], T]) -> Future[T]:
    """Run it in a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as exc:  # noqa: BLE001 - the test asks for it
            future.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return future


def blocked(world: World) -> int:
    """How many sessions of this database wait for a lock that another holds."""
    statement = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
    )
    with world.store.read() as tx:
        return int(tx.execute(statement).scalar_one())


def is_blocked(world: World, future: Future[Any], sessions: int = 1) -> None:
    """Returns once it waits for somebody else's lock; fails if it goes through instead."""
    eventually(lambda: future.done() or blocked(world) == sessions)
    assert not future.done(), f"it was not blocked: {future.exception() or future.result()}"


def asked(org: str = "acme", **given: Any) -> Acquire:
    return Acquire.parse({"org": org, "request_id": "r1", **given}, task_id="t", ttl_max_s=600)


def acquire(deps: Deps, org: str = "acme", **given: Any) -> Granted | RefusedAnswer | Pending:
    return claiming.acquire(deps, asked(org, **given), ReplyTo(task_id=f"task-{org}"))


def release(deps: Deps, claim_id: str) -> str:
    return str(claiming.release(deps, Release.parse(claim_id, "clean"))["outcome"])


def live_claims(world: World) -> list[Any]:
    return [c for c in world.rows("claims") if c.ended_at is None]


# Two claimers.


def test_a_worker_that_one_is_taking_is_passed_over_by_the_next(world: World) -> None:
    first, second = world.warm(2)
    with world.store.write() as a, world.store.write() as b, world.store.write() as c:
        assert _id(workers.pick_idle(a, DEFAULT)) == first
        assert _id(workers.pick_idle(b, DEFAULT)) == second
        assert workers.pick_idle(c, DEFAULT) is None


def test_a_parked_worker_that_one_is_taking_is_passed_over_by_the_next(world: World) -> None:
    world.warm(1)
    parked = world.granted("acme")
    world.release(parked.claim_id)
    with world.store.write() as a, world.store.write() as b:
        assert _id(workers.pick_parked(a, OrgId("acme"), DEFAULT)) == parked.worker_id
        assert workers.pick_parked(b, OrgId("acme"), DEFAULT) is None


@pytest.mark.parametrize("warm", [1, 2])
def test_two_acquires_at_once_get_two_workers_or_one_and_a_refusal(world: World, warm: int) -> None:
    world.warm(warm)
    world.org("acme")
    world.org("bolt")
    with world.store.write() as tx:
        mine = acquire(inside(world, tx), "acme")
        theirs = acquire(world.deps, "bolt")
    assert isinstance(mine, Granted)
    if warm == 2:
        assert isinstance(theirs, Granted)
        assert theirs.worker_id != mine.worker_id
    else:
        assert isinstance(theirs, RefusedAnswer)
        assert theirs.reason is Reason.NO_WARM_WORKER


def test_racing_acquires_hold_no_worker_twice(world: World) -> None:
    """Twelve threads for five workers: five grants, five workers, seven refusals."""
    world.warm(5)
    together = threading.Barrier(12)

    def one(number: int) -> Any:
        together.wait(10)
        return acquire(world.deps, f"org-{number}")

    answers = [f.result(30) for f in [aside(lambda n=n: one(n)) for n in range(12)]]
    granted = [a for a in answers if isinstance(a, Granted)]
    assert len(granted) == len({g.worker_id for g in granted}) == 5
    assert all(isinstance(a, RefusedAnswer) for a in answers if a not in granted)


def test_a_cap_of_one_holds_against_two_transactions(world: World) -> None:
    world.warm(2)
    world.org("acme", cap=1)
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx), request_id="r1"), Granted)
        second = aside(lambda: acquire(world.deps, request_id="r2"))
        is_blocked(world, second)
    answer = second.result(10)
    assert isinstance(answer, RefusedAnswer)
    assert answer.reason is Reason.ORG_CAP


# Claim and drain.


def test_a_drain_that_comes_second_finds_the_worker_taken(world: World) -> None:
    (worker,) = world.warm(1)
    world.org("acme")
    idle = world.worker(worker)
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx)), Granted)
        drain = aside(lambda: _drain(world, idle))
        is_blocked(world, drain)
    assert drain.result(10) is Outcome.FENCED
    assert world.state_of(worker) is State.HOT


def test_a_claim_that_comes_second_finds_no_worker(world: World) -> None:
    (worker,) = world.warm(1)
    world.org("acme")
    with world.store.write() as tx:
        assert retiring.drain(tx, After(), world.worker(worker), world.deps.by("test")) is Outcome.MOVED
        answer = acquire(world.deps)
    assert isinstance(answer, RefusedAnswer)
    assert world.state_of(worker) is State.DRAINING


def _drain(world: World, seen: Any) -> Outcome:
    with world.store.write() as tx:
        return retiring.drain(tx, After(), seen, world.deps.by("test"))


# Release, renewal and expiry.


@pytest.fixture
def overdue(world: World) -> Granted:
    """A claim past its lease, with the lane open long enough."""
    world.warm(1)
    granted = world.granted("acme", lease_s=5)
    for _ in range(3):
        world.pass_time(8)
        world.canary()
    with world.store.read() as tx:
        assert [c.id for c in claims.expired(tx, limit=9)] == [granted.claim_id]
    return granted


def _end(tx: Tx, world: World, granted: Granted, why: ClaimEnd) -> Claim | None:
    return holding.end(tx, world.deps, After(), ClaimId(granted.claim_id), why)


def _expire(world: World, granted: Granted) -> Claim | None:
    with world.store.write() as tx:
        return _end(tx, world, granted, ClaimEnd.EXPIRED)


def test_an_expiry_that_comes_second_touches_nothing(world: World, overdue: Granted) -> None:
    with world.store.write() as tx:
        assert release(inside(world, tx), overdue.claim_id) == "released"
        expiry = aside(lambda: _expire(world, overdue))
        is_blocked(world, expiry)
    assert expiry.result(10) is None
    assert world.state_of(overdue.worker_id) is State.HOT_IDLE
    assert [c.ended_why for c in world.rows("claims")] == ["released"]


def test_a_release_that_comes_second_is_told_so(world: World, overdue: Granted) -> None:
    with world.store.write() as tx:
        assert _end(tx, world, overdue, ClaimEnd.EXPIRED) is not None
        second = aside(lambda: release(world.deps, overdue.claim_id))
        is_blocked(world, second)
    assert second.result(10) == "already_released"
    assert world.state_of(overdue.worker_id) is State.DRAINING
    assert [c.ended_why for c in world.rows("claims")] == ["expired"]


def test_a_renewal_in_the_last_moment_saves_the_claim(world: World, overdue: Granted) -> None:
    with world.store.write() as tx:
        assert claims.renew(tx, [ClaimId(overdue.claim_id)])
        expiry = aside(lambda: _expire(world, overdue))
        is_blocked(world, expiry)
    assert expiry.result(10) is None
    assert world.state_of(overdue.worker_id) is State.HOT
    assert len(live_claims(world)) == 1


def test_a_renewal_after_the_expiry_is_told_the_cause(world: World, overdue: Granted) -> None:
    with world.store.write() as tx:
        assert _end(tx, world, overdue, ClaimEnd.EXPIRED) is not None
        renewal = aside(lambda: world.renew(overdue.claim_id))
        is_blocked(world, renewal)
    assert renewal.result(10) == {"renewed": {}, "gone": {overdue.claim_id: "expired"}}


def test_two_renewals_of_the_same_claims_in_other_orders_do_not_deadlock(world: World) -> None:
    world.warm(2)
    ids = [ClaimId(world.granted("acme").claim_id) for _ in range(2)]
    with world.store.write() as tx:
        assert len(claims.renew(tx, ids)) == 2
        second = aside(lambda: world.renew(*reversed(ids)))
        is_blocked(world, second)
    assert second.result(10)["renewed"].keys() == set(ids)


# Supply.


def _two_reconciles(world: World) -> int:
    """Two runs at once, both under way before either has made a slot. How many slots there are in the end. The row that a profile's build has
    makes runs wait for each other, too, but only when it is written, which is seldom: so it is written before."""
    world.profile(warm_target=0)
    reconcile_warm.refill_once(world.deps, DEFAULT)
    with world.store.write() as tx:
        targets.say(tx, DEFAULT, 4, who="test")
    with world.store.write() as holder:
        holder.execute(select(schema.pool).with_for_update())
        runs = [aside(lambda: reconcile_warm.refill_once(world.deps, DEFAULT)) for _ in range(2)]
        eventually(lambda: blocked(world) == 2)
    for run in runs:
        assert run.result(10)["outcome"] == "ok"
    return len(world.workers(State.SPAWNING))


def test_reconciles_that_overlap_make_as_many_slots_as_one_would(world: World) -> None:
    assert _two_reconciles(world) == 4


def test_without_their_lock_overlapping_reconciles_would_make_twice_as_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: this is what it would see."""
    monkeypatch.setattr(reconcile_warm, "lock_reconcile", _no_lock)
    assert _two_reconciles(world) == 8


def test_a_miss_is_consumed_by_one_of_two_reconciles(world: World) -> None:
    world.profile(warm_target=0)
    world.refused("acme")
    with world.store.write() as tx:
        reconcile_warm.refill_once(inside(world, tx), DEFAULT)
        second = aside(lambda: reconcile_warm.refill_once(world.deps, DEFAULT))
        is_blocked(world, second)
    second.result(10)
    assert len(world.workers(State.SPAWNING)) == 1


# One request, raced.


@pytest.mark.parametrize("wait_s", [0, 30])
def test_the_same_request_raced_gives_one_claim(world: World, wait_s: int) -> None:
    world.warm(2)
    world.org("acme")
    with world.store.write() as tx:
        first = acquire(inside(world, tx), wait_s=wait_s)
        raced = aside(lambda: acquire(world.deps, wait_s=wait_s))
        is_blocked(world, raced)
    second = raced.result(10)
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.as_dict() == first.as_dict()
    assert len(live_claims(world)) == len(world.rows("requests")) == 1


def test_the_same_request_raced_on_the_general_path_gives_one_claim(world: World) -> None:
    world.configure(protect_before_grant=True)
    world.warm(2)
    world.org("acme")
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx)), Pending)
        raced = aside(lambda: acquire(world.deps))
        is_blocked(world, raced)
    assert isinstance(raced.result(10), Pending)
    assert len(live_claims(world)) == len(world.rows("requests")) == 1


def test_a_request_whose_first_delivery_came_to_nothing_is_granted_to_the_second(world: World) -> None:
    world.warm(1)
    world.org("acme")
    with world.store.engine.connect() as tx:
        assert isinstance(acquire(inside(world, tx)), Granted)
        raced = aside(lambda: acquire(world.deps))
        is_blocked(world, raced)
        tx.rollback()
    assert isinstance(raced.result(10), Granted)
    assert len(live_claims(world)) == 1


# No lost wake-up.


@pytest.fixture
def busy(world: World) -> Granted:
    """One worker, held by acme; nobody waits."""
    world.profile(warm_target=0)
    world.warm(1)
    return world.granted("acme", request_id="before")


def _is_served(world: World) -> bool:
    """Whether the waiter has the worker, rather than both being left alone with each other."""
    (request,) = [r for r in world.rows("requests") if r.request_id == "r1"]
    (worker,) = world.workers()
    assert (request.state, worker.state) in {("granted", State.HOT), ("waiting", State.HOT_IDLE)}
    return bool(request.state == "granted")


def test_a_waiter_that_comes_while_a_worker_is_being_released_gets_it(world: World, busy: Granted) -> None:
    """The release has looked for waiters and seen none; the waiter may not look for workers before that is committed."""
    with world.store.write() as tx:
        assert release(inside(world, tx), busy.claim_id) == "released"
        waiter = aside(lambda: acquire(world.deps, wait_s=30))
        is_blocked(world, waiter)
    assert isinstance(waiter.result(10), Granted)
    assert _is_served(world)


def test_a_release_that_comes_while_a_waiter_is_sitting_down_serves_it(world: World, busy: Granted) -> None:
    """The waiter has looked for workers and seen none; the release may not look for waiters before that is committed."""
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx), wait_s=30), Pending)
        freed = aside(lambda: release(world.deps, busy.claim_id))
        is_blocked(world, freed)
    assert freed.result(10) == "released"
    assert _is_served(world)
    assert len(world.broker.answers_for("task-acme")) == 1


def test_without_the_waiters_lock_the_wake_up_would_be_lost(
    world: World, busy: Granted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above can fail: this is what they would see, until the next reconcile repairs it."""
    monkeypatch.setattr(claiming, "lock_profile", _no_lock)
    with world.store.write() as tx:
        release(inside(world, tx), busy.claim_id)
        assert isinstance(acquire(world.deps, wait_s=30), Pending)
    assert not _is_served(world)
    world.run_pass("reconcile_warm")
    assert _is_served(world)


def test_without_the_releasers_lock_the_wake_up_would_be_lost(
    world: World, busy: Granted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "lock_profile_shared", _no_lock)
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx), wait_s=30), Pending)
        release(world.deps, busy.claim_id)
    assert not _is_served(world)
    world.run_pass("reconcile_warm")
    assert _is_served(world)


def test_a_refused_acquire_does_not_hide_a_worker_from_a_waiter(world: World) -> None:
    """An org at its cap is refused: the idle worker that it could not have is there for whoever sits down meanwhile."""
    world.org("capped", cap=1)
    world.org("acme")
    world.warm(2)
    world.granted("capped")
    with world.store.write() as tx:
        refusal = acquire(inside(world, tx), "capped")
        waiter = acquire(world.deps, "acme", wait_s=30)
    assert isinstance(refusal, RefusedAnswer)
    assert refusal.reason is Reason.ORG_CAP
    assert isinstance(waiter, Granted)


def test_releases_of_one_profile_do_not_wait_for_each_other(world: World) -> None:
    world.warm(2)
    one, other = world.granted("acme"), world.granted("bolt")
    with world.store.write() as tx:
        assert release(inside(world, tx), one.claim_id) == "released"
        assert release(world.deps, other.claim_id) == "released"


def test_waiters_of_another_profile_are_not_held_up(world: World, busy: Granted) -> None:
    world.profile("big")
    with world.store.write() as tx:
        release(inside(world, tx), busy.claim_id)
        assert isinstance(acquire(world.deps, wait_s=30, profile="big"), Pending)


def test_a_worker_that_becomes_ready_while_a_waiter_is_sitting_down_is_his(world: World) -> None:
    world.profile(warm_target=1)
    world.run_pass("reconcile_warm")
    world.deliver("pool.spawn")
    (slot,) = world.workers(State.SPAWNING)
    world.org("acme")
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx), wait_s=30), Pending)
        world.driver.become_ready(slot.id)
        ready = aside(world.observe)
        is_blocked(world, ready)
    ready.result(10)
    assert _is_served(world)


def test_a_waiter_that_one_is_serving_is_passed_over_by_the_next(world: World) -> None:
    """Two workers freed at once serve two waiters, never one twice."""
    world.waits("acme", request_id="first")
    world.waits("acme", request_id="second")
    with world.store.write() as a, world.store.write() as b, world.store.write() as c:
        served = [requests.next_of(tx, DEFAULT, OrgId("acme")) for tx in (a, b, c)]
    assert [r.request_id if r else None for r in served] == ["first", "second", None]


def test_two_matchers_at_once_give_a_waiter_one_worker(world: World) -> None:
    world.waits("acme")
    with world.store.write() as tx:
        slots = _ready_behind_the_pools_back(world, 2)
        first, second = After(), After()
        assert matching.match(tx, world.deps, first, DEFAULT) == 1
        with world.store.write() as other:
            assert matching.match(other, world.deps, second, DEFAULT) == 0
    answering.carry_out(world.deps, first)
    assert len(live_claims(world)) == 1
    assert sorted(world.state_of(s) for s in slots) == [State.HOT, State.IDLE]


def _ready_behind_the_pools_back(world: World, count: int) -> list[WorkerId]:
    """Idle workers that were not offered to anybody."""
    with world.store.write() as tx:
        ids = [world.deps.ids.worker() for _ in range(count)]
        orgs.take_slots(tx, count, 0)
        profile = world.deps.settings.profiles["default"]
        workers.insert_slots(tx, profile, revision(profile), ids, world.deps.by("test"))
        for worker_id in ids:
            slot = workers.get(tx, worker_id)
            assert slot is not None
            workers.ready(
                tx, slot, workers.PodFacts(uid=f"u-{worker_id}", endpoint="http://x"), world.deps.by("t")
            )
    return ids


def _no_lock(_tx: Tx, _profile: str) -> None:
    """What would be if the lock were forgotten."""


def _id(seen: Any) -> str | None:
    return None if seen is None else str(seen.id)


def test_a_matcher_that_has_nothing_for_a_waiter_does_not_hide_him_from_one_who_has(world: World) -> None:
    """Two releases at once: what the first one frees is kept for its own org, what the second one frees is the waiter's."""
    world.warm(2)
    other, own = world.granted("bolt"), world.granted("acme")
    world.waits("acme", request_id="waiter")
    with world.store.write() as tx:
        assert release(inside(world, tx), other.claim_id) == "released"
        assert release(world.deps, own.claim_id) == "released"
    (waiter,) = [r for r in world.rows("requests") if r.request_id == "waiter"]
    assert waiter.state == "granted"
