"""One object that is refused permanently (by an admission webhook or a policy) makes no pass dark:
it is skipped, counted and reported, and the rest is done. A missing permission is different: it
affects every object, and the run fails with it.
"""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from pool.core.errors import Forbidden
from pool.core.states import MoveReason, State
from pool.drivers.port import PodRole, PodSpec, Stamp
from pool.lifecycle import retiring
from pool.lifecycle.effects import transaction
from pool.ops import doctor, reporting
from pool.ops.doctor import Installation
from pool.store import audit, passes
from tests.support.world import World

HELD = Stamp(org="acme", claim_id="c", epoch=1, busy=True)


def orphan(world: World, name: str, *, stamped: bool = False, role: PodRole = PodRole.WORKER) -> str:
    """Create an old pod without a row."""
    driver = world.driver
    driver.create(
        PodSpec(
            name=name, profile="default", revision="rev", image="i", cpu_millicores=1, memory_mib=1, port=1,
            grace_s=1,
            secret="s", role=role,
        )
    )  # fmt: skip
    driver.become_ready(name)
    driver.change(name, age_s=1000)
    if stamped:
        driver.stamp(driver.pods[name], HELD)
    return name


def drain(world: World, worker: str) -> None:
    with transaction(world.deps) as (tx, after):
        retiring.drain(tx, after, world.worker(worker), world.deps.by(MoveReason.SURPLUS))


def refused(world: World) -> dict[str, str]:
    """Return what `status` reports about it."""
    worries = reporting.status(world.store, world.deps.settings)["worries"]
    return {w["id"]: w["text"] for w in worries if w["id"].startswith("refused:")}


def row(world: World, name: str) -> passes.PassRow:
    with world.store.read() as tx:
        return passes.get(tx, name)


def test_an_orphan_that_cannot_be_deleted_is_skipped_and_reported_until_it_is_gone(world: World) -> None:
    world.warm(1)
    for name in ("w-a", "w-poison", "w-z"):
        orphan(world, name)
    world.driver.denied.add(("delete", "w-poison"))
    with capture_logs() as told:
        for _ in range(world.deps.settings.pool.pass_failures_limit + 1):
            assert world.run_pass("sweep_orphans")["outcome"] == "ok"
    assert {"w-a", "w-z"}.isdisjoint(world.driver.pods)
    assert "w-poison" in world.driver.pods
    found = row(world, "sweep_orphans")
    assert (found.last_outcome, found.failures) == ("ok", 0)
    assert found.last_success_at is not None
    assert "skipped 1" in str(found.last_detail)
    assert refused(world) == {
        "refused:sweep_orphans:orphan_deleted": "sweep_orphans skips w-poison: orphan_deleted was refused 11 times: "
        "forbidden: admission denied delete of w-poison"
    }
    assert len([line for line in told if line["event"] == "step_skipped"]) == 1
    skipped = world.deps.metrics.pass_actions.labels("sweep_orphans", "skipped")
    assert skipped._value.get() == 11
    with world.store.read() as tx:
        assert len(audit.of(tx, "w-poison")) == 1
    world.driver.denied.clear()
    world.run_pass("sweep_orphans")
    assert "w-poison" not in world.driver.pods
    assert refused(world) == {}


def test_stamped_orphans_that_cannot_be_deleted_do_not_delay_others(world: World) -> None:
    world.warm(1)
    for n in range(12):
        world.driver.denied.add(("delete", orphan(world, f"w-a-poison-{n:02d}", stamped=True)))
    for n in range(6):
        world.driver.denied.add(("word", orphan(world, f"w-b-mute-{n:02d}", stamped=True)))
    for n in range(6):
        orphan(world, f"w-c-well-{n:02d}", stamped=True)
    for _ in range(5):
        assert world.run_pass("sweep_orphans")["outcome"] == "ok"
    assert not [name for name in world.driver.pods if "well" in name]
    assert len([name for name in world.driver.pods if "poison" in name or "mute" in name]) == 18


def test_a_pod_that_cannot_be_stamped_leaves_the_others_protected(world: World) -> None:
    world.warm(3)
    busy = [world.granted("acme").worker_id for _ in range(3)]
    world.broker.sent.clear()
    world.driver.denied.add(("stamp", busy[1]))
    assert world.run_pass("guard_disruption")["outcome"] == "ok"
    assert [world.driver.pods[w].protected for w in busy] == [True, False, True]
    assert busy[1] in refused(world)["refused:guard_disruption:stamped"]


def test_a_row_whose_pod_cannot_be_read_does_not_keep_others_from_being_lost(world: World) -> None:
    one, two, _ = world.warm(3)
    for worker in (one, two):
        del world.driver.pods[worker]
    world.driver.denied.add(("read", one))
    for _ in range(2):
        assert world.run_pass("sweep_orphans")["outcome"] == "ok"
    assert (world.state_of(one), world.state_of(two)) == (State.IDLE, State.LOST)


def test_companions_and_placeholders_that_cannot_be_deleted_do_not_block_others(world: World) -> None:
    world.warm(1)
    world.driver.secrets |= {"w-left-a": "s", "w-left-b": "s"}
    world.driver.denied.add(("delete_companions", "w-left-a"))
    for _ in range(2):
        assert world.run_pass("sweep_orphans")["outcome"] == "ok"
    assert "w-left-a" in world.driver.secrets
    assert "w-left-b" not in world.driver.secrets
    for name in ("p-a", "p-b"):
        orphan(world, name, role=PodRole.PLACEHOLDER)
    world.driver.denied.add(("delete", "p-a"))
    assert world.run_pass("reconcile_headroom")["outcome"] == "ok"
    assert "p-a" in world.driver.pods
    assert "p-b" not in world.driver.pods


def test_refused_placeholders_are_tried_once_per_run(world: World, monkeypatch: Any) -> None:
    world.warm(1)
    world.profile(headroom=5)
    monkeypatch.setattr(world.deps.ids, "worker", lambda: "same")
    world.driver.denied.add(("create", "placeholder-same"))
    world.driver.calls.clear()
    assert world.run_pass("reconcile_headroom")["outcome"] == "ok"
    assert world.driver.calls == [("create", "placeholder-same")]
    assert "placeholder_made was refused" in refused(world)["refused:reconcile_headroom:placeholder_made"]


def test_a_missing_permission_is_not_treated_as_one_bad_pod(world: World) -> None:
    world.warm(2)
    for _ in range(2):
        world.granted("acme")
    world.broker.sent.clear()
    world.driver.forbidden.add("stamp")
    with pytest.raises(Forbidden, match="may not stamp"):
        world.run_pass("guard_disruption")
    found = row(world, "guard_disruption")
    assert (found.last_outcome, found.failures, found.last_success_at) == ("failed", 1, None)
    assert "may not stamp" in str(found.last_detail)


def test_one_pod_whose_call_times_out_is_skipped_and_several_are_an_outage(world: World) -> None:
    world.warm(1)
    names = [orphan(world, f"w-{n}") for n in range(6)]
    world.driver.unanswered.add(("delete", names[0]))
    assert world.run_pass("sweep_orphans")["outcome"] == "ok"
    assert [n for n in names if n in world.driver.pods] == [names[0]]
    names = [orphan(world, f"w-{n}") for n in range(6)]
    world.driver.unanswered |= {("delete", n) for n in names}
    world.driver.calls.clear()
    assert world.run_pass("sweep_orphans")["outcome"] == "failed"
    assert len([verb for verb, _ in world.driver.calls if verb == "delete"]) == 3


def test_a_worker_whose_pod_cannot_be_deleted_is_reported_and_delays_no_other(world: World) -> None:
    poison, other, _ = world.warm(3)
    world.driver.denied.add(("delete", poison))
    for worker in (poison, other):
        drain(world, worker)
    world.deliver("pool.retire")
    assert (world.state_of(poison), world.state_of(other)) == (State.DRAINING, State.RETIRED)
    world.pass_time(20)
    assert world.run_pass("reap")["outcome"] == "ok"
    world.deliver("pool.retire")
    assert "retire skips" in refused(world)["refused:retire:pod_deleted"]
    assert "was refused 2 times" in refused(world)["refused:retire:pod_deleted"]
    patient = Installation(world.deps.settings)
    patient.__dict__["store"] = world.store
    found = {f.id: f for f in doctor.examine(patient)}
    assert "admission webhook" in found["refused:retire:pod_deleted"].fix
    world.driver.denied.clear()
    world.pass_time(20)
    world.run_pass("reap")
    world.deliver("pool.retire")
    assert world.state_of(poison) is State.RETIRED
    world.pass_time(20)
    world.run_pass("reap")
    assert refused(world) == {}


def test_a_dry_run_reports_nothing(world: World) -> None:
    world.warm(1)
    world.driver.denied.add(("word", orphan(world, "w-poison", stamped=True)))
    world.run_pass("sweep_orphans")
    world.run_pass("sweep_orphans", dry_run=True)
    assert refused(world) == {}
