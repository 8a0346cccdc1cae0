"""Races on Postgres without sleeps: several open transactions in one thread, where the order of
lines is the interleaving. A call that must block runs in its own thread and is checked to be
blocked before the others continue.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, text

from pool.core.contract import Acquire, Granted, Pending, RefusedAnswer, Release, Renew
from pool.core.ids import ClaimId, ProfileName, WorkerId
from pool.core.profiles import revision
from pool.core.records import ReplyTo
from pool.core.states import ClaimEnd, MoveReason, Outcome, Reason, State
from pool.lifecycle import claiming, effects, retiring
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import Effects
from pool.passes import reconcile_warm
from pool.store import Store, Tx, claims, orgs, rules, schema, targets, workers
from tests.support.broken_rule import broken_rule
from tests.support.open_store import OpenStore
from tests.support.racing import aside, blocked, is_blocked
from tests.support.waiting import eventually
from tests.support.world import World

DEFAULT = ProfileName("default")


@pytest.fixture
def world(store: Store) -> Iterator[World]:
    made = World(store)
    yield made
    made.check()


def inside(world: World, tx: Tx) -> Deps:
    return replace(world.deps, store=OpenStore(tx))  # type: ignore[arg-type]


def asked(org: str = "acme", **given: Any) -> Acquire:
    return Acquire.parse({"org": org, "request_id": "r1", **given}, task_id="t")


def acquire(deps: Deps, org: str = "acme", **given: Any) -> Granted | RefusedAnswer | Pending:
    return claiming.acquire(deps, asked(org, **given), ReplyTo(task_id=f"task-{org}"))


def release(deps: Deps, claim_id: str) -> str:
    return str(claiming.release(deps, Release.parse(claim_id, "clean"))["outcome"])


def live_claims(world: World) -> list[Any]:
    return [c for c in world.rows("claims") if c.ended_at is None]


# Two claimers.


def test_a_worker_locked_by_one_claim_is_skipped_by_the_next(world: World) -> None:
    first, second = world.warm(2)
    with world.store.write() as a, world.store.write() as b, world.store.write() as c:
        assert [_picked(tx, "warm('default', 1)") for tx in (a, b, c)] == [first, second, None]


def test_a_parked_worker_locked_by_one_claim_is_skipped_by_the_next(world: World) -> None:
    world.warm(1)
    parked = world.granted("acme")
    world.release(parked.claim_id)
    with world.store.write() as a, world.store.write() as b:
        assert [_picked(tx, "parked('acme', 'default', 1)") for tx in (a, b)] == [parked.worker_id, None]


def _picked(tx: Tx, pick: str) -> str | None:
    found: str | None = tx.execute(
        text(rules.qualified(f"SELECT w.id FROM unnest(warmpool_pick_{pick}) w"))
    ).scalar_one_or_none()
    return found


@pytest.mark.parametrize("warm", [1, 2])
def test_two_concurrent_acquires_get_two_workers_or_one_and_a_refusal(world: World, warm: int) -> None:
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

    answers = [f.result(30) for f in [aside(partial(one, n)) for n in range(12)]]
    granted = [a for a in answers if isinstance(a, Granted)]
    assert len(granted) == len({g.worker_id for g in granted}) == 5
    assert all(isinstance(a, RefusedAnswer) for a in answers if a not in granted)


def test_a_cap_of_one_holds_against_two_transactions(world: World) -> None:
    world.warm(2)
    world.org("acme", cap=1)
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx), request_id="r1"), Granted)
        second = aside(lambda: acquire(world.deps, request_id="r2"))
        is_blocked(world.store, second)
    answer = second.result(10)
    assert isinstance(answer, RefusedAnswer)
    assert answer.reason is Reason.ORG_CAP


# Claim and drain.


def test_a_drain_after_a_claim_finds_the_worker_claimed(world: World) -> None:
    (worker,) = world.warm(1)
    world.org("acme")
    idle = world.worker(worker)
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx)), Granted)
        drain = aside(lambda: _drain(world, idle))
        is_blocked(world.store, drain)
    assert drain.result(10) is Outcome.FENCED
    assert world.state_of(worker) is State.HOT


def test_a_claim_after_a_drain_finds_no_worker(world: World) -> None:
    (worker,) = world.warm(1)
    world.org("acme")
    with world.store.write() as tx:
        assert (
            retiring.drain(tx, Effects(), world.worker(worker), world.deps.by(MoveReason.SURPLUS))
            is Outcome.MOVED
        )
        answer = acquire(world.deps)
    assert isinstance(answer, RefusedAnswer)
    assert world.state_of(worker) is State.DRAINING


def _drain(world: World, seen: Any) -> Outcome:
    with world.store.write() as tx:
        return retiring.drain(tx, Effects(), seen, world.deps.by(MoveReason.SURPLUS))


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


def _end(tx: Tx, world: World, granted: Granted, why: ClaimEnd) -> dict[str, Any] | None:
    by = world.deps.by(MoveReason.LEASE_EXPIRED)
    return claims.end(tx, world.deps.rule_argument(), ClaimId(granted.claim_id), why, by)


def _expire(world: World, granted: Granted) -> dict[str, Any] | None:
    with world.store.write() as tx:
        return _end(tx, world, granted, ClaimEnd.EXPIRED)


def _renew(tx: Tx, world: World, ids: Sequence[ClaimId]) -> dict[str, str]:
    renewed: dict[str, str] = claiming.renew(inside(world, tx), Renew(claim_ids=tuple(ids)))["renewed"]
    return renewed


def test_an_expiry_after_a_release_changes_nothing(world: World, overdue: Granted) -> None:
    with world.store.write() as tx:
        assert release(inside(world, tx), overdue.claim_id) == "released"
        expiry = aside(lambda: _expire(world, overdue))
        is_blocked(world.store, expiry)
    assert expiry.result(10) is None
    assert world.state_of(overdue.worker_id) is State.HOT_IDLE
    assert [c.ended_why for c in world.rows("claims")] == ["released"]


def test_a_release_after_an_expiry_returns_already_released(world: World, overdue: Granted) -> None:
    with world.store.write() as tx:
        assert _end(tx, world, overdue, ClaimEnd.EXPIRED) is not None
        second = aside(lambda: release(world.deps, overdue.claim_id))
        is_blocked(world.store, second)
    assert second.result(10) == "already_released"
    assert world.state_of(overdue.worker_id) is State.DRAINING
    assert [c.ended_why for c in world.rows("claims")] == ["expired"]


def test_a_renewal_just_before_the_expiry_keeps_the_claim(world: World, overdue: Granted) -> None:
    with world.store.write() as tx:
        assert _renew(tx, world, [ClaimId(overdue.claim_id)])
        expiry = aside(lambda: _expire(world, overdue))
        is_blocked(world.store, expiry)
    assert expiry.result(10) is None
    assert world.state_of(overdue.worker_id) is State.HOT
    assert len(live_claims(world)) == 1


def test_a_renewal_after_the_expiry_returns_the_cause(world: World, overdue: Granted) -> None:
    with world.store.write() as tx:
        assert _end(tx, world, overdue, ClaimEnd.EXPIRED) is not None
        renewal = aside(lambda: world.renew(overdue.claim_id))
        is_blocked(world.store, renewal)
    assert renewal.result(10) == {"renewed": {}, "gone": {overdue.claim_id: "expired"}}


def test_two_renewals_of_the_same_claims_in_other_orders_do_not_deadlock(world: World) -> None:
    world.warm(2)
    ids = [ClaimId(world.granted("acme").claim_id) for _ in range(2)]
    with world.store.write() as tx:
        assert len(_renew(tx, world, ids)) == 2
        second = aside(lambda: world.renew(*reversed(ids)))
        is_blocked(world.store, second)
    assert second.result(10)["renewed"].keys() == set(ids)


# Supply.


def _two_reconciles(world: World) -> int:
    """Run two reconciles at once, both started before either has created a slot; return the final
    number of slots. The row of a profile's build also makes runs wait for each other, but only when
    it is written, which is rare: so it is written before.
    """
    world.profile(warm_target=0)
    reconcile_warm.refill_once(world.deps, DEFAULT)
    with world.store.write() as tx:
        targets.set_target(tx, DEFAULT, 4, who="test")
    with world.store.write() as holder:
        holder.execute(select(schema.pool).with_for_update())
        runs = [aside(lambda: reconcile_warm.refill_once(world.deps, DEFAULT)) for _ in range(2)]
        eventually(lambda: blocked(world.store) == 2)
    for run in runs:
        assert run.result(10)["outcome"] == "ok"
    return len(world.workers(State.SPAWNING))


def test_overlapping_reconciles_create_as_many_slots_as_one(world: World) -> None:
    assert _two_reconciles(world) == 4


def test_without_their_lock_overlapping_reconciles_create_twice_as_many_slots(
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
        is_blocked(world.store, second)
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
        is_blocked(world.store, raced)
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
        is_blocked(world.store, raced)
    assert isinstance(raced.result(10), Pending)
    assert len(live_claims(world)) == len(world.rows("requests")) == 1


def test_a_batch_does_not_wait_for_another_delivery_of_its_request(world: World) -> None:
    world.warm(2)
    world.org("acme")
    call = claiming.AcquireCall(asked=asked(), reply=ReplyTo(task_id="task-acme"))
    with world.store.write() as tx:
        first = acquire(inside(world, tx))
        raced = aside(lambda: claiming.serve(world.deps, [call]))
        eventually(lambda: raced.done() or blocked(world.store) > 0)
        assert raced.done(), "it waits"
    assert raced.result()[0] == [None]
    (second,), _ = claiming.serve(world.deps, [call])
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.as_dict() == first.as_dict()


def test_a_request_whose_first_delivery_was_rolled_back_is_granted_to_the_second(world: World) -> None:
    world.warm(1)
    world.org("acme")
    with world.store.engine.connect() as tx:
        assert isinstance(acquire(inside(world, tx)), Granted)
        raced = aside(lambda: acquire(world.deps))
        is_blocked(world.store, raced)
        tx.rollback()
    assert isinstance(raced.result(10), Granted)
    assert len(live_claims(world)) == 1


def test_a_request_repeated_while_its_cancelled_claim_ends_does_not_deadlock(world: World) -> None:
    """Both need the org's row and the request's, and both wait for the org before either continues."""
    world.profile(activation_path="/configure")
    world.org("acme", cap=2)
    world.warm(2)
    assert isinstance(acquire(world.deps), Pending)
    (claim,) = live_claims(world)
    assert world.cancel("acme", "r1") == "cancelled"
    with world.store.write() as tx:
        tx.execute(select(schema.orgs).with_for_update())
        ending = aside(lambda: _end_lost(world, claim.id))
        is_blocked(world.store, ending)
        again = aside(lambda: acquire(world.deps))
        is_blocked(world.store, again, sessions=2)
    assert ending.result(10) is not None
    assert isinstance(again.result(10), Pending)


def _end_lost(world: World, claim_id: str) -> dict[str, Any] | None:
    with world.store.write() as tx:
        by = world.deps.by(MoveReason.POD_GONE)
        return claims.end(tx, world.deps.rule_argument(), ClaimId(claim_id), ClaimEnd.WORKER_LOST, by)


# No lost wake-up.


@pytest.fixture
def busy(world: World) -> Granted:
    """One worker, held by acme; no request waits."""
    world.profile(warm_target=0)
    world.warm(1)
    return world.granted("acme", request_id="before")


def _is_served(world: World) -> bool:
    """Return whether the waiter has the worker, instead of both being left unmatched."""
    (request,) = [r for r in world.rows("requests") if r.request_id == "r1"]
    (worker,) = world.workers()
    assert (request.state, worker.state) in {("granted", State.HOT), ("waiting", State.HOT_IDLE)}
    return bool(request.state == "granted")


def test_a_waiter_that_arrives_during_a_release_gets_the_worker(world: World, busy: Granted) -> None:
    """The release has looked for waiters and found none; the waiter may not look for workers before
    that is committed.
    """
    with world.store.write() as tx:
        assert release(inside(world, tx), busy.claim_id) == "released"
        waiter = aside(lambda: acquire(world.deps, wait_s=30))
        is_blocked(world.store, waiter)
    assert isinstance(waiter.result(10), Granted)
    assert _is_served(world)


def test_a_release_serves_a_waiter_that_is_being_inserted(world: World, busy: Granted) -> None:
    """The waiter has looked for workers and found none; the release may not look for waiters before
    that is committed.
    """
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx), wait_s=30), Pending)
        freed = aside(lambda: release(world.deps, busy.claim_id))
        is_blocked(world.store, freed)
    assert freed.result(10) == "released"
    assert _is_served(world)
    assert len(world.broker.answers_for("task-acme")) == 1


def test_without_the_waiters_lock_the_wake_up_is_lost(world: World, busy: Granted) -> None:
    """The tests above can fail: this is what they would see, until the next reconcile repairs it."""
    with (
        broken_rule(world.store, "lock_profile", "IF p_alone THEN", "IF p_alone THEN RETURN;"),
        world.store.write() as tx,
    ):
        release(inside(world, tx), busy.claim_id)
        assert isinstance(acquire(world.deps, wait_s=30), Pending)
    assert not _is_served(world)
    world.run_pass("reconcile_warm")
    assert _is_served(world)


def test_without_the_releasers_lock_the_wake_up_is_lost(world: World, busy: Granted) -> None:
    unlocked = "IF NOT p_alone THEN RETURN; END IF; IF p_alone THEN"
    with broken_rule(world.store, "lock_profile", "IF p_alone THEN", unlocked), world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx), wait_s=30), Pending)
        release(world.deps, busy.claim_id)
    assert not _is_served(world)
    world.run_pass("reconcile_warm")
    assert _is_served(world)


def test_a_refused_acquire_does_not_hide_a_worker_from_a_waiter(world: World) -> None:
    """An org at its cap is refused: the idle worker that it could not have is available for a
    request that starts to wait meanwhile.
    """
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


def test_a_batch_with_a_release_waits_for_a_waiter_that_is_being_inserted(
    world: World, busy: Granted
) -> None:
    """It waits for no row, but for the profile: otherwise a worker that it freed would stay idle
    beside the waiter.
    """
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx), wait_s=30), Pending)
        batch = aside(lambda: claiming.serve(world.deps, [Release.parse(busy.claim_id, "clean")]))
        is_blocked(world.store, batch)
    decided, after = batch.result(10)
    effects.finish(world.deps, after)
    assert decided == [{"outcome": "released"}]
    assert _is_served(world)


def test_releases_of_one_profile_do_not_wait_for_each_other(world: World) -> None:
    world.warm(2)
    one, other = world.granted("acme"), world.granted("bolt")
    with world.store.write() as tx:
        assert release(inside(world, tx), one.claim_id) == "released"
        assert release(world.deps, other.claim_id) == "released"


def test_waiters_of_another_profile_are_not_delayed(world: World, busy: Granted) -> None:
    world.profile("big")
    with world.store.write() as tx:
        release(inside(world, tx), busy.claim_id)
        assert isinstance(acquire(world.deps, wait_s=30, profile="big"), Pending)


def test_a_worker_that_becomes_ready_while_a_waiter_is_inserted_goes_to_it(world: World) -> None:
    world.profile(warm_target=1)
    world.run_pass("reconcile_warm")
    world.deliver("pool.spawn")
    (slot,) = world.workers(State.SPAWNING)
    world.org("acme")
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx), wait_s=30), Pending)
        world.driver.become_ready(slot.id)
        ready = aside(world.observe)
        is_blocked(world.store, ready)
    ready.result(10)
    assert _is_served(world)


def test_a_waiter_locked_by_one_matcher_is_skipped_by_the_next(world: World) -> None:
    """Two workers freed at once serve two waiters, never one twice."""
    world.waits("acme", request_id="first")
    world.waits("acme", request_id="second")
    with world.store.write() as a, world.store.write() as b, world.store.write() as c:
        next_one = text(
            rules.qualified(
                "SELECT q.request_id FROM unnest(warmpool_next('acme', 'default', warmpool_now(), 1)) q"
            )
        )
        served = [tx.execute(next_one).scalar_one_or_none() for tx in (a, b, c)]
    assert served == ["first", "second", None]


def test_two_matchers_at_once_give_a_waiter_one_worker(world: World) -> None:
    world.waits("acme")
    with world.store.write() as tx:
        slots = _ready_behind_the_pools_back(world, 2)
        assert claiming.match(inside(world, tx), DEFAULT) == 1
        assert claiming.match(world.deps, DEFAULT) == 0
    assert len(live_claims(world)) == 1
    assert sorted(world.state_of(s) for s in slots) == [State.HOT, State.IDLE]


def _ready_behind_the_pools_back(world: World, count: int) -> list[WorkerId]:
    """Create idle workers that were not offered to any waiter."""
    with world.store.write() as tx:
        ids = [world.deps.ids.worker() for _ in range(count)]
        orgs.reserve_slots(tx, count, 0)
        profile = world.deps.settings.profiles["default"]
        workers.insert_slots(tx, profile, revision(profile), ids, world.deps.by(MoveReason.DEMAND))
        ready = "UPDATE workers SET state = 'idle', ready_at = warmpool_now(), pod_uid = 'u', endpoint = 'http://x', moved_reason = 'ready'"
        tx.execute(text(rules.qualified(ready)))
    return ids


def _no_lock(_tx: Tx, _profile: str) -> None:
    """The behaviour without the lock."""


def test_a_matcher_without_a_worker_for_a_waiter_does_not_hide_it_from_another_matcher(world: World) -> None:
    """Two releases at once: the worker of the first is kept for its own org, the worker of the
    second goes to the waiter.
    """
    world.warm(2)
    other, own = world.granted("bolt"), world.granted("acme")
    world.waits("acme", request_id="waiter")
    with world.store.write() as tx:
        assert release(inside(world, tx), other.claim_id) == "released"
        assert release(world.deps, own.claim_id) == "released"
    (waiter,) = [r for r in world.rows("requests") if r.request_id == "waiter"]
    assert waiter.state == "granted"


def test_a_request_that_begins_to_wait_at_its_orgs_cap_while_a_claim_is_released_is_served(
    world: World,
) -> None:
    """The release is of another profile and has seen no waiter before it locked the org's row."""
    world.profile("big", warm_target=0)
    world.org("acme", cap=1)
    world.warm(1)
    world.warm(1, "big")
    held = world.granted("acme", request_id="before")
    with world.store.write() as tx:
        assert isinstance(acquire(inside(world, tx), wait_s=30, profile="big"), Pending)
        freed = aside(lambda: release(world.deps, held.claim_id))
        is_blocked(world.store, freed)
    assert freed.result(10) == "released"
    (waiter,) = [r for r in world.rows("requests") if r.request_id == "r1"]
    assert waiter.state == "granted"
