"""Each reason of a move is written into the journal, and counted, by the code path that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pool.core.errors import Refused
from pool.core.ids import WorkerId
from pool.core.keys import Keyring
from pool.core.states import MoveReason, State
from pool.drivers.port import NOTE_EPOCH, NOTE_ORG, PodPhase
from pool.lifecycle import observing
from pool.ops import operating
from pool.ops.operating import Operator
from pool.ops.up import row_cleanup
from tests.support.world import World

R = MoveReason
ALICE = Operator(name="alice", way="cli", why="its node goes away")
# The reasons of the scenario's worker, oldest first.
LIFE = (R.DEMAND, R.READY)


class Api:
    """A worker that accepts or refuses its configuration."""

    def __init__(self, refuses: str = "") -> None:
        self._refuses = refuses

    def activate(self, url: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> None:
        if self._refuses:
            raise Refused("activation_failed", detail=self._refuses)

    def healthy(self, url: str, timeout_s: float) -> bool:
        return False


def _slot(world: World) -> str:
    world.profile(warm_target=1)
    world.run_pass("reconcile_warm")
    (slot,) = world.workers(State.SPAWNING)
    return slot.id


def _spawned(world: World) -> str:
    slot = _slot(world)
    world.deliver("pool.spawn")
    return slot


def _claimed(world: World, **given: Any) -> tuple[str, str]:
    world.warm(1)
    got = world.granted("acme", **given)
    return got.worker_id, got.claim_id


def _parked(world: World) -> str:
    worker, claim = _claimed(world, ttl_s=10)
    world.release(claim)
    return worker


def _activating(world: World, refuses: str = "") -> str:
    world.profile(activation_path="/activate")
    world.deps = replace(world.deps, worker_api=Api(refuses))
    (worker,) = world.warm(1)
    world.acquire("acme", request_id="r", wait_s=30)
    return worker


def activated(world: World) -> str:
    worker = _activating(world)
    world.deliver("pool.activate")
    return worker


def activation_failed(world: World) -> str:
    worker = _activating(world, "no licence")
    world.deliver("pool.activate")
    return worker


def abandoned(world: World) -> str:
    worker = _activating(world)
    world.cancel("acme", "r")
    world.deliver("pool.activate")
    return worker


def released(world: World) -> str:
    return _parked(world)


def tainted(world: World) -> str:
    worker, claim = _claimed(world)
    world.release(claim, "tainted")
    return worker


def lease_expired(world: World) -> str:
    worker, _ = _claimed(world, lease_s=5)
    for _ in range(4):
        world.canary()
        world.pass_time(5)
    world.canary()
    world.run_pass("reap")
    return worker


def drained(world: World) -> str:
    (worker,) = world.warm(1)
    operating.drain(world.deps, [WorkerId(worker)], ALICE)
    world.settle()
    return worker


def drained_in_use(world: World) -> str:
    worker, claim = _claimed(world)
    operating.drain(world.deps, [WorkerId(worker)], ALICE)
    world.release(claim)
    return worker


def retired(world: World) -> str:
    worker, _ = _claimed(world)
    operating.retire(world.deps, WorkerId(worker), ALICE)
    return worker


def hot_idle_ttl(world: World) -> str:
    worker = _parked(world)
    world.pass_time(11)
    world.run_pass("reap")
    return worker


def hot_idle_cap(world: World) -> str:
    world.org("acme", hot_idle_cap=1)
    world.warm(2)
    first, second = world.granted("acme"), world.granted("acme")
    world.release(first.claim_id)
    world.release(second.claim_id)
    world.run_pass("reap")
    return first.worker_id


def surplus(world: World) -> str:
    world.profile(warm_target=0)
    (worker,) = world.warm(1)
    world.pass_time(301)
    world.run_pass("reap")
    return worker


def max_age(world: World) -> str:
    world.configure(max_age_s=100)
    (worker,) = world.warm(1)
    world.pass_time(101)
    world.run_pass("reap")
    return worker


def gave_way(world: World) -> str:
    world.profile("big", warm_target=0)
    world.profile(warm_target=0)
    world.configure(max_workers=1)
    (worker,) = world.warm(1)
    world.waits("bolt", profile="big")
    world.run_pass("reconcile_warm")
    return worker


def rollout(world: World) -> str:
    world.configure(rollout_ready_s=0)
    world.profile(warm_target=1)
    (worker,) = world.warm(1)
    world.profile(image="registry/node-runner:2")
    world.run_pass("reconcile_warm")
    world.deliver("pool.spawn")
    for slot in world.workers(State.SPAWNING):
        world.driver.become_ready(slot.id)
    world.observe()
    world.run_pass("reconcile_warm")
    return worker


def unconfigured(world: World) -> str:
    world.profile("big", warm_target=0)
    (worker,) = world.warm(1, "big")
    world.configure(profiles={n: p for n, p in world.deps.settings.profiles.items() if n != "big"})
    world.run_pass("reconcile_warm")
    world.pass_time(61)
    world.run_pass("reconcile_warm")
    return worker


def unknown_key(world: World) -> str:
    (worker,) = world.warm(1)
    world.deps = replace(world.deps, keys=Keyring(current=b"n" * 32))
    world.pass_time(1)
    world.warm(1)
    world.run_pass("reap")
    return worker


def create_failed(world: World) -> str:
    slot = _slot(world)
    world.driver.refuses_to_create = "no such image"
    world.deliver("pool.spawn")
    return slot


def wrong_image(world: World) -> str:
    slot = _spawned(world)
    world.driver.change(slot, image="something/else")
    world.driver.become_ready(slot)
    world.observe()
    return slot


def not_ready(world: World) -> str:
    slot = _spawned(world)
    world.pass_time(121)
    world.run_pass("sweep_stuck")
    return slot


def unschedulable(world: World) -> str:
    slot = _spawned(world)
    world.driver.change(slot, unschedulable=True, trouble="0/3 nodes are available")
    world.pass_time(301)
    world.run_pass("sweep_stuck")
    return slot


def _seen(world: World, **changes: Any) -> str:
    (worker,) = world.warm(1)
    world.driver.change(worker, **changes)
    world.observe()
    return worker


def probe_failed(world: World) -> str:
    world.profile(probe_path="/healthz")
    world.deps = replace(world.deps, worker_api=Api())
    (worker,) = world.warm(1)
    for _ in range(3):
        world.run_pass("sweep_stuck")
    return worker


def pod_gone(world: World) -> str:
    (worker,) = world.warm(1)
    world.driver.take_away(worker)
    world.observe()
    return worker


def pod_absent(world: World) -> str:
    worker, _ = world.warm(2)
    world.driver.take_away(worker)
    world.driver.drain_events()
    world.run_pass("sweep_orphans")
    world.run_pass("sweep_orphans")
    return worker


def table_behind(world: World) -> str:
    (worker,) = world.warm(1)
    pod = world.driver.pods[worker]
    notes = {**pod.annotations, NOTE_EPOCH: "7", NOTE_ORG: "acme"}
    observing.observe(world.deps, replace(pod, annotations=notes))
    return worker


def node_returned(world: World) -> str:
    worker, _ = _claimed(world)
    world.driver.change(worker, leaving="its node is cordoned")
    world.observe()
    world.driver.change(worker, leaving="")
    world.pass_time(16)
    world.run_pass("guard_disruption")
    return worker


def stopped(world: World) -> str:
    (worker,) = world.warm(1)
    world.driver.pods.clear()
    row_cleanup.all_lost(world.deps)
    return worker


ENDED = (R.POD_DELETED,)
SCENARIOS: list[tuple[Callable[[World], str], tuple[MoveReason, ...]]] = [
    (released, (*LIFE, R.CLAIMED, R.RELEASED)),
    (tainted, (*LIFE, R.CLAIMED, R.TAINTED)),
    (lease_expired, (*LIFE, R.CLAIMED, R.LEASE_EXPIRED)),
    (activated, (*LIFE, R.CLAIMED, R.ACTIVATING, R.ACTIVATED)),
    (activation_failed, (*LIFE, R.CLAIMED, R.ACTIVATING, R.ACTIVATION_FAILED)),
    (abandoned, (*LIFE, R.CLAIMED, R.ACTIVATING, R.ACTIVATED, R.ABANDONED)),
    (drained, (*LIFE, R.DRAINED, *ENDED)),
    (drained_in_use, (*LIFE, R.CLAIMED, R.DRAINED, R.DRAINED)),
    (retired, (*LIFE, R.CLAIMED, R.RETIRED)),
    (hot_idle_ttl, (*LIFE, R.CLAIMED, R.RELEASED, R.HOT_IDLE_TTL)),
    (hot_idle_cap, (*LIFE, R.CLAIMED, R.RELEASED, R.HOT_IDLE_CAP)),
    (surplus, (*LIFE, R.SURPLUS)),
    (max_age, (*LIFE, R.MAX_AGE)),
    (gave_way, (*LIFE, R.GAVE_WAY)),
    (rollout, (*LIFE, R.ROLLOUT)),
    (unconfigured, (*LIFE, R.UNCONFIGURED)),
    (unknown_key, (*LIFE, R.UNKNOWN_KEY)),
    (create_failed, (R.DEMAND, R.CREATE_FAILED, *ENDED)),
    (wrong_image, (R.DEMAND, R.WRONG_IMAGE, *ENDED)),
    (not_ready, (R.DEMAND, R.NOT_READY, *ENDED)),
    (unschedulable, (R.DEMAND, R.UNSCHEDULABLE, *ENDED)),
    (lambda world: _seen(world, ready=False), (*LIFE, R.UNHEALTHY)),
    (
        lambda world: _seen(world, leaving="chosen for disruption: EvictionByEvictionAPI"),
        (*LIFE, R.DISRUPTED),
    ),
    (lambda world: _seen(world, terminating=True), (*LIFE, R.POD_TERMINATING)),
    (lambda world: _seen(world, phase=PodPhase.ENDED, exit_code=1), (*LIFE, R.CONTAINER_ENDED)),
    (probe_failed, (*LIFE, R.PROBE_FAILED)),
    (pod_gone, (*LIFE, R.POD_GONE)),
    (pod_absent, (*LIFE, R.POD_GONE)),
    (table_behind, (*LIFE, R.TABLE_BEHIND)),
    (node_returned, (*LIFE, R.CLAIMED, R.DISRUPTED, R.NODE_RETURNED)),
    (stopped, (*LIFE, R.STOPPED)),
]


@pytest.mark.parametrize(("scenario", "reasons"), SCENARIOS, ids=["-".join(r[1:]) for _, r in SCENARIOS])
def test_worker_moves_for_the_reason_of_what_happened(
    world: World, scenario: Callable[[World], str], reasons: tuple[MoveReason, ...]
) -> None:
    worker = scenario(world)
    entries = [e for e in world.rows("journal") if e.worker_id == worker]
    assert tuple(e.reason for e in entries) == reasons
    metric = next(m for m in world.deps.metrics.registry.collect() if m.name == "warmpool_moves")
    counted = {s.labels["reason"] for s in metric.samples}
    # A slot's row is created, not moved; a worker that is marked as leaving keeps its state.
    assert counted >= {e.reason for e in entries if e.from_state not in (None, e.to_state)}


def test_every_reason_has_a_scenario() -> None:
    assert {reason for _, reasons in SCENARIOS for reason in reasons} == set(MoveReason)
