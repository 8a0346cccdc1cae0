"""Items that a pass may not or cannot handle never fill its window permanently: all other due items
are handled within a few runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pool.core.errors import Transient
from pool.core.keys import Keyring
from pool.core.records import ReplyTo
from pool.core.states import State
from pool.core.turns import begins_at
from pool.drivers.port import Pod
from pool.lifecycle import claiming
from pool.store import claims
from tests.support.world import World

LIMIT = 2
RUNS = 20


@pytest.fixture
def narrow(world: World) -> World:
    world.configure(pass_limit=LIMIT)
    return world


def _runs(world: World, name: str, runs: int = RUNS) -> None:
    for _ in range(runs):
        world.pass_time(5)
        world.run_pass(name)
        world.settle()


def _parked(world: World, org: str, count: int, ttl_s: int = 60) -> list[str]:
    world.warm(count)
    held = [world.granted(org, ttl_s=ttl_s) for _ in range(count)]
    for granted in held:
        world.release(granted.claim_id)
    return [granted.worker_id for granted in held]


def test_workers_kept_by_a_floor_do_not_block_the_reap_of_another_org(narrow: World) -> None:
    narrow.org("acme", hot_idle_floor=4)
    kept = _parked(narrow, "acme", 4)
    (expired,) = _parked(narrow, "bolt", 1, ttl_s=70)
    narrow.pass_time(100)
    _runs(narrow, "reap", 1)
    assert narrow.state_of(expired) is State.RETIRED
    assert {narrow.state_of(worker) for worker in kept} == {State.HOT_IDLE}


def test_only_expired_workers_above_their_orgs_floor_are_read(narrow: World) -> None:
    """Each time above its floor by one, it would still fill the window with the others."""
    narrow.org("acme", hot_idle_floor=4)
    _parked(narrow, "acme", 5)
    (expired,) = _parked(narrow, "bolt", 1, ttl_s=70)
    narrow.pass_time(100)
    _runs(narrow, "reap", 1)
    assert narrow.state_of(expired) is State.RETIRED
    assert len(narrow.workers(State.HOT_IDLE)) == 4


def test_a_hot_idle_cap_below_the_floor_decides_what_is_kept(narrow: World) -> None:
    narrow.org("acme", hot_idle_floor=3, hot_idle_cap=1)
    _parked(narrow, "acme", 3)
    narrow.pass_time(100)
    _runs(narrow, "reap", 3)
    assert len(narrow.workers(State.HOT_IDLE)) == 1


def test_workers_kept_by_a_floor_do_not_hide_one_that_can_be_drained(narrow: World) -> None:
    narrow.org("acme", hot_idle_floor=3)
    _parked(narrow, "acme", 3, ttl_s=600)
    (spare,) = _parked(narrow, "bolt", 1, ttl_s=600)
    narrow.configure(max_workers=4)
    narrow.waits("core")
    narrow.run_pass("reconcile_warm")
    assert narrow.state_of(spare) is State.DRAINING


def test_answers_that_cannot_be_delivered_do_not_block_others(narrow: World) -> None:
    """The first ones fail permanently."""
    broker = narrow.broker
    dead = [narrow.waits("acme", wait_s=1) for _ in range(6)]
    narrow.pass_time(5)
    broker.down = True
    _runs(narrow, "reap", 6)
    honest = narrow.waits("bolt", wait_s=1)
    narrow.pass_time(5)
    _runs(narrow, "reap", 3)
    broker.down = False
    deliver = broker.reply

    def reply(to: ReplyTo, answer: Any) -> None:
        if to.task_id in dead:
            raise Transient("WRONGTYPE")
        deliver(to, answer)

    narrow.deps = replace(narrow.deps, broker=_Replying(broker, reply))
    _runs(narrow, "reap")
    assert broker.answers_for(honest)


class _Replying:
    def __init__(self, broker: Any, reply: Any) -> None:
        self.send, self.send_later, self.nudge = broker.send, broker.send_later, broker.nudge
        self.reply = reply


def test_refused_deletes_do_not_block_others(narrow: World) -> None:
    held = [narrow.granted("acme") for _ in narrow.warm(6)]
    for granted in held[:5]:
        narrow.driver.denied.add(("delete", granted.worker_id))
    for granted in held:
        narrow.release(granted.claim_id, "tainted")
    narrow.broker.sent.clear()
    narrow.pass_time(20)
    _runs(narrow, "reap")
    assert narrow.state_of(held[5].worker_id) is State.RETIRED
    assert narrow.state_of(held[0].worker_id) is State.DRAINING


def test_failed_releases_do_not_block_others(narrow: World, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [narrow.granted("acme", lease_s=3600) for _ in narrow.warm(6)]
    for granted in held:
        with narrow.store.write() as tx:
            claims.request_release(tx, granted.claim_id, "clean")  # type: ignore[arg-type]
        narrow.pass_time(1)
    patiently = claiming.serve_one

    def one_is_not_locked(deps: Any, call: Any) -> Any:
        if call.claim_id != held[5].claim_id:
            raise Transient("its row is locked")
        return patiently(deps, call)

    monkeypatch.setattr(claiming, "serve_one", one_is_not_locked)
    _runs(narrow, "reap")
    assert narrow.state_of(held[5].worker_id) is not State.HOT
    assert narrow.state_of(held[0].worker_id) is State.HOT


def test_unschedulable_slots_do_not_hide_a_stuck_one(narrow: World) -> None:
    narrow.profile(warm_target=5)
    narrow.configure(pass_limit=9, stuck_cutoff_s=200, unschedulable_limit_s=900)
    narrow.run_pass("reconcile_warm")
    narrow.settle()
    *waiting, stuck = sorted(w.id for w in narrow.workers(State.SPAWNING))
    for name in waiting:
        narrow.driver.change(name, unschedulable=True)
    narrow.configure(pass_limit=LIMIT)
    narrow.pass_time(250)
    narrow.run_pass("sweep_stuck")
    assert narrow.state_of(stuck) is not State.SPAWNING
    assert {narrow.state_of(name) for name in waiting} == {State.SPAWNING}


def test_pods_that_refuse_their_stamp_do_not_block_others(narrow: World) -> None:
    narrow.warm(6)
    held = sorted(narrow.granted("acme", lease_s=3600).worker_id for _ in range(6))
    narrow.broker.sent.clear()
    narrow.driver.denied |= {("stamp", worker) for worker in held[:5]}
    _runs(narrow, "guard_disruption")
    assert narrow.driver.pods[held[5]].protected


def test_pods_whose_stamp_times_out_do_not_block_others(world: World) -> None:
    """Three of them end a run; the next one begins with the others."""
    world.warm(6)
    held = sorted(world.granted("acme", lease_s=3600).worker_id for _ in range(6))
    world.broker.sent.clear()
    world.driver.unanswered |= {("stamp", worker) for worker in held[:5]}
    _runs(world, "guard_disruption", 4)
    assert world.driver.pods[held[5]].protected


def test_rows_whose_pod_cannot_be_read_do_not_block_others(narrow: World) -> None:
    rows = sorted(narrow.warm(7))
    narrow.driver.denied |= {("read", worker) for worker in rows[:5]}
    for worker in rows[:6]:
        narrow.driver.cluster.pods.pop(worker)
    narrow.driver.drain_events()
    _runs(narrow, "sweep_orphans")
    assert narrow.state_of(rows[5]) is State.LOST


def test_orphans_whose_deletion_is_refused_do_not_block_others(narrow: World) -> None:
    names = sorted(narrow.warm(6))
    pods: dict[str, Pod] = {}
    for name in names:
        pods[name] = replace(narrow.driver.pods[name], name=f"x-{name}", age_s=1000.0)
    for pod in pods.values():
        narrow.driver.cluster.pods[pod.name] = pod
    narrow.driver.denied |= {("delete", f"x-{name}") for name in names[:5]}
    _runs(narrow, "sweep_orphans")
    assert f"x-{names[5]}" not in narrow.driver.pods
    assert f"x-{names[0]}" in narrow.driver.pods


def test_companions_whose_deletion_is_refused_do_not_block_others(narrow: World) -> None:
    narrow.warm(1)
    names = [f"y-{number}" for number in range(6)]
    narrow.driver.cluster.secrets.update(dict.fromkeys(names, "s"))
    narrow.driver.denied |= {("delete_companions", name) for name in names[:5]}
    _runs(narrow, "sweep_orphans")
    assert names[5] not in narrow.driver.secrets


def test_parked_worker_of_an_unknown_key_is_found_behind_many_of_known_keys(world: World) -> None:
    world.deps = replace(world.deps, keys=Keyring(current=b"n" * 32, previous=b"o" * 32))
    known = _parked(world, "acme", 25, ttl_s=600)
    world.deps = replace(world.deps, keys=Keyring(current=b"o" * 32, next=b"n" * 32))
    (lost,) = _parked(world, "bolt", 1, ttl_s=600)
    world.deps = replace(world.deps, keys=Keyring(current=b"n" * 32))
    world.pass_time(1)
    world.warm(1)
    world.run_pass("reap")
    assert world.state_of(lost) is State.DRAINING
    assert {world.state_of(worker) for worker in known} == {State.HOT_IDLE}


@pytest.mark.parametrize("pace", [1, 2, 3, 5, 8, 15, 30, 60])
def test_every_position_of_a_window_is_reached_at_any_pace(pace: int) -> None:
    for length in (3, 10, 16):
        begun = {begins_at(turn * pace, length) for turn in range(40 * length)}
        assert begun == set(range(length)), (pace, length)
