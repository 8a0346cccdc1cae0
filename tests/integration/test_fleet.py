"""Spawning, activating, stamping, retiring, observing: one worker at a time, with messages
delivered twice, late or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pool.core.contract import Pending
from pool.core.errors import Refused, Transient
from pool.core.ids import WorkerId
from pool.core.profiles import revision
from pool.core.records import Held
from pool.core.states import CLAIMED, MoveReason, Outcome, Reason, State
from pool.drivers.port import (
    LABEL_BUSY,
    NOTE_CLAIM,
    NOTE_DO_NOT_DISRUPT,
    NOTE_EPOCH,
    NOTE_ORG,
    Driver,
    Gone,
    Pod,
    PodPhase,
    Stamp,
    StampResult,
)
from pool.lifecycle import activating, observing, retiring, spawning, stamping
from pool.store import orgs, schema, workers
from tests.support.world import World


class ScriptedWorkerApi:
    """Answers activations as the test decides."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.bodies: list[Any] = []

    def activate(self, url: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> None:
        self.bodies.append(body)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome

    def healthy(self, url: str, timeout_s: float) -> bool:
        return True


def _slot(world: World) -> WorkerId:
    with world.store.write() as tx:
        worker_id = world.deps.ids.worker()
        orgs.reserve_slots(tx, 1, 0)
        profile = world.deps.settings.profiles["default"]
        workers.insert_slots(tx, profile, revision(profile), [worker_id], world.deps.by(MoveReason.DEMAND))
    return worker_id


def _activating(world: World, *outcomes: Exception | None, **profile: Any) -> ScriptedWorkerApi:
    api = ScriptedWorkerApi(*outcomes)
    world.profile(activation_path="/activate", **profile)
    world.deps = replace(world.deps, worker_api=api)
    return api


def test_a_spawn_delivered_twice_creates_one_pod(world: World) -> None:
    worker = _slot(world)
    assert spawning.spawn(world.deps, worker) is Outcome.MOVED
    assert spawning.spawn(world.deps, worker) is Outcome.MOVED
    assert list(world.driver.pods) == [worker]
    assert world.worker(worker).pod_uid == world.driver.pods[worker].uid


def test_a_spawn_that_fails_frees_its_slot_at_once(world: World) -> None:
    world.configure(max_workers=1)
    worker = _slot(world)
    world.driver.refuses_to_create = "no room"
    spawning.spawn(world.deps, worker)
    assert world.state_of(worker) is State.RETIRED
    assert orgs_live(world) == 0
    world.driver.refuses_to_create = ""
    task = world.waits("acme")
    world.refill()
    world.settle()
    (pod,) = world.driver.pods
    world.driver.become_ready(pod)
    world.observe()
    assert world.broker.answers_for(task)[0]["outcome"] == "granted"


def test_a_spawn_whose_slot_was_drained_meanwhile_leaves_no_pod(world: World) -> None:
    worker = _slot(world)
    slot = world.worker(worker)
    create = world.driver.create

    def given_up_while_creating(spec: Any) -> Any:
        pod = create(spec)
        spawning.fail(world.deps, slot, MoveReason.NOT_READY, "gave up")
        return create(replace(spec, name=pod.name))

    world.driver.create = given_up_while_creating  # type: ignore[method-assign]
    spawning.spawn(world.deps, worker)
    assert world.driver.pods == {}
    assert world.state_of(worker) is State.RETIRED


def test_a_caller_that_leaves_while_a_worker_spawns_costs_nothing(world: World) -> None:
    world.profile(warm_target=0)
    world.acquire("acme", request_id="r", wait_s=30)
    world.refill()
    world.deliver("pool.spawn")
    world.cancel("acme", "r")
    (pod,) = world.driver.pods
    world.driver.become_ready(pod)
    world.observe()
    assert world.state_of(pod) is State.IDLE
    assert world.granted("bolt").worker_id == pod


def test_a_worker_of_another_image_is_never_granted(world: World) -> None:
    worker = _slot(world)
    spawning.spawn(world.deps, worker)
    world.driver.change(worker, image="something/else")
    world.driver.become_ready(worker)
    world.observe()
    world.settle()
    assert world.state_of(worker) is State.RETIRED
    assert world.driver.pods == {}


def test_activation_makes_the_worker_hot_before_the_request_is_answered(world: World) -> None:
    api = _activating(world, activation_payload={"org": "{org}", "tier": "{values.tier}"})
    world.org("acme", values={"tier": "gold"})
    (worker,) = world.warm(1)
    assert isinstance(world.acquire("acme", task_id="t"), Pending)
    assert world.state_of(worker) is State.RESERVED
    assert world.broker.answers_for("t") == []
    world.deliver("pool.activate")
    assert world.state_of(worker) is State.HOT
    assert world.broker.answers_for("t")[0]["source"] == "warm"
    assert api.bodies == [{"org": "acme", "tier": "gold"}]


def test_the_lease_starts_when_the_worker_is_hot(world: World) -> None:
    _activating(world)
    world.warm(1)
    world.acquire("acme", task_id="t", lease_s=30)
    world.pass_time(20)
    world.deliver("pool.activate")
    (claim,) = world.rows("claims")
    assert 50 <= (claim.lease_expires_at - claim.created_at).total_seconds() < 80


def test_a_parked_worker_needs_no_second_activation(world: World) -> None:
    api = _activating(world)
    world.warm(1)
    world.acquire("acme", task_id="t")
    world.deliver("pool.activate")
    world.release(str(world.broker.answers_for("t")[0]["claim_id"]))
    world.granted("acme")
    assert len(api.bodies) == 1


def test_a_failed_activation_retires_the_worker_and_tries_another(world: World) -> None:
    _activating(world, Refused("activation_failed", detail="bad day"), None)
    first, second = world.warm(2)
    world.acquire("acme", task_id="t")
    world.settle()
    assert world.broker.answers_for("t")[0]["worker_id"] == second
    assert world.state_of(first) is State.RETIRED


def test_a_request_whose_activations_keep_failing_is_refused_after_its_tries(world: World) -> None:
    _activating(world, *[Transient("no answer")] * 5)
    world.warm(5)
    world.acquire("acme", task_id="t")
    world.settle()
    (answer,) = world.broker.answers_for("t")
    assert answer["reason"] == Reason.ACTIVATION_FAILED
    assert "no answer" in answer["detail"]
    assert len(world.workers(State.IDLE)) == 2


def test_a_caller_that_leaves_while_its_worker_activates_costs_nothing(world: World) -> None:
    _activating(world)
    (worker,) = world.warm(1)
    world.acquire("acme", task_id="t", request_id="r", wait_s=30)
    assert world.cancel("acme", "r") == "cancelled"
    world.deliver("pool.activate")
    assert world.state_of(worker) is State.HOT_IDLE
    assert [a["reason"] for a in world.broker.answers_for("t")] == ["cancelled"]
    assert world.granted("acme").worker_id == worker


def test_a_worker_abandoned_in_activation_goes_to_the_orgs_next_waiter(world: World) -> None:
    _activating(world)
    world.profile(warm_target=0, activation_path="/activate")
    (worker,) = world.warm(1)
    world.acquire("acme", task_id="gone", request_id="r", wait_s=30)
    world.acquire("acme", task_id="next", wait_s=30)
    world.cancel("acme", "r")
    world.deliver("pool.activate")
    assert world.broker.answers_for("next")[0]["worker_id"] == worker


def test_a_claim_released_before_it_is_hot_gets_no_other_worker_if_its_activation_fails(world: World) -> None:
    """It would have no holder: it would live until its lease ends, and its worker with it."""
    _activating(world)
    world.warm(2)
    world.acquire("acme", task_id="gone", wait_s=30)
    ((_, given),) = [m for m in world.broker.sent if m[0] == "pool.activate"]
    world.release(given["claim_id"])
    world.broker.sent.clear()  # the process that was to activate it is dead
    world.pass_time(world.deps.settings.pool.activation_stuck_s + 1)
    world.run_pass("sweep_stuck")
    assert [a["reason"] for a in world.broker.answers_for("gone")] == ["cancelled"]
    assert not world.workers(*CLAIMED)


def test_a_claim_released_before_it_is_hot_goes_to_the_orgs_next_waiter(world: World) -> None:
    _activating(world)
    world.profile(warm_target=0, activation_path="/activate")
    (worker,) = world.warm(1)
    world.acquire("acme", task_id="gone", wait_s=30)
    ((_, given),) = [m for m in world.broker.sent if m[0] == "pool.activate"]
    world.acquire("acme", task_id="next", wait_s=30)
    assert world.release(given["claim_id"]) == "released"
    world.deliver("pool.activate")
    assert world.broker.answers_for("next")[0]["worker_id"] == worker
    assert world.broker.answers_for("gone")[0]["reason"] == "cancelled"


def test_a_claim_released_as_tainted_before_it_is_hot_retires_its_worker(world: World) -> None:
    _activating(world)
    (worker,) = world.warm(1)
    world.acquire("acme", task_id="gone", wait_s=30)
    ((_, given),) = [m for m in world.broker.sent if m[0] == "pool.activate"]
    assert world.release(given["claim_id"], "tainted") == "released"
    world.deliver("pool.activate")
    assert world.state_of(worker) is State.DRAINING


def test_a_late_activation_of_an_ended_claim_does_nothing(world: World) -> None:
    _activating(world)
    (worker,) = world.warm(1)
    world.acquire("acme", task_id="t")
    ((_, given),) = [m for m in world.broker.sent if m[0] == "pool.activate"]
    held = Held(**given)
    activating.fail(world.deps, held, "swept")
    assert activating.activate(world.deps, held) is Outcome.FENCED
    assert world.state_of(worker) is State.DRAINING


@pytest.mark.parametrize("wrong", [{"epoch": 0}, {"epoch": 9}, {"claim_id": "another"}], ids=str)
def test_an_activation_of_another_holder_changes_nothing(world: World, wrong: dict[str, Any]) -> None:
    """A late caller, or one with a claim that was never this worker's, while it is reserved."""
    api = _activating(world)
    (worker,) = world.warm(1)
    world.acquire("acme", task_id="t")
    ((_, given),) = [m for m in world.broker.sent if m[0] == "pool.activate"]
    assert activating.activate(world.deps, Held(**given | wrong)) is Outcome.FENCED
    assert world.state_of(worker) is State.RESERVED
    assert api.bodies == []


def test_an_activation_that_is_alive_is_not_taken_over(world: World) -> None:
    _activating(world)
    world.warm(1)
    world.acquire("acme", task_id="t")
    ((_, given),) = [m for m in world.broker.sent if m[0] == "pool.activate"]
    held = Held(**given)
    assert activating._enter(world.deps, held) is not None
    assert activating._enter(world.deps, held) is None
    world.pass_time(16)
    assert activating._enter(world.deps, held) is not None
    assert activating._enter(world.deps, held) is None


def test_a_stamp_copies_the_row_and_writes_nothing_the_second_time(world: World) -> None:
    (worker,) = world.warm(1)
    granted = world.granted("acme")
    world.deliver("pool.stamp")
    pod = world.driver.pods[worker]
    assert pod.labels[LABEL_BUSY] == "true"
    assert pod.annotations[NOTE_CLAIM] == granted.claim_id
    assert pod.annotations[NOTE_DO_NOT_DISRUPT] == "true"
    before = world.driver.calls.count(("stamp", worker))
    assert stamping.stamp(world.deps, WorkerId(worker))
    assert world.driver.calls.count(("stamp", worker)) == before
    world.release(granted.claim_id)
    world.deliver("pool.stamp")
    pod = world.driver.pods[worker]
    assert pod.labels[LABEL_BUSY] == "false"
    assert NOTE_DO_NOT_DISRUPT not in pod.annotations
    assert pod.annotations[NOTE_ORG] == "acme"


def test_a_stamp_of_a_pod_in_the_view_is_one_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (worker,) = world.warm(1)
    monkeypatch.setattr(world.driver, "recent", world.driver.pods.get)
    granted = world.granted("acme")
    before = len(world.driver.calls)
    world.deliver("pool.stamp")
    assert world.driver.calls[before:] == [("stamp", worker)]
    assert world.driver.pods[worker].annotations[NOTE_CLAIM] == granted.claim_id


def test_a_stamp_with_an_old_view_reads_the_pod_and_is_correct(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (worker,) = world.warm(1)
    old = world.driver.pods[worker]
    monkeypatch.setattr(world.driver, "recent", {worker: old}.get)
    granted = world.granted("acme")
    world.driver.change(worker, node="other")
    world.deliver("pool.stamp")
    assert world.driver.pods[worker].annotations[NOTE_CLAIM] == granted.claim_id
    world.release(granted.claim_id)
    world.deliver("pool.stamp")
    assert world.driver.pods[worker].labels[LABEL_BUSY] == "false"
    world.granted("acme")
    world.driver.change(worker, terminating=True)
    world.deliver("pool.stamp")
    assert world.driver.pods[worker].labels[LABEL_BUSY] == "false"


def test_a_row_that_changes_while_its_pod_is_stamped_is_stamped_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (worker,) = world.warm(1)
    granted = world.granted("acme")
    write = world.driver.stamp

    def released_meanwhile(pod: Pod, stamp: Stamp) -> StampResult:
        monkeypatch.setattr(world.driver, "stamp", write)
        result = write(pod, stamp)
        world.release(granted.claim_id)
        return result

    monkeypatch.setattr(world.driver, "stamp", released_meanwhile)
    assert stamping.stamp(world.deps, WorkerId(worker))
    assert world.driver.pods[worker].labels[LABEL_BUSY] == "false"


def test_a_pod_never_carries_two_orgs_stamps(world: World) -> None:
    (worker,) = world.warm(1)
    world.release(world.granted("acme").claim_id)
    world.deliver()
    with pytest.raises(Exception, match=r"one_org_for_life|one org for life"), world.store.write() as tx:
        tx.execute(schema.workers.update().values(org="bolt"))
    stamping.stamp(world.deps, WorkerId(worker))
    assert world.driver.pods[worker].annotations[NOTE_ORG] == "acme"


def test_a_pod_stamped_with_a_later_epoch_is_never_granted_and_left_alone(world: World) -> None:
    """The database was restored to an earlier state: an observer that starts on it detects it."""
    (worker,) = world.warm(1)
    pod = replace(
        world.driver.pods[worker],
        annotations={**world.driver.pods[worker].annotations, NOTE_EPOCH: "7", NOTE_ORG: "acme"},
    )
    world.driver.pods[worker] = pod
    observing.observe(world.deps, pod)
    assert world.state_of(worker) is State.LOST
    world.refused("bolt")
    assert world.driver.pods == {worker: pod}


def test_a_renewal_reports_a_terminating_pod_and_keeps_the_claim(world: World) -> None:
    (worker,) = world.warm(1)
    granted = world.granted("acme")
    world.driver.change(worker, terminating=True)
    world.observe()
    assert world.state_of(worker) is State.HOT
    answer = world.renew(granted.claim_id)
    assert list(answer["renewed"]) == [granted.claim_id]
    assert answer["leaving"] == {granted.claim_id: "pod_terminating"}
    world.release(granted.claim_id)
    assert world.state_of(worker) is State.DRAINING


def test_on_a_node_that_leaves_idle_workers_drain_and_busy_ones_are_never_parked(
    world: World,
) -> None:
    world.warm(2)
    granted = world.granted("acme")
    (idle,) = world.workers(State.IDLE)
    for worker in (idle.id, granted.worker_id):
        world.driver.change(worker, leaving="its node is cordoned")
    world.observe()
    assert world.state_of(idle.id) is State.DRAINING
    assert world.state_of(granted.worker_id) is State.HOT
    assert world.renew(granted.claim_id)["leaving"] == {granted.claim_id: "disrupted: its node is cordoned"}
    world.release(granted.claim_id)
    assert world.state_of(granted.worker_id) is State.DRAINING


def test_an_idle_worker_whose_pod_terminates_drains_at_once(world: World) -> None:
    (worker,) = world.warm(1)
    world.driver.change(worker, terminating=True)
    world.observe()
    assert world.state_of(worker) is State.DRAINING
    world.refused("acme")


def test_a_deleted_pod_ends_its_claim_with_the_cause(world: World) -> None:
    world.org("acme", cap=1)
    (worker,) = world.warm(1)
    granted = world.granted("acme")
    world.driver.take_away(worker)
    world.observe()
    assert world.state_of(worker) is State.LOST
    assert world.renew(granted.claim_id)["gone"] == {granted.claim_id: "worker_lost"}
    assert orgs_live(world) == 0
    world.warm(1)
    world.granted("acme")


def test_a_container_that_ended_is_lost_and_its_pod_removed(world: World) -> None:
    (worker,) = world.warm(1)
    world.driver.change(worker, phase=PodPhase.ENDED, ready=False, trouble="OOMKilled", exit_code=137)
    world.observe()
    assert world.state_of(worker) is State.LOST
    assert world.driver.pods == {}
    assert any("OOMKilled" in row.detail and "137" in row.detail for row in world.rows("journal"))


def test_a_stale_watch_event_loses_no_worker(world: World) -> None:
    (worker,) = world.warm(1)
    uid = world.driver.pods[worker].uid
    observing.observe(world.deps, Gone(name=worker, uid=uid))
    assert world.state_of(worker) is State.IDLE


def test_an_unclaimed_worker_whose_pod_is_no_longer_ready_drains_and_a_claimed_one_stays(
    world: World,
) -> None:
    idle, busy = world.warm(2)
    busy = world.granted("acme").worker_id
    idle = next(w.id for w in world.workers(State.IDLE))
    for worker in (idle, busy):
        world.driver.change(worker, ready=False)
    world.observe()
    assert world.state_of(idle) is State.DRAINING
    assert world.state_of(busy) is State.HOT


def test_two_observers_do_not_conflict(world: World) -> None:
    worker = _slot(world)
    spawning.spawn(world.deps, worker)
    world.driver.become_ready(worker)
    for seen in world.driver.drain_events() * 2:
        observing.observe(world.deps, seen)
    assert world.state_of(worker) is State.IDLE
    assert [row.to_state for row in world.rows("journal")] == ["spawning", "idle"]


def test_a_failed_delete_leaves_the_row_draining_and_is_retried(world: World) -> None:
    (worker,) = world.warm(1)
    world.release(world.granted().claim_id, "tainted")
    world.driver.down = True
    world.deliver()
    assert world.state_of(worker) is State.DRAINING
    assert orgs_live(world) == 1
    world.driver.down = False
    world.pass_time(20)
    world.run_pass("reap")
    world.settle()
    assert world.state_of(worker) is State.RETIRED
    assert orgs_live(world) == 0


def test_a_late_retire_of_a_worker_in_use_does_nothing(world: World) -> None:
    (worker,) = world.warm(1)
    world.granted("acme")
    assert retiring.retire(world.deps, WorkerId(worker)) is Outcome.FENCED
    assert worker in world.driver.pods


def test_protect_before_grant_makes_the_grant_wait_for_its_stamp(world: World) -> None:
    world.configure(protect_before_grant=True)
    (worker,) = world.warm(1)
    assert isinstance(world.acquire("acme", task_id="one"), Pending)
    assert world.broker.answers_for("one") == []
    world.deliver("pool.activate")
    assert world.driver.pods[worker].labels[LABEL_BUSY] == "true"
    (answer,) = world.broker.answers_for("one")
    world.release(str(answer["claim_id"]))
    world.deliver()
    assert isinstance(world.acquire("acme", task_id="two"), Pending)
    assert world.state_of(worker) is State.HOT
    world.deliver("pool.activate")
    assert world.broker.answers_for("two")[0]["source"] == "hot_idle"


def orgs_live(world: World) -> int:
    with world.store.read() as tx:
        return int(orgs.pool_row(tx).live)


def test_lost_worker_has_its_reason_and_exit_code(world: World) -> None:
    (worker,) = world.warm(1)
    world.driver.change(worker, phase=PodPhase.ENDED, trouble="OOMKilled", exit_code=137)
    world.observe()
    (last,) = [e for e in world.rows("journal") if e.to_state == State.LOST]
    assert (last.reason, last.detail) == (MoveReason.CONTAINER_ENDED, "OOMKilled, exit code 137")


def test_closing_makes_no_driver_and_closes_one_that_was_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that never needed the cluster opens no connection to it when it stops."""
    made: list[str] = []
    closed: list[str] = []

    def make() -> Driver:
        made.append("driver")
        return world.driver

    monkeypatch.setattr(world.driver, "close", lambda: closed.append("driver"))
    monkeypatch.setattr(world.deps.store, "close", lambda: closed.append("store"))
    unused = replace(world.deps, make_driver=make)
    unused.close()
    assert (made, closed) == ([], ["store"])
    used = replace(unused)
    assert used.driver is world.driver
    used.close()
    assert closed == ["store", "driver", "store"]
