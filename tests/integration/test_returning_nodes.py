"""A node that was being removed stays after all, for example after `kubectl uncordon`: its busy
workers are no longer leaving, unless they must leave for another reason.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from pool.core.ids import WorkerId
from pool.core.states import State
from pool.ops import operating
from pool.ops.operating import Operator
from pool.ops.reporting import stories
from pool.store import journal
from tests.support.world import World

CORDONED = "its node is cordoned"
ALICE = Operator(name="alice", way="cli", why="its disk is broken")


def leaving(world: World) -> tuple[WorkerId, str]:
    """Return a busy worker whose node is being removed, and its claim."""
    world.warm(1)
    granted = world.granted("acme", ttl_s=60)
    world.driver.change(granted.worker_id, leaving=CORDONED)
    world.observe()
    assert world.renew(granted.claim_id)["leaving"] == {granted.claim_id: f"disrupted: {CORDONED}"}
    return WorkerId(granted.worker_id), granted.claim_id


def why_leaving(world: World, claim_id: str) -> str | None:
    found: str | None = world.renew(claim_id).get("leaving", {}).get(claim_id)
    return found


def test_a_busy_worker_whose_node_stays_is_parked_when_it_is_released(world: World) -> None:
    worker, claim = leaving(world)
    world.driver.change(worker, leaving="")
    world.pass_time(16)
    world.run_pass("guard_disruption")
    assert why_leaving(world, claim) is None
    world.release(claim)
    assert world.state_of(worker) is State.HOT_IDLE
    with world.store.read() as tx:
        told = [text for _, text in stories.sentences(journal.of(tx, worker))]
    assert "No longer leaving: its node stays." in told


def test_a_worker_whose_node_is_cordoned_again_is_leaving_again(world: World) -> None:
    worker, claim = leaving(world)
    world.driver.change(worker, leaving="")
    world.pass_time(16)
    world.run_pass("guard_disruption")
    world.driver.change(worker, leaving=CORDONED)
    world.run_pass("guard_disruption")  # the observer has missed the event
    assert why_leaving(world, claim) == f"disrupted: {CORDONED}"
    world.release(claim)
    assert world.state_of(worker) is State.DRAINING


@pytest.mark.parametrize(
    ("seen", "waited_s"),
    [
        pytest.param({"leaving": CORDONED}, 16, id="the-node-is-still-cordoned"),
        pytest.param({"leaving": "", "terminating": True}, 16, id="the-pod-ends"),
        pytest.param({"leaving": "", "uid": "another"}, 16, id="another-pod"),
        pytest.param({"leaving": ""}, 5, id="the-view-may-be-from-before-the-mark"),
    ],
)
def test_the_mark_stays(world: World, seen: dict[str, Any], waited_s: float) -> None:
    worker, claim = leaving(world)
    world.driver.change(worker, **seen)
    world.pass_time(waited_s)
    world.run_pass("guard_disruption")
    assert why_leaving(world, claim) is not None


def test_the_mark_stays_while_the_nodes_cannot_be_read(world: World) -> None:
    worker, claim = leaving(world)
    world.driver.change(worker, leaving="")
    world.driver.nodes_age_s = math.inf
    world.pass_time(16)
    world.run_pass("guard_disruption")
    assert why_leaving(world, claim) == f"disrupted: {CORDONED}"


def test_a_worker_that_an_operator_drains_leaves_although_its_node_stays(world: World) -> None:
    worker, claim = leaving(world)
    assert operating.drain(world.deps, [worker], ALICE).leaving == [worker]
    world.driver.change(worker, leaving="")
    world.pass_time(16)
    world.run_pass("guard_disruption")
    assert str(why_leaving(world, claim)).startswith("drained")
    world.release(claim)
    assert world.state_of(worker) is State.DRAINING
