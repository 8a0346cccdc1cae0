"""Each pass: what it does, what it never does, and that running it twice equals running it once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from sqlalchemy import event

from pool.core.clock import SystemClock
from pool.core.errors import BrokenPromise, Refused, Transient
from pool.core.ids import ProfileName, WorkerId
from pool.core.keys import Keyring
from pool.core.periods import PERIODS_S
from pool.core.states import MoveReason, Reason, State
from pool.drivers.port import (
    LABEL_BUSY,
    NOTE_DO_NOT_DISRUPT,
    NOTE_ORG,
    Pod,
    PodPhase,
    PodRole,
    PodSpec,
    Stamp,
    Word,
)
from pool.lifecycle import claiming
from pool.lifecycle.deps import WorkerApi
from pool.ops import reporting
from pool.ops.reading import Reading, read
from pool.passes import PASSES
from pool.passes.running import Run
from pool.store import breakers, orgs, passes, schema, suspects, workers
from tests.support.waiting import eventually
from tests.support.world import World


def _pod(
    world: World, name: str, *, stamped: bool = False, age_s: float = 1000, role: PodRole = PodRole.WORKER
) -> str:
    """Create a pod without a row."""
    world.driver.create(
        PodSpec(
            name=name,
            profile="default",
            revision="rev",
            image="warmpool/reference-worker",
            cpu_millicores=1,
            memory_mib=1,
            port=1,
            grace_s=1,
            secret="s",
            role=role,
        )
    )
    world.driver.become_ready(name)
    world.driver.change(name, age_s=age_s)
    if stamped:
        world.driver.stamp(world.driver.pods[name], Stamp(org="acme", claim_id="c", epoch=1, busy=True))
    return name


class ProbedWorkers:
    """Workers that answer their probe, but for one."""

    def __init__(self, sick: str = "none") -> None:
        self._sick = sick

    def activate(self, url: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> None:
        raise AssertionError("no worker is activated here")

    def healthy(self, url: str, timeout_s: float) -> bool:
        return self._sick not in url


# reap


def test_a_parked_worker_drains_after_its_ttl_and_not_before(world: World) -> None:
    (worker,) = world.warm(1)
    world.release(world.granted(ttl_s=60).claim_id)
    world.pass_time(59)
    world.run_pass("reap")
    assert world.state_of(worker) is State.HOT_IDLE
    world.pass_time(2)
    world.run_pass("reap")
    world.settle()
    assert world.state_of(worker) is State.RETIRED
    assert worker not in world.driver.pods


def test_nothing_extends_the_ttl_of_a_parked_worker(world: World) -> None:
    (worker,) = world.warm(1)
    world.release(world.granted(ttl_s=60).claim_id)
    world.settle()
    since = world.worker(worker).hot_idle_since
    world.pass_time(30)
    for name in PASSES:
        world.run_pass(name)
    world.settle()
    world.refused("bolt")
    assert world.worker(worker).hot_idle_since == since


def test_workers_kept_by_a_floor_stay_claimable(world: World) -> None:
    world.org("acme", hot_idle_floor=2)
    world.warm(3)
    for granted in [world.granted(ttl_s=10) for _ in range(3)]:
        world.release(granted.claim_id)
    world.pass_time(20)
    world.run_pass("reap")
    assert len(world.workers(State.HOT_IDLE)) == 2
    assert world.granted("acme").source == "hot_idle"


def test_a_kept_worker_that_becomes_too_old_no_longer_counts_for_the_floor(world: World) -> None:
    """Otherwise the floor of its org would keep one worker fewer from then on."""
    world.configure(max_age_s=60)
    world.org("acme", hot_idle_floor=1)
    (old,) = world.warm(1)
    world.release(world.granted("acme", ttl_s=1000).claim_id)
    world.pass_time(100)
    world.run_pass("reap")
    assert world.worker(old).state is State.DRAINING
    with world.store.read() as tx:
        assert orgs.miscounted(tx) == []


def test_two_concurrent_reaps_keep_the_floor(world: World) -> None:
    """Both have read the same overdue workers before either acts."""
    from pool.lifecycle.effects import Effects
    from pool.lifecycle.retiring import drain
    from pool.store import workers

    world.org("acme", hot_idle_floor=1)
    world.warm(2)
    for granted in [world.granted(ttl_s=10) for _ in range(2)]:
        world.release(granted.claim_id)
    world.pass_time(20)
    with world.store.read() as tx:
        overdue = workers.parked_past_end(tx, limit=10)
    for worker in (*overdue, *overdue):
        with world.store.write() as tx:
            drain(tx, Effects(), worker, world.deps.by(MoveReason.HOT_IDLE_TTL), above_floor=True)
    assert len(world.workers(State.HOT_IDLE)) == 1


def test_a_hot_idle_cap_takes_precedence_over_the_floor_oldest_first(world: World) -> None:
    world.org("acme", hot_idle_floor=3, hot_idle_cap=1)
    world.warm(3)
    claims = [world.granted(ttl_s=1000) for _ in range(3)]
    for granted in claims:
        world.pass_time(1)
        world.release(granted.claim_id)
    world.run_pass("reap")
    (kept,) = world.workers(State.HOT_IDLE)
    assert kept.id == claims[-1].worker_id


def test_surplus_shrinks_to_the_target(world: World) -> None:
    world.profile(warm_target=2)
    world.warm(5)
    world.pass_time(299)
    world.run_pass("reap")
    assert len(world.workers(State.IDLE)) == 5
    world.pass_time(2)
    world.run_pass("reap")
    assert len(world.workers(State.IDLE)) == 2


def test_a_burst_is_not_surplus_at_once(world: World) -> None:
    """The old ones were never above the target; the new ones have only just become ready."""
    world.profile(warm_target=2)
    world.warm(2)
    world.pass_time(1000)
    world.warm(3)
    world.run_pass("reap")
    assert len(world.workers(State.IDLE)) == 5


def test_a_claim_that_is_never_renewed_ends_at_its_lease_and_its_worker_drains(world: World) -> None:
    world.org("acme", cap=1)
    (worker,) = world.warm(1)
    granted = world.granted("acme", lease_s=30)
    world.canary()
    world.pass_time(25)
    world.canary()
    world.run_pass("reap")
    assert world.state_of(worker) is State.HOT
    for _ in range(8):
        world.pass_time(4)
        world.canary()
    world.run_pass("reap")
    assert world.state_of(worker) is State.DRAINING
    assert world.renew(granted.claim_id)["gone"] == {granted.claim_id: "expired"}
    world.warm(1)
    world.granted("acme")


def test_a_renewed_claim_lives_on(world: World) -> None:
    (worker,) = world.warm(1)
    granted = world.granted("acme", lease_s=30)
    for _ in range(10):
        world.pass_time(9)
        world.canary()
        world.renew(granted.claim_id)
        world.run_pass("reap")
    assert world.state_of(worker) is State.HOT


def test_an_outage_of_the_lane_ends_no_session(world: World) -> None:
    """No renewal was possible for an hour; when canaries pass again, every holder has a whole lease
    to renew in.
    """
    (worker,) = world.warm(1)
    granted = world.granted("acme", lease_s=30)
    world.canary()
    world.pass_time(3600)
    world.run_pass("reap")
    assert world.state_of(worker) is State.HOT
    world.canary()
    world.run_pass("reap")
    assert world.state_of(worker) is State.HOT
    world.pass_time(8)
    world.canary()
    assert granted.claim_id in world.renew(granted.claim_id)["renewed"]
    world.run_pass("reap")
    assert world.state_of(worker) is State.HOT


def test_a_renewal_before_the_expiry_pass_keeps_the_claim(world: World) -> None:
    from pool.core.ids import ClaimId
    from pool.core.states import ClaimEnd
    from pool.store import claims

    (worker,) = world.warm(1)
    granted = world.granted("acme", lease_s=5)
    for _ in range(4):
        world.pass_time(9)
        world.canary()
    with world.store.read() as tx:
        (expired,) = claims.expired(tx, limit=10)
    world.renew(granted.claim_id)
    with world.store.write() as tx:
        by = world.deps.by(MoveReason.LEASE_EXPIRED)
        assert claims.end(tx, world.deps.rule_argument(), ClaimId(expired.id), ClaimEnd.EXPIRED, by) is None
    assert world.state_of(worker) is State.HOT


def test_an_expired_claim_makes_room_for_its_orgs_waiter_at_once(world: World) -> None:
    """The waiter is of another profile, and a worker has been idle all the time: only the cap
    blocked it.
    """
    world.profile("other", warm_target=0)
    world.org("acme", cap=1)
    world.warm(1)
    world.warm(1, "other")
    world.granted("acme", lease_s=5)
    task_id = world.waits("acme", profile="other", wait_s=600)
    for _ in range(4):
        world.pass_time(9)
        world.canary()
    world.run_pass("reap")
    (answer,) = world.broker.answers_for(task_id)
    assert answer["outcome"] == "granted"


def test_a_worker_that_could_not_be_parked_stays_usable_and_is_parked_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.org("acme", cap=1)
    (worker,) = world.warm(1)
    granted = world.granted("acme")

    with monkeypatch.context() as broken:
        broken.setattr(
            claiming, "serve", lambda *a, **k: (_ for _ in ()).throw(Transient("the write failed"))
        )
        assert world.release(granted.claim_id) == "released"
    assert world.state_of(worker) is State.HOT
    assert world.deps.metrics.park_failures._value.get() == 1
    assert world.refused("acme").reason is Reason.ORG_CAP
    assert granted.claim_id in world.renew(granted.claim_id)["renewed"]
    world.run_pass("reap")
    assert world.state_of(worker) is State.HOT_IDLE
    world.granted("acme")


def test_a_worker_past_its_highest_age_drains_when_unclaimed(world: World) -> None:
    world.configure(max_age_s=100)
    world.profile(warm_target=2)
    _idle, busy = world.warm(2)
    granted = world.granted("acme")
    world.pass_time(101)
    world.run_pass("reap")
    states = {w.id: w.state for w in world.workers()}
    assert states[WorkerId(granted.worker_id)] is State.HOT
    assert sorted(states.values()) == [State.DRAINING, State.HOT]
    assert busy


def test_a_worker_of_an_unknown_key_drains_once_a_worker_of_the_current_key_exists(
    world: World,
) -> None:
    """Otherwise it is claimed first, and its caller gets no token."""
    old, new, third = (Keyring(current=letter * 32) for letter in (b"o", b"n", b"t"))
    world.deps = replace(world.deps, keys=old)
    world.warm(3)
    held = world.granted("acme", lease_s=3600)
    world.release(world.granted("parking", ttl_s=600).claim_id)
    world.settle()

    def reaped_by(keys: Keyring) -> list[State]:
        world.deps = replace(world.deps, keys=keys)
        world.run_pass("reap")
        return sorted(w.state for w in world.workers())

    before = sorted([State.HOT, State.HOT_IDLE, State.IDLE])
    # No worker was created under its key: this process may be the one with the wrong key.
    assert reaped_by(new) == before
    world.pass_time(1)
    world.warm(1)
    then = sorted([*before, State.IDLE])
    assert reaped_by(third) == then
    assert reaped_by(replace(new, previous=old.current)) == then
    # One that was left with the old key.
    assert reaped_by(old) == then
    assert reaped_by(new) == sorted([State.DRAINING, State.DRAINING, State.HOT, State.IDLE])
    assert world.state_of(held.worker_id) is State.HOT
    assert new.is_current(WorkerId(world.granted("beta").worker_id))


# reconcile_warm


def test_target_and_misses_create_exactly_their_sum_of_slots_once(world: World) -> None:
    world.profile(warm_target=5)
    for n in range(30):
        world.refused("acme", request_id=f"r{n}")
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.SPAWNING)) == 35
    world.run_pass("reconcile_warm")
    world.refill()
    assert len(world.workers(State.SPAWNING)) == 35


def test_capped_orgs_get_exactly_the_slots_that_they_can_use(world: World) -> None:
    """30 orgs with cap 1 and 30 waiters or misses each, target 5."""
    world.profile(warm_target=5)
    for org in range(30):
        world.org(f"org-{org}", cap=1)
        for n in range(30):
            if org % 2:
                world.waits(f"org-{org}", request_id=f"r{n}", wait_s=300)
            else:
                world.refused(f"org-{org}", request_id=f"r{n}")
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.SPAWNING)) == 35
    for _ in range(2):
        world.run_pass("reconcile_warm")
        world.refill()
    assert len(world.workers(State.SPAWNING)) == 35


@pytest.mark.parametrize("waits", [False, True])
def test_worker_that_becomes_ready_during_a_reconcile_is_counted_once(world: World, waits: bool) -> None:
    """Before each of its statements in turn, warm or handed to a waiter."""
    for nth in itertools.count(1):
        world.profile(warm_target=0 if waits else nth)
        if waits:
            world.waits("acme", request_id=f"r{nth}", wait_s=300)
        world.refill()
        (slot,) = world.workers(State.SPAWNING)
        world.deliver("pool.spawn")
        statements = itertools.count(1)

        def before(*_: object, ready: str = slot.id, nth: int = nth) -> None:
            if next(statements) == nth:  # noqa: B023
                world.driver.become_ready(ready)
                world.observe()

        event.listen(world.store.engine, "before_cursor_execute", before)
        world.refill()
        event.remove(world.store.engine, "before_cursor_execute", before)
        assert len(world.workers(State.SPAWNING, State.IDLE, State.HOT)) == nth
        if world.workers(State.SPAWNING):
            break
    assert nth > 5


def test_a_polling_caller_counts_as_one_miss(world: World) -> None:
    """Also when the worker created for it went to another request."""
    world.profile(warm_target=0)
    for _ in range(20):
        world.refused("acme", request_id="same")
        world.refill()
    (slot,) = world.workers(State.SPAWNING)
    world.deliver("pool.spawn")
    world.driver.become_ready(slot.id)
    world.observe()
    world.granted("bolt")
    for _ in range(5):
        world.refused("acme", request_id="same")
        world.refill()
    assert world.workers(State.SPAWNING) == []


def test_a_miss_is_demand_once_and_not_again_when_its_worker_was_taken(world: World) -> None:
    world.profile(warm_target=0)
    world.refused("acme")
    world.refill()
    (slot,) = world.workers(State.SPAWNING)
    world.deliver("pool.spawn")
    world.driver.become_ready(slot.id)
    world.observe()
    world.granted("bolt")
    world.refill()
    assert world.workers(State.SPAWNING) == []


def test_refusals_at_the_orgs_cap_are_no_demand(world: World) -> None:
    world.profile(warm_target=0)
    world.org("acme", cap=1)
    world.warm(2)
    world.granted("acme")
    for n in range(5):
        assert world.refused("acme", request_id=f"r{n}").reason is Reason.ORG_CAP
    world.run_pass("reconcile_warm")
    assert world.workers(State.SPAWNING) == []


def test_a_miss_goes_stale(world: World) -> None:
    world.profile(warm_target=0)
    world.refused("acme")
    world.pass_time(61)
    world.run_pass("reconcile_warm")
    assert world.workers(State.SPAWNING) == []


def test_demand_whose_spawn_failed_is_not_forgotten_while_its_waiter_waits(world: World) -> None:
    world.profile(warm_target=0)
    world.waits("acme", wait_s=600)
    world.refill()
    world.driver.refuses_to_create = "no room"
    world.deliver("pool.spawn")
    assert world.workers(State.SPAWNING) == []
    world.driver.refuses_to_create = ""
    world.refill()
    assert len(world.workers(State.SPAWNING)) == 1


def test_a_target_above_the_cap_is_clamped_only_if_there_is_a_cap(world: World) -> None:
    world.profile(warm_target=7)
    world.configure(max_workers=3)
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.SPAWNING)) == 3
    world.configure(max_workers=0)
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.SPAWNING)) == 7


def test_a_row_without_a_live_pod_is_not_warm(world: World) -> None:
    world.profile(warm_target=1)
    (worker,) = world.warm(1)
    world.pass_time(16)
    del world.driver.pods[worker]
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.SPAWNING)) == 1


def test_a_worker_just_ready_in_the_table_and_not_in_the_view_is_warm(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has its own view, and this one's is slightly older than the row."""
    world.profile(warm_target=1)
    before = world.driver.cached()
    (worker,) = world.warm(1)
    monkeypatch.setattr(world.driver, "cached", lambda: before)
    world.run_pass("reconcile_warm")
    assert world.workers(State.SPAWNING) == []
    world.pass_time(16)
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.SPAWNING)) == 1
    assert worker


@pytest.mark.parametrize("seen", [{"terminating": True}, {"leaving": "cordoned"}, {"phase": PodPhase.ENDED}])
def test_a_young_worker_whose_pod_is_terminating_is_not_warm(world: World, seen: dict[str, object]) -> None:
    world.profile(warm_target=1)
    (worker,) = world.warm(1)
    world.driver.change(worker, **seen)
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.SPAWNING)) == 1


def test_with_a_stale_view_nothing_is_created_and_the_pass_does_not_succeed(world: World) -> None:
    world.driver.age_s = 60
    assert world.run_pass("reconcile_warm")["outcome"] == "stale"
    assert world.workers() == []
    with world.store.read() as tx:
        assert passes.get(tx, "reconcile_warm").last_success_at is None


def test_a_profile_whose_spawns_keep_failing_backs_off_and_takes_no_slots_of_other_profiles(
    world: World,
) -> None:
    world.profile("bad", warm_target=1)
    world.profile(warm_target=1)
    world.configure(max_workers=2)
    create = world.driver.create

    def bad_image(spec: PodSpec) -> object:
        if spec.profile == "bad":
            raise Transient("image cannot be pulled")
        return create(spec)

    world.driver.create = bad_image  # type: ignore[method-assign, assignment]
    for _ in range(4):
        world.run_pass("reconcile_warm")
        world.settle()
    made = [row for row in world.rows("workers") if row.profile == "bad"]
    assert len(made) == 3
    with world.store.read() as tx:
        assert "pulled" in breakers.every(tx)[ProfileName("bad")].why
    assert len([w for w in world.workers(State.SPAWNING) if w.profile == "default"]) == 1
    world.pass_time(10)
    world.run_pass("reconcile_warm")
    assert len([w for w in world.workers(State.SPAWNING) if w.profile == "bad"]) == 1


def test_a_worker_that_becomes_ready_closes_the_breaker_of_its_own_profile_only(world: World) -> None:
    world.profile("big")
    with world.store.write() as tx:
        for profile in ("default", "big"):
            breakers.failed(tx, ProfileName(profile), "image cannot be pulled")
    assert len(world.warm(1)) == 1
    with world.store.read() as tx:
        assert set(breakers.every(tx)) == {"big"}


def test_at_the_pools_cap_surplus_then_parked_workers_are_drained_for_a_waiter(world: World) -> None:
    world.profile("big", warm_target=0)
    world.profile(warm_target=0)
    world.configure(max_workers=2)
    surplus, parked = world.warm(2)
    granted = world.granted("acme")
    parked, surplus = granted.worker_id, surplus if granted.worker_id != surplus else parked
    world.release(granted.claim_id)
    world.waits("bolt", profile="big", wait_s=600)
    world.run_pass("reconcile_warm")
    assert world.state_of(surplus) is State.DRAINING
    assert world.state_of(parked) is State.HOT_IDLE
    world.deliver("pool.retire")
    world.run_pass("reconcile_warm")
    assert [w.profile for w in world.workers(State.SPAWNING)] == ["big"]
    world.waits("cats", profile="big", wait_s=600)
    world.run_pass("reconcile_warm")
    assert world.state_of(parked) is State.DRAINING


def test_workers_kept_by_a_floor_are_not_drained_for_a_waiter(world: World) -> None:
    world.org("acme", hot_idle_floor=1)
    world.profile(warm_target=0)
    world.configure(max_workers=1)
    (worker,) = world.warm(1)
    world.release(world.granted("acme").claim_id)
    world.waits("bolt", wait_s=600)
    world.run_pass("reconcile_warm")
    assert world.state_of(worker) is State.HOT_IDLE


def test_reconcile_matches_a_waiter_whose_wake_up_was_lost(world: World) -> None:
    task = world.waits("acme")
    with world.store.write() as tx:
        tx.execute(
            schema.requests.update().values(
                state="refused", reason="no_warm_worker", decided_at=schema.requests.c.created_at
            )
        )
    world.warm(1)
    with world.store.write() as tx:
        tx.execute(schema.requests.update().values(state="waiting", reason=None, decided_at=None))
    world.run_pass("reconcile_warm")
    assert world.broker.answers_for(task)[0]["outcome"] == "granted"


# sweep_stuck


def test_a_slot_that_never_becomes_ready_is_freed_with_its_pod(world: World) -> None:
    world.run_pass("reconcile_warm")
    world.deliver("pool.spawn")
    world.pass_time(119)
    world.run_pass("sweep_stuck")
    assert len(world.workers(State.SPAWNING)) == 3
    world.pass_time(2)
    world.run_pass("sweep_stuck")
    assert world.workers() == [] or all(w.state in {State.RETIRED} for w in world.workers())
    assert world.driver.pods == {}


def test_an_unschedulable_pod_is_kept_for_its_limit_and_not_recreated(world: World) -> None:
    world.profile(warm_target=1)
    world.run_pass("reconcile_warm")
    world.deliver("pool.spawn")
    (pod,) = world.driver.pods
    world.driver.change(pod, unschedulable=True, trouble="0/3 nodes are available")
    world.pass_time(200)
    world.run_pass("sweep_stuck")
    world.run_pass("reconcile_warm")
    assert [w.id for w in world.workers(State.SPAWNING)] == [pod]
    world.pass_time(101)
    world.run_pass("sweep_stuck")
    assert world.state_of(pod) is State.RETIRED


def test_a_lost_spawn_message_is_sent_again_once_per_budget(world: World) -> None:
    world.profile(warm_target=1)
    world.run_pass("reconcile_warm")
    world.broker.sent.clear()
    world.pass_time(91)
    world.run_pass("sweep_stuck")
    world.run_pass("sweep_stuck")
    assert [task for task, _ in world.broker.sent] == ["pool.spawn"]


def test_a_silent_binding_is_freed_and_its_request_gets_another_worker(world: World) -> None:
    world.profile(activation_path="/activate")
    first, second = world.warm(2)
    world.acquire("acme", task_id="t")
    world.broker.sent.clear()
    world.pass_time(16)
    world.run_pass("sweep_stuck")
    assert world.state_of(first) is State.DRAINING
    assert world.state_of(second) is State.RESERVED


def test_an_activation_with_a_heartbeat_is_never_ended(world: World) -> None:
    from pool.core.records import Held
    from pool.lifecycle import activating
    from pool.store import workers

    world.profile(activation_path="/activate")
    (worker,) = world.warm(1)
    world.acquire("acme", task_id="t")
    held = Held(**dict(world.broker.sent)["pool.activate"])
    activating._enter(world.deps, held)
    for _ in range(5):
        world.pass_time(10)
        with world.store.write() as tx:
            workers.record_heartbeat(tx, held)
        world.run_pass("sweep_stuck")
    assert world.state_of(worker) is State.ACTIVATING


class _HastyClock(SystemClock):
    """Waits a moment instead of a heartbeat's interval."""

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        return stop.wait(0.01)


class _SlowWorker:
    """A worker whose activation takes longer than a silent one is given."""

    def __init__(self, world: World, worker: str) -> None:
        self.world, self.worker = world, WorkerId(worker)
        self.states: list[State] = []

    def activate(self, *_args: object) -> None:
        cutoff_s = self.world.deps.settings.pool.activation_stuck_s
        for _ in range(3):
            self.world.pass_time(cutoff_s + 1)
            eventually(lambda: not self._is_silent(cutoff_s))
            self.world.run_pass("sweep_stuck")
            self.states.append(self.world.state_of(self.worker))

    def _is_silent(self, cutoff_s: float) -> bool:
        with self.world.store.read() as tx:
            return workers.is_silent(tx, self.worker, for_s=cutoff_s)


def test_a_long_activation_writes_its_own_heartbeats_until_it_is_done(world: World) -> None:
    world.profile(activation_path="/activate")
    (worker,) = world.warm(1)
    world.acquire("acme", task_id="t")
    slow = _SlowWorker(world, worker)
    world.deps = replace(world.deps, clock=_HastyClock(), worker_api=cast("WorkerApi", slow))
    world.deliver("pool.activate")
    assert slow.states == [State.ACTIVATING] * 3
    assert world.state_of(worker) is State.HOT
    assert not [t.name for t in threading.enumerate() if t.name == f"beat {worker}"]


def test_three_failed_probes_drain_an_unclaimed_worker_and_never_a_claimed_one(world: World) -> None:
    world.profile(probe_path="/healthz")
    idle, _other = world.warm(2)
    granted = world.granted("acme")
    idle = _other if granted.worker_id == idle else idle
    for runs in range(1, 4):
        assert world.state_of(idle) is State.IDLE, runs
        world.run_pass("sweep_stuck")
    assert world.state_of(idle) is State.DRAINING
    assert world.state_of(granted.worker_id) is State.HOT


def test_worker_in_use_that_fails_its_probes_is_left_alone_and_reported(world: World) -> None:
    world.profile(probe_path="/healthz", warm_target=0)
    world.warm(2)
    sick, well = world.granted("acme"), world.granted("acme")
    world.deps = replace(world.deps, worker_api=ProbedWorkers(sick.worker_id))
    for runs in range(1, 3):
        world.run_pass("sweep_stuck")
        assert "unhealthy" not in world.renew(sick.claim_id), runs
    world.run_pass("sweep_stuck")
    answer = world.renew(sick.claim_id, well.claim_id)
    assert set(answer["renewed"]) == {sick.claim_id, well.claim_id}
    assert answer["unhealthy"] == {sick.claim_id: "3 consecutive probes failed"}
    assert world.state_of(sick.worker_id) is State.HOT
    seen = reporting.status(world.store, world.deps.settings)
    assert [(w["id"], w["org"], w["failed_probes"]) for w in seen["unhealthy"]] == [
        (sick.worker_id, "acme", 3)
    ]
    assert f"unhealthy:{sick.worker_id}" in {w["id"] for w in seen["worries"]}
    assert Reading("unhealthy_in_use", 1) in read(world.store, world.deps.settings)


def test_worker_in_use_that_fails_its_probes_does_not_count_as_drained(world: World) -> None:
    world.profile(probe_path="/healthz", warm_target=0)
    world.warm(1)
    world.granted("acme")
    runs = [world.run_pass("sweep_stuck") for _ in range(4)]
    assert all("unhealthy_drained" not in str(run) for run in runs), runs


def test_worker_in_use_that_answers_again_is_no_longer_reported(world: World) -> None:
    world.profile(probe_path="/healthz", warm_target=0)
    world.warm(1)
    sick = world.granted("acme")
    for _ in range(3):
        world.run_pass("sweep_stuck")
    assert "unhealthy" in world.renew(sick.claim_id)
    world.deps = replace(world.deps, worker_api=ProbedWorkers())
    world.run_pass("sweep_stuck")
    assert "unhealthy" not in world.renew(sick.claim_id)
    assert Reading("unhealthy_in_use", 0) in read(world.store, world.deps.settings)


def test_unhealthy_worker_is_drained_once_its_holder_releases_it(world: World) -> None:
    world.profile(probe_path="/healthz", warm_target=0)
    world.warm(1)
    sick = world.granted("acme")
    for _ in range(3):
        world.run_pass("sweep_stuck")
    world.release(sick.claim_id)
    assert world.state_of(sick.worker_id) is State.HOT_IDLE
    world.run_pass("sweep_stuck")
    assert world.state_of(sick.worker_id) is State.DRAINING


def test_with_more_workers_than_a_run_can_probe_each_is_probed_in_turn(world: World) -> None:
    world.profile(probe_path="/healthz")
    world.configure(pass_limit=2)
    sick = world.warm(5)
    for _ in range(20):
        world.pass_time(PERIODS_S["sweep_stuck"])
        world.run_pass("sweep_stuck")
    assert {world.state_of(worker) for worker in sick} == {State.DRAINING}


# sweep_orphans


def test_a_never_stamped_pod_without_a_row_is_kept_while_young_and_deleted_when_old(world: World) -> None:
    world.warm(1)
    young, old = _pod(world, "w-young", age_s=100), _pod(world, "w-old", age_s=130)
    world.run_pass("sweep_orphans")
    assert young in world.driver.pods
    assert old not in world.driver.pods
    assert old not in world.driver.secrets


@pytest.mark.parametrize(("word", "deleted"), [(Word.UNUSED, True), (Word.BUSY, False), (Word.SILENT, False)])
def test_a_stamped_pod_is_deleted_only_on_two_proofs_one_of_them_its_own(
    world: World, word: Word, deleted: bool
) -> None:
    world.warm(1)
    pod = _pod(world, "w-orphan", stamped=True)
    world.driver.words[pod] = word
    world.run_pass("sweep_orphans")
    assert pod in world.driver.pods
    world.run_pass("sweep_orphans")
    assert (pod not in world.driver.pods) is deleted
    with world.store.read() as tx:
        kind = suspects.SuspectKind.SILENT_POD if word is Word.SILENT else suspects.SuspectKind.HELD_POD
        held = suspects.every(tx, kind)
    assert deleted or any(str(word) in detail for *_, detail in held)


def test_held_pod_is_reported_until_it_is_gone(world: World) -> None:
    world.warm(1)
    pod = _pod(world, "w-orphan", stamped=True)
    world.driver.words[pod] = Word.BUSY

    def reported() -> list[str]:
        found = reporting.status(world.store, world.deps.settings)["worries"]
        return [w["text"] for w in found if w["id"].startswith("orphan:")]

    world.run_pass("sweep_orphans")
    assert reported() == []
    world.run_pass("sweep_orphans")
    assert reported() == ["pod w-orphan has no row and reports that it is busy: kept"]
    del world.driver.pods[pod]
    world.run_pass("sweep_orphans")
    assert reported() == []


def test_a_stamped_pod_that_is_young_is_left_alone(world: World) -> None:
    world.warm(1)
    pod = _pod(world, "w-orphan", stamped=True, age_s=299)
    for _ in range(3):
        world.run_pass("sweep_orphans")
    assert pod in world.driver.pods


def test_a_run_deletes_a_bounded_number_of_stamped_pods(world: World) -> None:
    world.warm(1)
    for n in range(25):
        _pod(world, f"w-orphan-{n:02d}", stamped=True)
    world.run_pass("sweep_orphans")
    world.run_pass("sweep_orphans")
    assert len(world.driver.pods) == 1 + 15


def test_a_row_whose_pod_is_absent_in_two_runs_is_lost_and_its_claim_ends(world: World) -> None:
    world.org("acme", cap=1)
    kept, _ = world.warm(2)
    granted = world.granted("acme")
    del world.driver.pods[granted.worker_id]
    world.run_pass("sweep_orphans")
    assert world.state_of(granted.worker_id) is State.HOT
    world.run_pass("sweep_orphans")
    assert world.state_of(granted.worker_id) is State.LOST
    assert world.renew(granted.claim_id)["gone"] == {granted.claim_id: "worker_lost"}
    world.granted("acme")
    assert kept


def test_a_pod_seen_again_is_no_longer_suspected(world: World) -> None:
    worker, _ = world.warm(2)
    pod = world.driver.pods.pop(worker)
    world.run_pass("sweep_orphans")
    world.driver.pods[worker] = pod
    world.run_pass("sweep_orphans")
    del world.driver.pods[worker]
    world.run_pass("sweep_orphans")
    assert world.state_of(worker) is State.IDLE


def test_a_failed_list_deletes_nothing_and_the_pass_does_not_succeed(world: World) -> None:
    world.warm(1)
    world.driver.age_s = 600
    assert world.run_pass("sweep_orphans")["outcome"] == "stale"
    with world.store.read() as tx:
        row = passes.get(tx, "sweep_orphans")
    assert row.last_success_at is None


def test_an_empty_list_is_accepted_only_with_the_anchor(world: World) -> None:
    (worker,) = world.warm(1)
    world.driver.pods.clear()
    for _ in range(5):
        world.run_pass("sweep_orphans")
    assert world.state_of(worker) is State.IDLE
    world.driver.anchored = False
    world.pass_time(120)
    world.run_pass("sweep_orphans")
    assert world.state_of(worker) is State.IDLE
    world.driver.anchored = True
    for _ in range(5):
        world.pass_time(30)
        world.run_pass("sweep_orphans")
    assert world.state_of(worker) is State.LOST


def test_companions_without_a_pod_are_removed(world: World) -> None:
    world.warm(1)
    world.driver.secrets["w-gone"] = "s"
    world.run_pass("sweep_orphans")
    world.run_pass("sweep_orphans")
    assert "w-gone" not in world.driver.secrets
    assert len(world.driver.secrets) == 1


def test_a_restored_database_deletes_no_busy_pod(world: World) -> None:
    """The pod was claimed and stamped after the backup was taken."""
    (worker,) = world.warm(1)
    world.driver.change(worker, age_s=1000)
    world.driver.stamp(world.driver.pods[worker], Stamp(org="acme", claim_id="c-later", epoch=5, busy=True))
    world.driver.words[worker] = Word.BUSY
    for name in (
        "guard_disruption",
        "sweep_orphans",
        "sweep_stuck",
        "reap",
        "sweep_orphans",
        "guard_disruption",
    ):
        world.run_pass(name)
        world.settle()
    assert worker in world.driver.pods
    assert world.driver.pods[worker].annotations[NOTE_DO_NOT_DISRUPT] == "true"
    assert world.refused("bolt").reason is Reason.NO_WARM_WORKER
    world.driver.words[worker] = Word.UNUSED
    world.run_pass("sweep_orphans")
    world.run_pass("sweep_orphans")
    assert worker not in world.driver.pods


# guard_disruption


def test_busy_pods_are_protected_idle_pods_are_not_and_a_quiet_pool_writes_nothing(world: World) -> None:
    busy, idle = world.warm(2)
    granted = world.granted("acme")
    busy, idle = granted.worker_id, idle if granted.worker_id == busy else busy
    world.broker.sent.clear()
    world.run_pass("guard_disruption")
    assert world.driver.pods[busy].labels[LABEL_BUSY] == "true"
    assert world.driver.pods[idle].labels[LABEL_BUSY] == "false"
    before = len(world.driver.calls)
    world.run_pass("guard_disruption")
    assert len(world.driver.calls) == before


def test_a_protection_left_behind_by_a_dead_replica_is_cleared(world: World) -> None:
    (worker,) = world.warm(1)
    pod = world.driver.pods[worker]
    world.driver.change(
        worker,
        annotations={**pod.annotations, NOTE_DO_NOT_DISRUPT: "true"},
        labels={**pod.labels, LABEL_BUSY: "true"},
    )
    world.run_pass("guard_disruption")
    assert NOTE_DO_NOT_DISRUPT not in world.driver.pods[worker].annotations
    assert NOTE_ORG not in world.driver.pods[worker].annotations


# reconcile_headroom, collect_garbage


def test_headroom_is_constant_and_disabling_it_deletes_it(world: World) -> None:
    """Looked at after each run: too many that the next run deletes again would be too many all the same."""
    world.profile(headroom=2)
    world.warm(100)
    for _ in range(2):
        world.run_pass("reconcile_headroom")
        assert _placeholders(world) == 2
    world.run_pass("sweep_orphans")
    assert _placeholders(world) == 2
    world.profile(headroom=0)
    world.run_pass("reconcile_headroom")
    assert _placeholders(world) == 0
    assert len(world.workers(State.IDLE)) == 100


def test_ended_placeholder_is_no_headroom_and_is_replaced(world: World) -> None:
    world.profile(headroom=2)
    dead, well = _headroom(world)
    world.driver.change(dead, phase=PodPhase.ENDED, ready=False)
    assert well in (now := _headroom(world))
    assert dead not in now
    assert len(now) == 2


def test_placeholder_of_an_old_shape_is_replaced_by_one_of_the_new(world: World) -> None:
    world.profile(headroom=2)
    old = _headroom(world)
    for change in (
        {"memory_mib": 999},
        {"node_selector": {"disk": "fast"}},
        {"headroom_cpu_millicores": 7000},
    ):
        world.profile(**change)
        now = _headroom(world)
        assert len(now) == 2
        assert not set(now) & set(old), change
        old = now


def test_change_that_does_not_shape_placeholders_replaces_none(world: World) -> None:
    world.profile(headroom=2)
    old = _headroom(world)
    world.profile(warm_target=7, grace_s=5, env={"A": "b"}, hot_idle_ttl_s=1)
    assert _headroom(world) == old


def test_placeholders_of_an_old_shape_are_replaced_in_steps(world: World) -> None:
    world.profile(headroom=25)
    old = set(_headroom(world))
    world.profile(memory_mib=999)
    left = []
    for _ in range(3):
        now = set(_headroom(world))
        assert len(now) == 25
        left.append(len(now & old))
    assert left == [15, 5, 0]


def test_each_profile_has_its_own_headroom(world: World) -> None:
    world.profile(headroom=1)
    world.profile("gpu", headroom=2, cpu_millicores=64_000, warm_target=0)
    _headroom(world)
    kinds = sorted(p.profile for p in world.driver.pods.values() if p.role == PodRole.PLACEHOLDER)
    assert kinds == ["default", "gpu", "gpu"]
    specs = {s.profile: s for s in world.driver.specs if s.role is PodRole.PLACEHOLDER}
    assert specs["gpu"].cpu_millicores == 64_000
    assert specs["default"].cpu_millicores == 500


def test_placeholder_has_the_size_that_the_profile_gives_it(world: World) -> None:
    world.profile(headroom=1, headroom_cpu_millicores=7_500, headroom_memory_mib=30_000)
    _headroom(world)
    (spec,) = [s for s in world.driver.specs if s.role is PodRole.PLACEHOLDER]
    assert (spec.cpu_millicores, spec.memory_mib) == (7_500, 30_000)


def test_placeholders_of_a_removed_profile_are_deleted(world: World) -> None:
    world.profile("gpu", headroom=2, warm_target=0)
    world.profile(headroom=1)
    assert len(_headroom(world)) == 3
    world.configure(profiles={"default": world.deps.settings.profiles["default"]})
    (left,) = _headroom(world)
    assert world.driver.pods[left].profile == "default"


def test_one_refused_profile_leaves_the_headroom_of_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.profile(headroom=2)
    world.profile("gpu", headroom=1, warm_target=0)
    create = world.driver.create

    def refuses_default(spec: PodSpec) -> Pod:
        if spec.profile == "default":
            raise Refused("denied", detail="by a policy")
        return create(spec)

    monkeypatch.setattr(world.driver, "create", refuses_default)
    assert world.run_pass("reconcile_headroom")["outcome"] == "ok"
    assert [p.profile for p in world.driver.pods.values()] == ["gpu"]


def test_status_counts_placeholders_that_really_run(world: World) -> None:
    world.profile(headroom=3)
    names = _headroom(world)
    world.run_pass("reconcile_headroom")
    assert _status(world) == ({"wanted": 3, "running": 3}, [])
    world.driver.change(names[0], phase=PodPhase.ENDED, ready=False)
    world.driver.change(names[1], phase=PodPhase.PENDING, ready=False, unschedulable=True)
    world.run_pass("reconcile_headroom")
    shown = "profile default: 1 of 3 placeholders of its headroom are running"
    assert _status(world) == ({"wanted": 3, "running": 1}, [shown])
    world.profile(headroom=0)
    world.run_pass("reconcile_headroom")
    assert _status(world)[1] == []


def _headroom(world: World) -> list[str]:
    """Run the pass, let every placeholder start, and return their names."""
    assert world.run_pass("reconcile_headroom")["outcome"] == "ok"
    found = [p for p in world.driver.pods.values() if p.role == PodRole.PLACEHOLDER]
    for pod in found:
        if pod.phase is PodPhase.PENDING:
            world.driver.become_ready(pod.name)
    return sorted(p.name for p in found)


def _status(world: World) -> tuple[dict[str, int], list[str]]:
    seen = reporting.status(world.store, world.deps.settings)
    texts = [w["text"] for w in seen["worries"] if w["id"].startswith("headroom:")]
    return seen["profiles"]["default"]["headroom"], texts


def test_ended_rows_are_deleted_after_their_retention(world: World) -> None:
    world.warm(3)
    kept = world.granted("acme")
    for _ in range(2):
        world.release(world.granted("bolt").claim_id, "tainted")
    world.refused("cats")
    world.settle()
    world.pass_time(8 * 86_400)
    world.run_pass("collect_garbage")
    world.run_pass("collect_garbage")
    assert [r.id for r in world.rows("workers")] == [kept.worker_id]
    assert [r.id for r in world.rows("claims")] == [kept.claim_id]
    assert len(world.rows("requests")) == 1
    assert {r.worker_id for r in world.rows("journal")} == {kept.worker_id}


# All passes


@pytest.mark.parametrize("name", list(PASSES))
def test_a_dry_run_changes_nothing(world: World, name: str) -> None:
    _something_of_everything(world)
    before = _everything(world)
    world.run_pass(name, dry_run=True)
    assert _everything(world) == before


@pytest.mark.parametrize("name", list(PASSES))
def test_no_pass_touches_the_pod_of_a_live_claim(world: World, name: str) -> None:
    """Although it is past every age and limit."""
    world.profile(warm_target=0, probe_path="/healthz")
    world.configure(max_age_s=100, surplus_ttl_s=1)
    (worker,) = world.warm(1)
    granted = world.granted("acme", lease_s=3600)
    world.settle()
    world.driver.change(worker, ready=False, terminating=True, age_s=5000)
    world.observe()
    for _ in range(3):
        world.pass_time(1000)
        world.run_pass(name)
        world.settle()
    assert world.state_of(worker) is State.HOT
    assert worker in world.driver.pods
    assert granted.claim_id in world.renew(granted.claim_id)["renewed"]


@pytest.mark.parametrize("name", list(PASSES))
def test_a_pass_interrupted_at_any_step_converges_to_the_same_state(world: World, name: str) -> None:
    """The lock is lost before step 1, 2, 3, …; the next complete run finishes the work."""
    _something_of_everything(world)
    for steps in range(6):
        left = [steps]

        def still_ours(left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] >= 0

        from pool.passes.running import carry_out

        carry_out(world.deps, PASSES[name], Run(deps=world.deps, name=name, still_ours=still_ours))
    world.run_pass(name)
    world.settle()
    world.run_pass(name)
    first = _shape(world)
    world.run_pass(name)
    assert _shape(world) == first


def test_a_broken_promise_in_a_pass_is_recorded_and_raised(world: World) -> None:
    def broken(run: Run) -> None:
        raise BrokenPromise("bad")

    from pool.passes.running import Pass, carry_out

    with world.store.write() as tx:
        passes.attempt(tx, "reap", "test", not_within_s=0)
    with pytest.raises(BrokenPromise):
        carry_out(world.deps, Pass(name="reap", run=broken), Run(deps=world.deps, name="reap"))
    with world.store.read() as tx:
        assert passes.get(tx, "reap").last_outcome == "failed"


def _something_of_everything(world: World) -> None:
    """Work for every pass."""
    world.profile("big", warm_target=0)
    world.profile(warm_target=2)
    world.profile(headroom=1)
    world.warm(4)
    world.release(world.granted("acme", ttl_s=5).claim_id)
    world.granted("bolt")
    world.waits("cats", profile="big", wait_s=5)
    world.driver.secrets["w-gone"] = "s"
    world.driver.words[_pod(world, "w-held", stamped=True)] = Word.BUSY
    world.run_pass("sweep_orphans")
    _pod(world, "w-orphan")
    world.refused("dogs", profile="big")
    world.driver.pods.pop(next(w.id for w in world.workers(State.IDLE)), None)
    world.pass_time(1000)


def _everything(world: World) -> object:
    tables = [t for t in schema.metadata.tables if t not in {"clock"}]
    return (
        {t: [tuple(r) for r in world.rows(t)] for t in tables},
        dict(world.driver.pods),
        list(world.broker.sent),
    )


def _shape(world: World) -> object:
    return (
        sorted((w.id, w.state) for w in world.workers()),
        sorted(world.driver.pods),
        sorted(world.driver.secrets),
    )


def _placeholders(world: World) -> int:
    return sum(1 for p in world.driver.pods.values() if p.role == PodRole.PLACEHOLDER)


def test_pods_that_ended_by_themselves_are_lost_with_their_exit_code(world: World) -> None:
    (worker,) = world.warm(1)
    granted = world.granted("acme")
    pod = replace(
        world.driver.pods[worker], phase=PodPhase.ENDED, exit_code=137, trouble="OOMKilled", ready=False
    )
    world.driver.pods[worker] = pod
    from pool.lifecycle import observing

    observing.observe(world.deps, pod)
    assert world.state_of(worker) is State.LOST
    assert world.renew(granted.claim_id)["gone"] == {granted.claim_id: "worker_lost"}
    with world.store.read() as tx:
        assert orgs.pool_row(tx).live == 0


# Profiles that were removed from the configuration


def test_unclaimed_workers_of_a_removed_profile_are_retired_in_steps_and_busy_ones_when_released(
    world: World,
) -> None:
    world.profile("gone", warm_target=0)
    world.warm(4, "gone")
    kept = world.warm(1)
    busy = world.granted(profile="gone", ttl_s=600)
    parked = world.granted(profile="gone", ttl_s=600)
    world.release(parked.claim_id)
    world.configure(
        profiles={"default": replace(world.deps.settings.profiles["default"], warm_target=1)}, pass_limit=2
    )
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.IDLE, State.HOT_IDLE)) == 4
    world.pass_time(61)
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.IDLE, State.HOT_IDLE)) == 2
    world.run_pass("reconcile_warm")
    world.settle()
    assert [w.id for w in world.workers(State.IDLE, State.HOT_IDLE)] == kept
    assert world.state_of(busy.worker_id) is State.HOT
    world.release(busy.claim_id)
    assert world.state_of(busy.worker_id) is State.DRAINING


def test_a_profile_in_the_configuration_of_another_replica_is_left_alone(world: World) -> None:
    old = world.deps
    world.profile("new", warm_target=0)
    world.warm(1, "new")
    new = world.deps
    for _ in range(5):
        world.pass_time(40)
        world.deps = old
        world.run_pass("reconcile_warm")
        world.deps = new
        world.run_pass("reconcile_warm")
    assert len(world.workers(State.IDLE)) >= 1
    assert [w.profile for w in world.workers(State.IDLE)].count(ProfileName("new")) == 1
