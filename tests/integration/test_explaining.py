"""`explain` returns the true cause of a worker's end in one sentence, and why a request waits."""

from __future__ import annotations

import pytest

from pool.core.ids import OrgId, ProfileName, WorkerId
from pool.core.settings import OrgDefaults
from pool.core.states import State
from pool.drivers.port import PodSpec
from pool.ops import operating, reporting
from pool.ops.operating import Operator
from pool.ops.reporting.explaining import NotFound
from pool.store import breakers
from tests.support.world import World

ALICE = Operator(name="alice", way="cli", why="node goes away")


def cause(world: World, worker_id: str) -> str:
    return str(reporting.explain_worker(world.store, world.deps.settings, worker_id)["cause"])


def why_request(world: World, request_id: str, **more: str) -> str:
    return str(reporting.explain_request(world.store, world.deps.settings, request_id, **more)["why"])


def drained(world: World, *ids: str) -> operating.Drained:
    return operating.drain(world.deps, [WorkerId(i) for i in ids], ALICE)


def test_a_worker_lost_in_use_is_explained_with_its_cause_and_its_holder(world: World) -> None:
    world.warm(1)
    got = world.granted("acme")
    world.driver.take_away(got.worker_id)
    world.observe()
    assert world.state_of(got.worker_id) is State.LOST
    told = cause(world, got.worker_id)
    assert told == f"It was lost: its pod is gone while acme used it (claim {got.claim_id})."


def test_a_worker_lost_while_idle_is_explained_without_a_holder(world: World) -> None:
    [idle] = world.warm(1)
    world.driver.take_away(idle)
    world.observe()
    assert cause(world, idle) == "It was lost: its pod is gone."


def test_a_reaped_worker_is_explained_by_its_ttl(world: World) -> None:
    world.warm(1)
    got = world.granted("acme", ttl_s=10)
    world.release(got.claim_id)
    assert cause(world, got.worker_id) == ""
    world.pass_time(11)
    world.run_pass("reap")
    world.settle()
    assert world.state_of(got.worker_id) is State.RETIRED
    assert cause(world, got.worker_id) == "It was reaped: parked for acme longer than its TTL."


def test_a_surplus_worker_is_explained_as_surplus(world: World) -> None:
    world.profile(warm_target=1)
    first, *_ = world.warm(2)
    world.pass_time(301)
    world.run_pass("reap")
    assert cause(world, first) == "It was reaped: surplus: more than 1 workers were idle for 300 s."


def test_a_worker_drained_by_an_operator_names_the_operator_and_the_reason(world: World) -> None:
    [idle] = world.warm(1)
    assert drained(world, idle).drained == [idle]
    world.settle()
    assert world.state_of(idle) is State.RETIRED
    assert cause(world, idle) == "It was drained by alice (cli): node goes away."


def test_a_worker_drained_in_use_is_explained_by_the_drain_and_not_by_its_release(world: World) -> None:
    world.warm(1)
    got = world.granted("acme")
    assert drained(world, got.worker_id).leaving == [got.worker_id]
    assert world.state_of(got.worker_id) is State.HOT
    assert drained(world, got.worker_id).left_alone == {got.worker_id: "is already leaving"}
    world.release(got.claim_id)
    world.settle()
    assert cause(world, got.worker_id) == (
        "It was drained by alice (cli): node goes away; it was in use by acme at that time, and left when the claim ended."
    )


def test_a_terminating_pod_in_use_is_the_cause_and_not_the_release(world: World) -> None:
    world.warm(1)
    got = world.granted("acme")
    world.driver.change(got.worker_id, terminating=True)
    world.observe()
    world.release(got.claim_id)
    told = cause(world, got.worker_id)
    assert told.startswith(
        "It was taken out of use: its pod is terminating; it was in use by acme at that time"
    )


def test_a_tainted_worker_is_explained_by_its_release(world: World) -> None:
    world.warm(1)
    got = world.granted("acme")
    world.release(got.claim_id, "tainted")
    world.settle()
    assert cause(world, got.worker_id) == "Acme released it as tainted, so it is not used again."


def test_an_expired_lease_is_explained_with_its_claim(world: World) -> None:
    world.warm(1)
    got = world.granted("acme", lease_s=5)
    world.canary()
    for _ in range(3):
        world.pass_time(5)
        world.canary()
    world.run_pass("reap")
    assert f"expired without a renewal (claim {got.claim_id})" in cause(world, got.worker_id)


def test_a_worker_retired_by_an_operator_in_use_names_the_operator(world: World) -> None:
    world.warm(1)
    got = world.granted("acme")
    operating.retire(world.deps, WorkerId(got.worker_id), ALICE)
    assert world.renew(got.claim_id)["gone"] == {got.claim_id: "retired"}
    assert cause(world, got.worker_id) == "The claim of acme on it was ended by alice (cli): node goes away."


def test_an_orphaned_pod_without_a_row_is_explained(world: World) -> None:
    stray = PodSpec(name="w-stray", profile="default", revision="rev", image="image", command=(), env={},
                    cpu_millicores=1, memory_mib=1, port=1, grace_s=0, secret="s")  # fmt: skip
    world.warm(1)
    world.driver.create(stray)
    world.driver.change("w-stray", age_s=1000.0)
    world.run_pass("sweep_orphans")
    told = cause(world, "w-stray")
    assert told.startswith(
        "The database has no such worker; the sweep found its pod to be an orphan and requested its deletion: no row owned it"
    )
    assert "it was never claimed" in told


def test_a_row_whose_pod_was_absent_in_a_sweep_is_explained_by_it(world: World) -> None:
    [idle, _] = world.warm(2)
    world.driver.take_away(idle)
    world.driver.drain_events()
    world.run_pass("sweep_orphans")
    world.run_pass("sweep_orphans")
    assert cause(world, idle) == "It was lost: its pod is gone."


def test_a_failed_spawn_is_explained_with_its_cause(world: World) -> None:
    world.profile(warm_target=1)
    world.refill()
    [slot] = world.workers(State.SPAWNING)
    world.driver.refuses_to_create = "no such image"
    world.settle()
    told = cause(world, slot.id)
    assert told.startswith("It never became ready: ")
    assert "no such image" in told


def test_the_whole_history_is_listed_and_a_prefix_of_the_id_is_enough(world: World) -> None:
    world.warm(1)
    got = world.granted("acme")
    world.release(got.claim_id)
    told = reporting.explain_worker(world.store, world.deps.settings, got.worker_id[2:])
    texts = [line["text"] for line in told["story"]]
    assert [line["to"] for line in told["story"]] == ["spawning", "idle", "hot", "hot_idle"]
    assert texts[0].startswith("Its slot was created")
    assert texts[2].startswith("Claimed by acme")
    assert "parked for this org" in texts[3]
    assert told["claimable"]["can"]
    assert "only by acme" in told["claimable"]["why"]
    [claim] = told["claims"]
    assert claim["request"]["task_ids"] == ["task-1"]
    with pytest.raises(NotFound, match="no worker 'w-none'"):
        reporting.explain_worker(world.store, world.deps.settings, "w-none")


def test_explain_shows_which_orgs_can_claim_a_worker_or_why_none_can(world: World) -> None:
    [idle] = world.warm(1)

    def claimable(worker_id: str) -> tuple[bool, str]:
        told = reporting.explain_worker(world.store, world.deps.settings, worker_id)["claimable"]
        return told["can"], told["why"]

    assert claimable(idle) == (True, "by any org that requests a default worker: it is warm and unclaimed")
    operating.set_pool_paused(world.store, paused=True, operator=ALICE)
    assert claimable(idle) == (False, "the pool is paused")
    operating.set_pool_paused(world.store, paused=False, operator=ALICE)
    world.org("acme", cap=1)
    got = world.granted("acme")
    assert claimable(idle) == (False, f"acme is using it (claim {got.claim_id})")


def test_explain_shows_why_a_request_waits(world: World) -> None:
    world.profile(warm_target=0)
    world.run_pass("reconcile_warm")
    world.org("acme", cap=1)
    world.warm(1)
    world.granted("acme")
    world.waits("acme", request_id="second")
    assert why_request(world, "second") == (
        "The request is waiting: acme is at its cap (1 of 1 workers); it waits until acme releases one."
    )
    world.waits("bolt", request_id="third")
    assert "reconcile_warm creates one within 5 s" in why_request(world, "third")
    assert "that have waited longer: 1" in why_request(world, "third")
    with world.store.write() as tx:
        for _ in range(4):
            breakers.failed(tx, ProfileName("default"), "ImagePullBackOff")
    assert "cannot be started: ImagePullBackOff" in why_request(world, "third")
    world.refused("acme", request_id="now")
    assert why_request(world, "now").startswith(
        "The request was refused (org_cap): org acme is at its cap: 1 of 1"
    )
    world.waits("acme", request_id="third")
    with pytest.raises(NotFound, match="choose one with --org: acme, bolt"):
        why_request(world, "third")
    assert "ImagePullBackOff" in why_request(world, "third", org="bolt")


def test_an_ambiguous_name_lists_its_matches(world: World) -> None:
    first, second = world.warm(2)
    with pytest.raises(NotFound, match=f"'w-0' matches several workers: {first}, {second}"):
        reporting.explain_worker(world.store, world.deps.settings, "w-0")


def test_supply_that_has_stopped_is_the_reason_to_wait(world: World) -> None:
    world.profile(warm_target=0)
    world.run_pass("reconcile_warm")
    world.waits("bolt", request_id="r")
    operating.set_pass_paused(world.store, "reconcile_warm", paused=True, operator=ALICE)
    assert why_request(world, "r") == (
        "The request is waiting: no workers are created: reconcile_warm was paused by alice (cli)."
    )
    operating.set_pass_paused(world.store, "reconcile_warm", paused=False, operator=ALICE)
    world.pass_time(60)
    assert (
        why_request(world, "r") == "The request is waiting: no workers are created: reconcile_warm is dark."
    )


def test_a_pool_at_its_cap_is_the_reason_to_wait(world: World) -> None:
    world.configure(max_workers=1)
    world.warm(1)
    world.run_pass("reconcile_warm")
    world.granted("acme")
    world.waits("bolt", request_id="r")
    assert (
        why_request(world, "r")
        == "The request is waiting: the pool is at its cap of 1 workers; it waits until one is released or "
        "removed."
    )


def test_a_drain_of_an_org_a_node_or_a_profile_covers_its_live_workers(world: World) -> None:
    world.profile("other", warm_target=1)
    world.warm(1)
    [other] = world.warm(1, "other")
    got = world.granted("acme")
    assert [w.id for w in operating.chosen(world.store, "org", "acme")] == [got.worker_id]
    assert [w.id for w in operating.chosen(world.store, "profile", "other")] == [other]
    node = world.worker(other).node or ""
    assert {w.id for w in operating.chosen(world.store, "node", node)} >= {other} if node else True
    assert operating.chosen(world.store, "org", "unknown") == []


def test_actions_of_operators_are_recorded_with_actor_and_reason(world: World) -> None:
    operating.set_pass_paused(world.store, "reap", paused=True, operator=ALICE)
    operating.set_warm(world.store, ProfileName("default"), 7, ALICE)
    operating.set_org(world.store, OrgId("acme"), OrgDefaults(), {"cap": 2}, ALICE)
    done = [(d.what, d.subject, d.who, d.why) for d in world.rows("deeds")]
    assert done == [
        ("pass_paused", "pass reap", "alice (cli)", "pass paused: node goes away"),
        ("warm_target_set", "profile default", "alice (cli)", "7: node goes away"),
        ("org_set", "org acme", "alice (cli)", "cap 2: node goes away"),
    ]


def test_a_warm_target_set_by_an_operator_applies_until_it_is_reset(world: World) -> None:
    world.profile(warm_target=1)
    operating.set_warm(world.store, ProfileName("default"), 3, ALICE)
    world.run_pass("reconcile_warm")
    assert len(world.workers(State.SPAWNING)) == 3
    seen = reporting.status(world.store, world.deps.settings)
    assert seen["profiles"]["default"]["target"] == 3
    operating.set_warm(world.store, ProfileName("default"), None, ALICE)
    assert reporting.status(world.store, world.deps.settings)["profiles"]["default"]["target"] == 1
    world.settle()
    for slot in world.workers(State.SPAWNING):
        world.driver.become_ready(slot.id)
    world.observe()
    world.pass_time(301)
    world.run_pass("reap")
    assert len(world.workers(State.IDLE)) == 1


def test_text_of_an_operators_reason_does_not_change_the_cause(world: World) -> None:
    """A detail may begin or read like a reason of the pool."""
    [idle] = world.warm(1)
    told = "surplus: its node was evicted; leaving: parked past its time"
    operating.drain(world.deps, [WorkerId(idle)], Operator(name="bob", way="cli", why=told))
    assert cause(world, idle) == f"It was drained by bob (cli): {told}."


def test_worker_retired_by_an_operator_without_a_holder_names_the_operator(world: World) -> None:
    [idle] = world.warm(1)
    operating.retire(world.deps, WorkerId(idle), ALICE)
    assert cause(world, idle) == "It was retired by alice (cli): node goes away."


def test_worker_released_during_a_rollout_is_explained_by_the_rollout(world: World) -> None:
    world.configure(rollout_step_percent=100, rollout_ready_s=0)
    world.profile(warm_target=1)
    world.warm(2)
    got = world.granted("acme")
    old = world.worker(got.worker_id).image
    world.profile(image="registry/node-runner:2")
    world.run_pass("reconcile_warm")
    world.settle()
    for slot in world.workers(State.SPAWNING):
        world.driver.become_ready(slot.id)
    world.observe()
    world.run_pass("reconcile_warm")
    world.release(got.claim_id)
    assert cause(world, got.worker_id) == f"Acme released it, and it was not parked: {old} is being replaced."
    assert [e.reason for e in world.rows("journal") if e.worker_id == got.worker_id][-1] == "rollout"
