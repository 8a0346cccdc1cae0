"""A profile's build changes: new workers first, then the old ones drain in steps; a build that does
not start changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from pool.core.ids import ProfileName
from pool.core.profiles import revision
from pool.core.states import Outcome, State
from pool.drivers.port import PodPhase
from pool.lifecycle.spawning import HANDED_ON_AT_MOST, spawn
from pool.ops import reporting
from pool.ops.cli.status import screen
from pool.passes import PASSES
from pool.passes.running import Run, carry_out, run_once
from pool.store import breakers, targets
from pool.store.rollouts import CHALLENGE_S, REPEATED_WITHIN_S
from tests.support.world import World

NEW = "registry/worker:2"


@pytest.fixture
def rolled(world: World) -> World:
    """Four warm workers whose image was changed, in a pool that replaces one at a time."""
    world.configure(rollout_step_percent=1, rollout_ready_s=0)
    world.profile(warm_target=4)
    world.run_pass("reconcile_warm")
    _become_ready(world)
    assert len(world.workers(State.IDLE)) == 4
    world.profile(image=NEW)
    return world


def _become_ready(world: World) -> None:
    """Start the pods of all slots and observe them."""
    world.deliver("pool.spawn", "pool.retire")
    for pod in list(world.driver.pods.values()):
        if not pod.ready:
            world.driver.become_ready(pod.name)
    world.observe()


def _end(world: World) -> None:
    """End the pods of all slots at once, like those of a broken image."""
    world.deliver("pool.spawn", "pool.retire")
    for pod in list(world.driver.pods.values()):
        if not pod.ready:
            world.driver.change(pod.name, phase=PodPhase.ENDED, trouble="no such file", exit_code=127)
    world.observe()


def _images(world: World, *states: State) -> list[str]:
    return sorted(w.image for w in world.workers(*states))


def _status(world: World) -> str:
    return screen(reporting.status(world.store, world.deps.settings))


def test_a_rollout_never_takes_the_warm_supply_below_the_target(
    rolled: World,
) -> None:
    for _ in range(9):
        before = set(rolled.driver.pods)
        rolled.run_pass("reconcile_warm")
        assert len(rolled.workers(State.IDLE)) >= 4
        assert len(rolled.workers(State.SPAWNING)) <= 1
        assert len(before - {w.id for w in rolled.workers(State.IDLE)}) <= 1
        _become_ready(rolled)
    assert _images(rolled, State.IDLE) == [NEW] * 4
    assert len(rolled.driver.pods) == 4
    rolled.run_pass("reconcile_warm")
    assert not rolled.broker.sent


@pytest.mark.parametrize("image", [NEW, "registry/node-runner:2", "registry/evict-preempt:2"])
def test_replaced_worker_counts_as_a_rollout_for_any_image_name(rolled: World, image: str) -> None:
    rolled.profile(image=image)
    for _ in range(3):
        rolled.run_pass("reconcile_warm")
        _become_ready(rolled)
    metric = next(m for m in rolled.deps.metrics.registry.collect() if m.name == "warmpool_moves")
    drained = {s.labels["reason"] for s in metric.samples if s.labels["to"] == "draining"}
    assert drained == {"rollout"}


def test_a_rollout_keeps_a_warm_target_set_at_run_time(rolled: World) -> None:
    """The configuration has four; an operator has set six while the old image was warm."""
    with rolled.store.write() as tx:
        targets.set_target(tx, ProfileName("default"), 6, who="test")
    for _ in range(4):
        rolled.run_pass("reconcile_warm")
        _become_ready(rolled)
    assert len(rolled.workers(State.IDLE)) >= 6
    for _ in range(9):
        rolled.run_pass("reconcile_warm")
        assert len(rolled.workers(State.IDLE)) >= 6
        _become_ready(rolled)
    assert _images(rolled, State.IDLE) == [NEW] * 6


def test_a_larger_step_replaces_more_at_a_time(rolled: World) -> None:
    rolled.configure(rollout_step_percent=50)
    rolled.run_pass("reconcile_warm")
    assert len(rolled.workers(State.SPAWNING)) == 1  # tried with one
    _become_ready(rolled)
    rolled.run_pass("reconcile_warm")
    assert len(rolled.workers(State.SPAWNING)) == 2


def test_a_worker_that_is_ready_only_briefly_replaces_nothing(rolled: World) -> None:
    rolled.configure(rollout_ready_s=10)
    rolled.run_pass("reconcile_warm")
    _become_ready(rolled)
    rolled.run_pass("reconcile_warm")
    assert len(_images(rolled, State.IDLE)) == 5
    rolled.pass_time(11)
    rolled.run_pass("reconcile_warm")
    assert _images(rolled, State.IDLE).count(NEW) == 1
    assert len(_images(rolled, State.IDLE)) == 4


def test_a_new_worker_that_is_just_ready_and_not_in_the_view_is_not_made_again(
    rolled: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has its own view of the pods, and this one's is slightly older than the rows."""
    rolled.run_pass("reconcile_warm")
    before = rolled.driver.cached()
    _become_ready(rolled)
    with monkeypatch.context() as older:
        older.setattr(rolled.driver, "cached", lambda: before)
        rolled.run_pass("reconcile_warm")
    assert _images(rolled, State.SPAWNING) == []
    assert len(_images(rolled, State.IDLE)) == 5
    rolled.run_pass("reconcile_warm")
    assert len(_images(rolled, State.IDLE)) == 4


def test_old_workers_are_granted_until_they_are_replaced(rolled: World) -> None:
    rolled.run_pass("reconcile_warm")
    granted = rolled.granted()
    assert rolled.worker(granted.worker_id).image != NEW


def test_a_busy_worker_of_the_old_image_drains_when_it_is_released_and_is_never_parked(rolled: World) -> None:
    granted = rolled.granted(ttl_s=600)
    rolled.run_pass("reconcile_warm")
    _become_ready(rolled)
    rolled.run_pass("reconcile_warm")
    assert rolled.state_of(granted.worker_id) is State.HOT
    assert granted.worker_id in rolled.driver.pods
    rolled.release(granted.claim_id)
    assert rolled.state_of(granted.worker_id) is State.DRAINING
    rolled.settle()
    assert granted.worker_id not in rolled.driver.pods


def test_a_busy_worker_of_the_new_image_is_parked_when_it_is_released(rolled: World) -> None:
    for _ in range(9):
        rolled.run_pass("reconcile_warm")
        _become_ready(rolled)
    granted = rolled.granted(ttl_s=600)
    rolled.release(granted.claim_id)
    assert rolled.state_of(granted.worker_id) is State.HOT_IDLE


def test_parked_workers_of_the_old_image_drain_in_steps_also_below_their_orgs_floor(
    rolled: World,
) -> None:
    rolled.org("acme", hot_idle_floor=3)
    for granted in [rolled.granted(ttl_s=600) for _ in range(3)]:
        rolled.release(granted.claim_id)
    seen = []
    for _ in range(14):
        rolled.run_pass("reconcile_warm")
        seen.append(len(rolled.workers(State.HOT_IDLE)))
        _become_ready(rolled)
    assert seen[0] == 3
    assert seen[-1] == 0
    assert all(a - b <= 1 for a, b in pairwise(seen))
    assert _images(rolled, State.IDLE) == [NEW] * 4


def test_a_profile_with_warm_target_zero_replaces_parked_workers(world: World) -> None:
    world.configure(rollout_ready_s=0)
    world.profile(warm_target=0)
    world.warm(1)
    world.run_pass("reconcile_warm")
    granted = world.granted(ttl_s=600)
    world.release(granted.claim_id)
    world.profile(image=NEW)
    for _ in range(3):
        world.run_pass("reconcile_warm")
        _become_ready(world)
    assert world.state_of(granted.worker_id) in {State.DRAINING, State.RETIRED}


def test_an_image_that_does_not_start_halts_the_rollout_and_old_workers_serve(rolled: World) -> None:
    old = {w.id for w in rolled.workers(State.IDLE)}
    for _ in range(5):
        rolled.run_pass("reconcile_warm")
        _end(rolled)
        rolled.pass_time(400)
    assert {w.id for w in rolled.workers(State.IDLE)} == old
    assert f"! profile default: the rollout of {NEW} is halted: container_ended: no such file" in _status(
        rolled
    )
    assert "the old workers stay (4 idle)" in _status(rolled)
    granted = rolled.granted(ttl_s=600)
    assert granted.worker_id in old
    rolled.release(granted.claim_id)
    assert rolled.state_of(granted.worker_id) is State.HOT_IDLE


def test_a_halted_rollout_resumes_once_the_image_starts(rolled: World) -> None:
    for _ in range(3):
        rolled.run_pass("reconcile_warm")
        _end(rolled)
    rolled.pass_time(400)
    for _ in range(9):
        rolled.run_pass("reconcile_warm")
        _become_ready(rolled)
    assert _images(rolled, State.IDLE) == [NEW] * 4
    assert "rollout" not in _status(rolled)


def test_a_corrected_image_is_tried_at_once(rolled: World) -> None:
    """Failures of the broken image do not count against it."""
    for _ in range(4):
        rolled.run_pass("reconcile_warm")
        _end(rolled)
    rolled.profile(image="registry/worker:3")
    rolled.run_pass("reconcile_warm")
    with rolled.store.read() as tx:
        assert not breakers.every(tx)
    assert _images(rolled, State.SPAWNING) == ["registry/worker:3"]


def test_a_rollback_keeps_the_workers_of_the_image_before(rolled: World) -> None:
    old = {w.id for w in rolled.workers(State.IDLE)}
    rolled.run_pass("reconcile_warm")
    _end(rolled)
    rolled.profile(image=rolled.worker(min(old)).image)
    for _ in range(8):
        rolled.run_pass("reconcile_warm")
        _become_ready(rolled)
        rolled.pass_time(REPEATED_WITHIN_S - 5)
    assert {w.id for w in rolled.workers(State.IDLE)} == old
    assert "rolling out" not in _status(rolled)
    assert "halted" not in _status(rolled)


def test_a_process_with_an_old_configuration_does_not_undo_a_rollout(rolled: World) -> None:
    """While the control plane itself is replaced, both versions run the passes in turn, for longer
    than any limit. An old process that is restarted is no newer than before.
    """
    new = rolled.deps
    rolled.profile(image="warmpool/reference-worker")
    stale = rolled.deps
    for _ in range(9):
        rolled.deps = new
        rolled.run_pass("reconcile_warm")
        _become_ready(rolled)
        what = carry_out(stale, PASSES["reconcile_warm"], Run(deps=stale, name="reconcile_warm"))
        assert what["actions"]["stood_back"]
        rolled.pass_time(CHALLENGE_S + 1)
    assert _images(rolled, State.IDLE) == [NEW] * 4


def test_a_configuration_without_a_live_process_is_not_in_force(rolled: World) -> None:
    rolled.run_pass("reconcile_warm")
    rolled.profile(image="warmpool/reference-worker")
    rolled.granted()
    for _ in range(3):
        rolled.run_pass("reconcile_warm")
        assert [r.image for r in rolled.rows("rollouts")] == [NEW]
        rolled.pass_time(CHALLENGE_S / 3)
    rolled.pass_time(1)
    for _ in range(2):
        rolled.run_pass("reconcile_warm")
        _become_ready(rolled)
    assert [r.image for r in rolled.rows("rollouts")] == ["warmpool/reference-worker"]
    assert _images(rolled, State.IDLE) == ["warmpool/reference-worker"] * 4


def test_an_outage_does_not_make_an_old_configuration_the_wanted_one(rolled: World) -> None:
    """It begins during a challenge and takes an hour. Then the old process comes first, the new one a
    moment later.
    """
    rolled.run_pass("reconcile_warm")
    new = rolled.deps
    rolled.profile(image="warmpool/reference-worker")
    stale = rolled.deps
    rolled.run_pass("reconcile_warm")
    rolled.pass_time(3600)
    for rolled.deps in (stale, new, stale):
        rolled.run_pass("reconcile_warm")
        rolled.pass_time(5)
    assert [r.image for r in rolled.rows("rollouts")] == [NEW]
    rolled.deps = new
    rolled.run_pass("reconcile_warm")
    assert [r.challenged_at for r in rolled.rows("rollouts")] == [None]


def test_any_pass_of_a_process_with_the_wanted_build_withdraws_a_challenge(rolled: World) -> None:
    """The old process gets every tick of the reconcile, the new one only those of another pass."""
    rolled.run_pass("reconcile_warm")
    new = rolled.deps
    rolled.profile(image="warmpool/reference-worker")
    for _ in range(9):
        rolled.run_pass("reconcile_warm")
        run_once(new, PASSES["collect_garbage"], by_hand=True)
        rolled.pass_time(REPEATED_WITHIN_S - 5)
    assert [r.image for r in rolled.rows("rollouts")] == [NEW]


def test_placeholders_are_left_to_the_process_with_the_wanted_build(rolled: World) -> None:
    rolled.profile(headroom=2)
    rolled.run_pass("reconcile_warm")
    rolled.run_pass("reconcile_headroom")
    before = {name for name in rolled.driver.pods if name not in {w.id for w in rolled.workers()}}
    new = rolled.deps
    assert len(before) == 2
    rolled.profile(image="warmpool/reference-worker", headroom=0)
    rolled.run_pass("reconcile_headroom")
    assert before <= set(rolled.driver.pods)
    rolled.deps = new
    rolled.configure(profiles={})
    rolled.run_pass("reconcile_headroom")
    assert before <= set(rolled.driver.pods)
    rolled.pass_time(61)
    rolled.run_pass("reconcile_headroom")
    assert not before & set(rolled.driver.pods)


def test_a_command_with_another_configuration_changes_no_build(rolled: World) -> None:
    rolled.run_pass("reconcile_warm")
    rolled.profile(image="never/seen:1")
    rolled.deps = replace(rolled.deps, changes_builds=False)
    rolled.run_pass("reconcile_warm")
    assert [r.image for r in rolled.rows("rollouts")] == [NEW]


def test_retired_workers_do_not_widen_the_step_of_a_rollout(world: World) -> None:
    world.configure(rollout_step_percent=50, rollout_ready_s=0)
    world.warm(8)
    for granted in [world.granted() for _ in range(8)]:
        world.release(granted.claim_id, "tainted")
    world.profile(warm_target=4)
    world.run_pass("reconcile_warm")
    _become_ready(world)
    assert (len(world.workers(State.RETIRED)), len(world.workers(State.IDLE))) == (8, 4)
    world.profile(image=NEW)
    world.run_pass("reconcile_warm")
    _become_ready(world)
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.SPAWNING)) == 2


def test_a_slot_of_another_configuration_is_handed_on_until_a_process_has_it(rolled: World) -> None:
    old = rolled.deps
    rolled.run_pass("reconcile_warm")
    (slot,) = rolled.workers(State.SPAWNING)
    rolled.broker.sent.clear()
    rolled.profile(command=("another",))
    for n in range(HANDED_ON_AT_MOST):
        assert spawn(rolled.deps, slot.id, n) is Outcome.FENCED
        assert rolled.broker.sent.pop() == ("pool.spawn", {"worker_id": slot.id, "handed_on": n + 1})
    assert spawn(rolled.deps, slot.id, HANDED_ON_AT_MOST) is Outcome.FENCED
    assert rolled.broker.sent == []
    assert spawn(old, slot.id, 5) is Outcome.MOVED


def test_a_slot_of_a_profile_that_no_process_has_fails_after_it_was_handed_on(rolled: World) -> None:
    rolled.run_pass("reconcile_warm")
    (slot,) = rolled.workers(State.SPAWNING)
    rolled.configure(profiles={})
    assert spawn(rolled.deps, slot.id) is Outcome.FENCED
    assert rolled.state_of(slot.id) is State.SPAWNING
    spawn(rolled.deps, slot.id, HANDED_ON_AT_MOST)
    assert rolled.state_of(slot.id) is State.RETIRED


def test_a_pod_is_created_only_by_a_process_with_the_slots_revision(rolled: World) -> None:
    old = rolled.deps
    rolled.run_pass("reconcile_warm")
    (slot,) = rolled.workers(State.SPAWNING)
    rolled.profile(command=("another",))
    assert spawn(rolled.deps, slot.id) is Outcome.FENCED
    assert slot.id not in rolled.driver.pods
    assert rolled.state_of(slot.id) is State.SPAWNING
    assert spawn(old, slot.id) is Outcome.MOVED


def test_slots_of_an_old_configuration_are_drained(rolled: World) -> None:
    rolled.run_pass("reconcile_warm")
    (slot,) = rolled.workers(State.SPAWNING)
    rolled.profile(command=("another",))
    rolled.run_pass("reconcile_warm")
    assert rolled.state_of(slot.id) is State.DRAINING
    wanted = revision(rolled.deps.settings.profiles["default"])
    rolled.run_pass("reconcile_warm")
    assert {w.revision for w in rolled.workers(State.SPAWNING)} == {wanted}


def test_at_the_pools_cap_a_rollout_waits_for_room_and_drains_nothing(rolled: World) -> None:
    rolled.configure(max_workers=4)
    for _ in range(3):
        rolled.run_pass("reconcile_warm")
        _become_ready(rolled)
    assert len(_images(rolled, State.IDLE)) == 4
    assert NEW not in _images(rolled, State.IDLE)
    assert "no room" in _status(rolled)


def test_the_status_shows_a_rollout_until_it_is_over(rolled: World) -> None:
    rolled.run_pass("reconcile_warm")
    assert (
        f"profile default: rolling out {NEW}: waiting for the first new worker to become ready, 4 idle to replace"
        in _status(rolled)
    )
    _become_ready(rolled)
    rolled.run_pass("reconcile_warm")
    assert f"profile default: rolling out {NEW}: 1 new, 3 idle to replace" in _status(rolled)
    for _ in range(9):
        rolled.run_pass("reconcile_warm")
        _become_ready(rolled)
    assert "rolling out" not in _status(rolled)


def test_a_dry_run_of_a_rollout_changes_nothing(rolled: World) -> None:
    before = rolled.rows("workers"), rolled.rows("rollouts")
    rolled.run_pass("reconcile_warm", dry_run=True)
    assert (rolled.rows("workers"), rolled.rows("rollouts")) == before


def test_a_surplus_of_old_workers_drains_in_steps(world: World) -> None:
    world.configure(rollout_step_percent=1, rollout_ready_s=0)
    world.profile(warm_target=1)
    world.warm(4)
    world.profile(image=NEW)
    world.run_pass("reconcile_warm")
    _become_ready(world)
    world.run_pass("reconcile_warm")
    assert len([w for w in world.workers(State.IDLE) if w.image != NEW]) == 3
