"""The database's clock steps by ten minutes, back or forth: no pass becomes dark, no live claim
ends, and nothing is kept for the length of the step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from pool.core.ids import ProfileName
from pool.core.periods import PERIODS_S, lock_ttl_s, not_within_s, tick_s
from pool.core.records import Held
from pool.core.states import State
from pool.lifecycle import activating
from pool.passes import PASSES
from pool.passes.fallback import reap_if_dark
from pool.passes.running import run_once
from pool.store import breakers, supply, suspects, workers
from pool.store.rollouts import CHALLENGE_S, WantedRevision, adopt
from pool.store.suspects import SuspectKind
from tests.support.world import World

STEP_S = 600.0
STEPS = pytest.mark.parametrize("step_s", [-STEP_S, STEP_S], ids=["back", "forth"])


class Willing:
    """Workers that accept every activation."""

    def activate(self, *_: object) -> None:
        """Accept."""

    def healthy(self, *_: object) -> bool:
        return True


def _reaps(world: World, seconds: float, renews: Callable[[], object] = lambda: None) -> None:
    """Let time pass as in a running pool: reaps, canaries and renewals."""
    for _ in range(int(seconds // 5)):
        world.pass_time(5)
        world.canary()
        renews()
        world.run_pass("reap")
        world.settle()


@STEPS
@pytest.mark.parametrize("name", list(PASSES))
def test_no_pass_is_dark_after_a_clock_step(world: World, name: str, step_s: float) -> None:
    assert run_once(world.deps, PASSES[name])["outcome"] == "ok"
    world.pass_time(step_s)
    if step_s > 0 and not_within_s(name) > step_s:
        world.pass_time(PERIODS_S[name])
    assert run_once(world.deps, PASSES[name])["outcome"] == "ok"
    assert run_once(world.deps, PASSES[name])["outcome"] == "not_due"
    world.pass_time(PERIODS_S[name])
    assert run_once(world.deps, PASSES[name])["outcome"] == "ok"


@pytest.mark.parametrize("step_s", [-1.0, -4.0, -9.0, -30.0])
@pytest.mark.parametrize("name", list(PASSES))
def test_a_small_step_back_costs_at_most_one_more_tick(world: World, name: str, step_s: float) -> None:
    run_once(world.deps, PASSES[name])
    world.pass_time(step_s)
    outcomes = []
    # A step as long as a tick makes the last attempt look as if it were now.
    for _ in range(int((PERIODS_S[name] + lock_ttl_s(name)) // tick_s(name)) + 1):
        world.pass_time(tick_s(name))
        outcomes.append(run_once(world.deps, PASSES[name])["outcome"])
    assert "ok" in outcomes


def test_fallback_ignores_a_success_from_the_future(world: World) -> None:
    assert run_once(world.deps, PASSES["reap"])["outcome"] == "ok"
    stop = threading.Event()
    assert not reap_if_dark(world.deps, stop)
    world.pass_time(-STEP_S)
    assert reap_if_dark(world.deps, stop)
    run_once(world.deps, PASSES["reap"])
    assert not reap_if_dark(world.deps, stop)


@STEPS
def test_no_live_claim_ends_after_a_clock_step(world: World, step_s: float) -> None:
    world.warm(1)
    granted = world.granted("acme", lease_s=30)
    _reaps(world, 20, lambda: world.renew(granted.claim_id))
    world.pass_time(step_s)
    world.run_pass("reap")
    world.canary()
    world.run_pass("reap")
    assert granted.claim_id in world.renew(granted.claim_id)["renewed"]
    _reaps(world, 60, lambda: world.renew(granted.claim_id))
    assert world.state_of(granted.worker_id) is State.HOT


@STEPS
def test_a_dead_holders_claim_ends_a_lease_after_the_step(world: World, step_s: float) -> None:
    world.warm(1)
    granted = world.granted("acme", lease_s=30)
    _reaps(world, 10, lambda: world.renew(granted.claim_id))
    world.pass_time(step_s)
    _reaps(world, 20)
    assert world.state_of(granted.worker_id) is State.HOT
    _reaps(world, 40)
    assert world.state_of(granted.worker_id) is State.RETIRED


def test_a_canary_from_the_future_ends_no_lease_and_reopens_the_lane(world: World) -> None:
    world.warm(1)
    world.granted("acme", lease_s=5)
    _reaps(world, 5)
    world.pass_time(-STEP_S)
    before = world.rows("pool")[0]
    world.canary()
    after = world.rows("pool")[0]
    assert after.lane_open_since < before.lane_open_since or after.lane_open_since <= world.store.now()


@STEPS
def test_a_parked_worker_drains_after_its_ttl_in_spite_of_any_step(world: World, step_s: float) -> None:
    (worker,) = world.warm(1)
    world.release(world.granted("acme", ttl_s=60).claim_id)
    world.pass_time(step_s)
    _reaps(world, 75)
    assert world.state_of(worker) is State.RETIRED


def test_a_parked_worker_has_its_whole_ttl_after_a_step_back(world: World) -> None:
    (worker,) = world.warm(1)
    world.release(world.granted("acme", ttl_s=60).claim_id)
    world.pass_time(-STEP_S)
    _reaps(world, 50)
    assert world.state_of(worker) is State.HOT_IDLE


@STEPS
def test_a_waiter_is_answered_after_its_wait_in_spite_of_any_step(world: World, step_s: float) -> None:
    task = world.waits("acme", wait_s=30)
    world.pass_time(step_s)
    _reaps(world, 45)
    assert [answer["reason"] for answer in world.broker.answers_for(task)] == ["wait_timeout"]


def test_the_order_of_waiters_is_kept_after_a_step_back(world: World) -> None:
    first, second = (world.waits("acme", wait_s=60) for _ in range(2))
    world.pass_time(-STEP_S)
    world.run_pass("reap")
    third = world.waits("acme", wait_s=60)
    world.warm(1)
    assert [bool(world.broker.answers_for(task)) for task in (first, second, third)] == [True, False, False]


def test_surplus_drains_after_its_time_in_spite_of_any_step(world: World) -> None:
    world.profile(warm_target=0)
    world.configure(surplus_ttl_s=60)
    (worker,) = world.warm(1)
    world.pass_time(-STEP_S)
    _reaps(world, 75)
    assert world.state_of(worker) is State.RETIRED


def test_a_delete_that_failed_is_sent_again_after_a_step_back(world: World) -> None:
    world.warm(1)
    granted = world.granted("acme")
    world.release(granted.claim_id, "tainted")
    world.broker.sent.clear()
    world.pass_time(-STEP_S)
    _reaps(world, 30)
    assert world.state_of(granted.worker_id) is State.RETIRED


def test_a_lost_spawn_is_sent_again_after_a_step_back(world: World) -> None:
    world.profile(warm_target=1)
    world.run_pass("reconcile_warm")
    world.broker.sent.clear()
    world.pass_time(-STEP_S)
    world.run_pass("sweep_stuck")
    assert [task for task, _ in world.broker.sent] == ["pool.spawn"]


def test_a_starting_slot_keeps_its_limit_and_a_dead_one_is_freed_after_it(world: World) -> None:
    world.profile(warm_target=1)
    world.run_pass("reconcile_warm")
    world.deliver("pool.spawn")
    (slot,) = world.workers(State.SPAWNING)
    world.pass_time(-STEP_S)
    world.run_pass("reap")
    world.run_pass("sweep_stuck")
    assert world.state_of(slot.id) is State.SPAWNING
    world.pass_time(world.deps.settings.pool.stuck_cutoff_s + 5)
    world.run_pass("sweep_stuck")
    assert world.state_of(slot.id) is not State.SPAWNING


def test_after_a_step_back_only_activations_without_heartbeat_are_ended(world: World) -> None:
    world.profile(activation_path="/activate")
    world.deps = replace(world.deps, worker_api=Willing())
    world.warm(1)
    world.waits("acme", wait_s=3600)
    (bound,) = world.workers(State.RESERVED)
    assert bound.claim_id is not None
    held = Held(worker_id=bound.id, claim_id=bound.claim_id, epoch=bound.epoch)
    activating._enter(world.deps, held)
    world.pass_time(-STEP_S)
    stuck_s = world.deps.settings.pool.activation_stuck_s
    world.run_pass("reap")
    world.run_pass("sweep_stuck")
    assert world.state_of(bound.id) is State.ACTIVATING
    world.pass_time(stuck_s - 1)
    with world.store.write() as tx:
        workers.record_heartbeat(tx, held)
    world.pass_time(stuck_s - 1)
    world.run_pass("sweep_stuck")
    assert world.state_of(bound.id) is State.ACTIVATING
    world.pass_time(5)
    world.run_pass("sweep_stuck")
    assert world.state_of(bound.id) is not State.ACTIVATING


def test_an_answer_from_the_future_is_delivered_at_once(world: World) -> None:
    task = world.waits("acme", wait_s=1)
    world.pass_time(5)
    world.broker.down = True
    world.run_pass("reap")
    world.broker.down = False
    world.pass_time(-STEP_S)
    world.run_pass("reap")
    assert world.broker.answers_for(task)


def test_a_breaker_stays_open_for_at_most_its_longest_pause(world: World) -> None:
    world.profile(warm_target=1)
    for _ in range(20):
        with world.store.write() as tx:
            breakers.failed(tx, world.deps.settings.profiles["default"].name, "no")  # type: ignore[arg-type]
    world.pass_time(-STEP_S)
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.SPAWNING)) == 1


def test_a_suspicion_from_the_future_ages_from_now_on(world: World) -> None:
    with world.store.write() as tx:
        suspects.see(tx, SuspectKind.EMPTY_CLUSTER, "all")
    world.pass_time(-STEP_S)
    with world.store.write() as tx:
        suspects.see(tx, SuspectKind.EMPTY_CLUSTER, "all")
    world.pass_time(70)
    with world.store.write() as tx:
        assert suspects.see(tx, SuspectKind.EMPTY_CLUSTER, "all").age_s >= 60


def test_a_challenge_from_the_future_begins_anew(world: World) -> None:
    name = ProfileName("default")
    old, new = (WantedRevision(profile=name, revision=r, image=r) for r in "ab")
    with world.store.write() as tx:
        assert adopt(tx, old)
        assert adopt(tx, new)
        assert not adopt(tx, old)
    world.pass_time(-STEP_S)
    for adopted in (False, False, False, True):
        with world.store.write() as tx:
            assert adopt(tx, old) is adopted
        world.pass_time(CHALLENGE_S / 3 + 1)


def test_a_miss_from_the_future_is_no_demand(world: World) -> None:
    world.refused("acme")
    world.pass_time(-STEP_S)
    with world.store.write() as tx:
        assert supply.fresh_misses(tx, ProfileName("default"), ["default"], fresh_s=60, most=9) == []


def test_a_quiet_pool_repairs_nothing(world: World) -> None:
    world.warm(3)
    world.granted("acme", lease_s=3600)
    world.release(world.granted("acme", ttl_s=600).claim_id)
    world.profile("other", warm_target=1)
    world.waits("bolt", profile="other", wait_s=3600)
    world.run_pass("reconcile_warm")
    assert "clock_restarted" not in world.run_pass("reap")["actions"]
