"""The verbs and the passes with real pods: one suite for every driver, on a real database. A driver's
tests run it with a `ground` fixture.

class TestPassesOnMyDriver(PassesContract):
    @pytest.fixture
    def ground(self) -> Iterator[PoolGround]: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pool.core import tokens
from pool.core.contract import Granted
from pool.core.ids import Ids, WorkerId
from pool.core.states import TERMINAL, MoveReason, State
from pool.drivers.port import (
    LABEL_BUSY,
    NOTE_CLAIM,
    NOTE_DO_NOT_DISRUPT,
    NOTE_ORG,
    Gone,
    Pod,
    PodPhase,
    PodRole,
    Stamp,
)
from pool.lifecycle import spawning
from pool.passes import PASSES, running
from pool.store import Store, breakers, suspects
from tests.support.local_ground import call
from tests.support.scene import PoolGround, Scene
from tests.support.snapshots import put_back, script
from tests.support.waiting import eventually

SLEEPS = ("sleep", "600")
LATER = Stamp(org="acme", claim_id="c-later", epoch=5, busy=True)


@pytest.fixture
def scene(ground: PoolGround, store: Store) -> Iterator[Scene]:
    with Scene(store, ground) as scene:
        yield scene
        scene.check()


def take_away(scene: Scene, name: str) -> None:
    """Delete a pod as a node that leaves, or kubectl, would."""
    pod = scene.pod(name)
    scene.driver.delete(name, pod.uid, grace_s=0)
    eventually(lambda: scene.driver.read(name) is None, within_s=30)
    scene.driver.wait_told(name, lambda seen: isinstance(seen, Gone))
    scene.until_seen(lambda pods: name not in pods)


def ask(scene: Scene, granted: Granted) -> int:
    """Use a worker as its holder does; return the status."""
    headers = tokens.headers(granted.claim_id, granted.epoch, granted.token)
    return call(scene.pod(granted.worker_id), "GET", "/echo", headers)[0]


def all_passes(scene: Scene, times: int = 1) -> None:
    for _ in range(times):
        for name in PASSES:
            assert scene.run_pass(name)["outcome"] == "ok", name
            scene.settle()


def orphan(scene: Scene, ground: PoolGround, name: str = "w-orphan", *, stamped: bool = False) -> Pod:
    """Create a pod without a row, visible to the passes."""
    pod = ground.make_ready(scene.driver.create(ground.spec(name)))
    if stamped:
        scene.driver.stamp(pod, replace(LATER, epoch=1))
    scene.until_seen(lambda pods: name in pods and pods[name].ever_stamped is stamped)
    return scene.pod(name)


class PassesContract:
    # Supply

    def test_slots_become_workers_and_a_quiet_pool_changes_nothing(self, scene: Scene) -> None:
        scene.profile(warm_target=3)
        scene.run_pass("reconcile_warm")
        scene.until(lambda: len(scene.workers(State.IDLE)) == 3)
        scene.until_seen(lambda pods: sum(pod.usable for pod in pods.values()) == 3)
        before = {pod.name: pod.version for pod in scene.driver.list().pods}
        all_passes(scene, times=2)
        assert {pod.name: pod.version for pod in scene.driver.list().pods} == before
        assert sorted(scene.driver.companions()) == sorted(before)

    def test_a_worker_that_becomes_ready_is_granted_to_a_waiter(self, scene: Scene) -> None:
        scene.profile(warm_target=0)
        task = scene.waits("acme", wait_s=600)
        scene.run_pass("reconcile_warm")
        answers = scene.until(lambda: scene.broker.answers_for(task))
        assert [answer["outcome"] for answer in answers] == ["granted"]

    def test_a_spawn_delivered_twice_creates_one_pod(self, scene: Scene) -> None:
        scene.profile(warm_target=1)
        scene.run_pass("reconcile_warm")
        scene.deliver("pool.spawn", times=2)
        (slot,) = scene.workers(State.SPAWNING)
        scene.until_state(slot.id, State.IDLE)
        assert [pod.uid for pod in scene.driver.list().pods] == [scene.worker(slot.id).pod_uid]

    def test_a_spawn_whose_slot_was_drained_meanwhile_leaves_no_pod(self, scene: Scene) -> None:
        scene.profile(warm_target=1)
        scene.run_pass("reconcile_warm")
        (slot,) = scene.workers(State.SPAWNING)
        spec = spawning.spec(scene.deps, slot, scene.deps.settings.profiles["default"])
        made = scene.driver.create(spec)
        spawning.fail(scene.deps, slot, MoveReason.NOT_READY, "given up")
        scene.deliver("pool.spawn")
        eventually(lambda: scene.driver.read(slot.id) is None, within_s=30)
        assert scene.state_of(slot.id) is State.RETIRED
        assert made.name == slot.id
        eventually(lambda: scene.driver.companions() == (), within_s=30)

    def test_a_slot_that_never_becomes_ready_is_freed_with_its_pod(self, scene: Scene) -> None:
        scene.profile(warm_target=1, command=SLEEPS, grace_s=1)
        scene.run_pass("reconcile_warm")
        (slot,) = scene.workers(State.SPAWNING)
        scene.until(lambda: scene.driver.read(slot.id))
        scene.pass_time(119)
        scene.run_pass("sweep_stuck")
        assert scene.state_of(slot.id) is State.SPAWNING
        scene.pass_time(2)
        scene.run_pass("sweep_stuck")
        scene.until_state(slot.id, State.RETIRED)
        eventually(lambda: slot.id not in scene.driver.pods, within_s=30)

    def test_a_profile_that_cannot_start_backs_off_and_takes_no_slots_of_other_profiles(
        self, scene: Scene, ground: PoolGround
    ) -> None:
        scene.profile(warm_target=1)
        bad = ground.unstartable(replace(scene.deps.settings.profiles["default"], name="bad", grace_s=1))
        scene.configure(profiles={**scene.deps.settings.profiles, "bad": bad}, max_workers=2)
        for tries in range(1, 4):
            scene.run_pass("reconcile_warm")
            assert sum(row.profile == "bad" for row in scene.rows("workers")) == tries
            scene.until(lambda: not scene.workers(State.SPAWNING) or _given_up(scene))
        assert len(scene.workers(State.IDLE)) == 1
        with scene.store.read() as tx:
            assert breakers.is_open(tx, "bad")  # type: ignore[arg-type]
        scene.run_pass("reconcile_warm")
        assert sum(row.profile == "bad" for row in scene.rows("workers")) == 3

    def test_a_new_build_replaces_unclaimed_workers_and_a_failing_build_halts(
        self, scene: Scene, ground: PoolGround
    ) -> None:
        scene.configure(rollout_step_percent=50, rollout_ready_s=0)
        scene.profile(warm_target=2)
        scene.run_pass("reconcile_warm")
        scene.until(lambda: len(scene.workers(State.IDLE)) == 2)
        held = scene.granted("acme", lease_s=3600)
        held_pod = scene.pod(held.worker_id).uid

        def rolls(until: Callable[[], bool]) -> None:
            """Never with fewer idle workers than before."""
            least = len(scene.workers(State.IDLE))

            def moved_on() -> bool:
                scene.until_seen(lambda pods: all(w.id in pods for w in scene.workers(State.IDLE)))
                scene.run_pass("reconcile_warm")
                assert len(scene.workers(State.IDLE)) >= least
                return until()

            scene.until(moved_on, within_s=60)

        rolls(lambda: len(scene.workers(State.IDLE)) == 2)
        old = {w.id for w in scene.workers(State.IDLE)}
        good = replace(scene.deps.settings.profiles["default"], env={"BUILD": "2"})
        scene.configure(profiles={"default": good})
        rolls(lambda: not old & {w.id for w in scene.workers(State.IDLE)})
        new = {w.id for w in scene.workers(State.IDLE)}
        assert len(new) == 2
        assert (scene.state_of(held.worker_id), scene.pod(held.worker_id).uid) == (State.HOT, held_pod)
        scene.configure(profiles={"default": ground.unstartable(replace(good, grace_s=1))})

        def has_halted() -> bool:
            _given_up(scene)
            with scene.store.read() as tx:
                return breakers.is_open(tx, "default")  # type: ignore[arg-type]

        rolls(has_halted)
        assert {w.id for w in scene.workers(State.IDLE)} == new
        assert ask(scene, scene.granted("beta")) == 200

    def test_headroom_is_created_and_disabling_it_deletes_it(self, scene: Scene) -> None:
        scene.profile(headroom=2)
        (worker,) = scene.warm(1)
        scene.run_pass("reconcile_headroom")
        scene.until_seen(lambda pods: _placeholders(pods) == 2)
        scene.run_pass("reconcile_headroom")
        scene.pass_time(1000)
        scene.run_pass("sweep_orphans")
        assert _placeholders(scene.driver.pods) == 2
        scene.profile(headroom=0)
        scene.run_pass("reconcile_headroom")
        eventually(lambda: list(scene.driver.pods) == [worker], within_s=30)

    def test_headroom_of_an_old_shape_or_a_dead_placeholder_is_replaced(self, scene: Scene) -> None:
        scene.profile(headroom=2)
        first = _reconciled(scene, set())
        scene.profile(memory_mib=scene.deps.settings.profiles["default"].memory_mib + 1)
        second = _reconciled(scene, first)
        dead = min(second)
        scene.ground.make_container_die(scene.driver.pods[dead])
        scene.until_seen(lambda pods: pods[dead].phase is PodPhase.ENDED)
        third = _reconciled(scene, {dead})
        assert third > second - {dead}

    # Claims

    def test_a_worker_is_claimed_used_parked_and_granted_again_only_to_its_org(self, scene: Scene) -> None:
        scene.warm(2)
        first = scene.granted("acme")
        assert ask(scene, first) == 200
        scene.release(first.claim_id)
        second = scene.granted("acme")
        assert (second.worker_id, second.source) == (first.worker_id, "hot_idle")
        assert ask(scene, second) == 200
        assert ask(scene, first) in (401, 409)
        scene.release(second.claim_id)
        assert scene.granted("bolt").worker_id != first.worker_id

    def test_an_activation_binds_a_real_worker(self, scene: Scene) -> None:
        scene.profile(activation_path="/activate", activation_payload={"org": "{org}"})
        (worker,) = scene.warm(1)
        scene.acquire("acme", task_id="t")
        (answer,) = scene.until(lambda: scene.broker.answers_for("t"))
        assert (answer["outcome"], answer["worker_id"]) == ("granted", worker)
        headers = tokens.headers(answer["claim_id"], answer["epoch"], answer["token"])
        status, echo = call(scene.pod(worker), "GET", "/echo", headers)
        assert (status, echo["org"]) == (200, "acme")

    def test_a_parked_worker_is_deleted_with_its_pod_and_companions_after_its_ttl(self, scene: Scene) -> None:
        (worker,) = scene.warm(1)
        scene.release(scene.granted(ttl_s=60).claim_id)
        scene.pass_time(59)
        scene.run_pass("reap")
        scene.settle()
        assert scene.state_of(worker) is State.HOT_IDLE
        scene.pass_time(2)
        scene.run_pass("reap")
        scene.until_state(worker, State.RETIRED)
        eventually(lambda: scene.driver.read(worker) is None, within_s=30)
        eventually(lambda: scene.driver.companions() == (), within_s=30)

    def test_a_tainted_worker_is_never_parked(self, scene: Scene) -> None:
        (worker,) = scene.warm(1)
        scene.release(scene.granted().claim_id, "tainted")
        scene.until_state(worker, State.RETIRED)
        eventually(lambda: scene.driver.read(worker) is None, within_s=30)

    # Events of pods

    def test_a_container_that_dies_ends_its_claim_with_the_cause(
        self, scene: Scene, ground: PoolGround
    ) -> None:
        scene.org("acme", cap=1)
        (worker,) = scene.warm(1)
        granted = scene.granted("acme")
        ground.make_container_die(scene.pod(worker))
        scene.until_state(worker, State.LOST)
        assert scene.renew(granted.claim_id)["gone"] == {granted.claim_id: "worker_lost"}
        assert scene.story(worker)[-1].startswith("container_ended: ")
        assert "exit code 137" in scene.story(worker)[-1] or "exit code -9" in scene.story(worker)[-1]
        scene.until(lambda: scene.driver.read(worker) is None)
        scene.warm(1)
        scene.granted("acme")

    def test_a_deleted_pod_makes_its_worker_lost_and_is_replaced(self, scene: Scene) -> None:
        scene.profile(warm_target=1)
        (worker,) = scene.warm(1)
        granted = scene.granted("acme")
        take_away(scene, worker)
        scene.until_state(worker, State.LOST)
        assert scene.renew(granted.claim_id)["gone"] == {granted.claim_id: "worker_lost"}
        scene.run_pass("reconcile_warm")
        scene.until(lambda: len(scene.workers(State.IDLE)) == 1)

    def test_a_pod_that_vanished_unobserved_is_lost_after_two_sweeps_and_never_counts_as_warm(
        self, scene: Scene
    ) -> None:
        scene.profile(warm_target=2)
        kept, gone = scene.warm(2)
        take_away(scene, gone)
        scene.driver.drain_events()
        scene.pass_time(20)
        scene.run_pass("reconcile_warm")
        assert len(scene.workers(State.SPAWNING)) == 1
        scene.run_pass("sweep_orphans")
        assert scene.state_of(gone) is State.IDLE
        scene.run_pass("sweep_orphans")
        assert scene.state_of(gone) is State.LOST
        assert scene.state_of(kept) is State.IDLE

    def test_a_terminating_idle_pod_drains_at_once_and_a_busy_one_stays_with_its_holder(
        self, scene: Scene, ground: PoolGround
    ) -> None:
        scene.warm(2)
        held = scene.granted("acme")
        busy = scene.pod(held.worker_id)
        (idle,) = scene.workers(State.IDLE)
        ground.make_busy(busy)
        for pod in (busy, scene.pod(idle.id)):
            scene.driver.delete(pod.name, pod.uid)
        # Retired if its termination was observed, lost if it was already gone.
        scene.until(lambda: scene.state_of(idle.id) in TERMINAL)
        scene.until(lambda: scene.worker(busy.name).leaving_since)
        scene.pass_time(500)
        all_passes(scene, times=3)
        assert scene.state_of(busy.name) is State.HOT
        assert held.claim_id in scene.renew(held.claim_id)["renewed"]
        ground.make_unused(busy)
        scene.until_state(busy.name, State.LOST)

    def test_no_pass_touches_the_pod_of_a_live_claim(self, scene: Scene, ground: PoolGround) -> None:
        scene.profile(warm_target=0)
        scene.configure(max_age_s=100)
        (worker,) = scene.warm(1)
        held = scene.granted("acme", lease_s=3600)
        scene.settle()
        ground.make_unaskable(scene.pod(worker))
        before = scene.pod(worker).uid
        for _ in range(4):
            scene.pass_time(700)
            all_passes(scene)
            assert held.claim_id in scene.renew(held.claim_id)["renewed"]
        assert scene.state_of(worker) is State.HOT
        now = scene.pod(worker)
        assert (now.uid, now.terminating) == (before, False)

    # Guard

    def test_a_claim_is_stamped_a_release_clears_the_stamp_and_then_nothing_is_written(
        self, scene: Scene
    ) -> None:
        (worker,) = scene.warm(1)
        held = scene.granted("acme")
        scene.broker.sent.clear()
        scene.run_pass("guard_disruption")
        busy = scene.pod(worker)
        assert (busy.labels[LABEL_BUSY], busy.annotations[NOTE_DO_NOT_DISRUPT]) == ("true", "true")
        assert busy.annotations[NOTE_CLAIM] == held.claim_id
        scene.release(held.claim_id)
        scene.broker.sent.clear()
        scene.run_pass("guard_disruption")
        parked = scene.pod(worker)
        assert parked.labels[LABEL_BUSY] == "false"
        assert NOTE_DO_NOT_DISRUPT not in parked.annotations
        assert parked.annotations[NOTE_ORG] == "acme"
        scene.until_seen(lambda pods: pods[worker].version == parked.version)
        scene.run_pass("guard_disruption")
        assert scene.pod(worker).version == parked.version

    def test_a_new_replica_clears_the_protection_that_a_dead_replica_left(self, scene: Scene) -> None:
        (worker,) = scene.warm(1)
        nobody = Stamp(org=None, claim_id=None, epoch=0, busy=True)
        scene.driver.stamp(scene.pod(worker), nobody)
        with scene.without_memory() as other:
            other.run_pass("guard_disruption")
        cleared = scene.pod(worker)
        assert cleared.labels[LABEL_BUSY] == "false"
        assert NOTE_DO_NOT_DISRUPT not in cleared.annotations

    # Orphans

    def test_a_never_stamped_pod_without_a_row_is_kept_while_young_and_deleted_when_old(
        self, scene: Scene, ground: PoolGround
    ) -> None:
        (worker,) = scene.warm(1)
        orphan(scene, ground)
        scene.run_pass("sweep_orphans")
        assert "w-orphan" in scene.driver.pods
        scene.pass_time(130)
        scene.run_pass("sweep_orphans")
        eventually(lambda: list(scene.driver.pods) == [worker], within_s=30)
        eventually(lambda: scene.driver.companions() == (worker,), within_s=30)

    @pytest.mark.parametrize("word", ["busy", "silent", "unused"])
    def test_a_stamped_pod_is_deleted_only_on_two_proofs_one_of_them_its_own(
        self, scene: Scene, ground: PoolGround, word: str
    ) -> None:
        (worker,) = scene.warm(1)
        pod = orphan(scene, ground, stamped=True)
        prepare: dict[str, Callable[[Pod], None]] = {
            "busy": ground.make_busy,
            "silent": ground.make_unaskable,
            "unused": lambda _: None,
        }
        prepare[word](pod)
        scene.pass_time(280)
        for _ in range(3):
            scene.run_pass("sweep_orphans")
        assert "w-orphan" in scene.driver.pods
        scene.pass_time(30)
        scene.run_pass("sweep_orphans")
        assert "w-orphan" in scene.driver.pods
        scene.run_pass("sweep_orphans")
        assert ("w-orphan" in scene.driver.pods) is (word != "unused")
        with scene.store.read() as tx:
            held = suspects.every(tx)
        assert word == "unused" or any(word in detail for *_, detail in held)
        assert worker in scene.driver.pods

    def test_companions_without_a_pod_are_removed(self, scene: Scene, ground: PoolGround) -> None:
        (worker,) = scene.warm(1)
        ground.leave_companions("w-gone")
        eventually(lambda: "w-gone" in scene.driver.companions(), within_s=30)
        scene.run_pass("sweep_orphans")
        scene.run_pass("sweep_orphans")
        eventually(lambda: scene.driver.companions() == (worker,), within_s=30)

    def test_an_empty_pod_list_is_accepted_only_with_the_anchor(self, scene: Scene) -> None:
        (worker,) = scene.warm(1)
        take_away(scene, worker)
        scene.driver.drain_events()
        for _ in range(5):
            scene.run_pass("sweep_orphans")
        assert scene.state_of(worker) is State.IDLE
        for _ in range(3):
            scene.pass_time(31)
            scene.run_pass("sweep_orphans")
        assert scene.state_of(worker) is State.LOST

    # The cluster is unreachable

    def test_no_worker_is_lost_while_the_cluster_is_unreachable_and_work_resumes_afterwards(
        self, scene: Scene, ground: PoolGround, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scene.profile(warm_target=3)
        _kept, leaves = scene.warm(2)
        held = scene.granted("acme")
        (idle,) = scene.workers(State.IDLE)
        with monkeypatch.context() as impatient, ground.unreachable():
            impatient.setattr(running, "STALE_AFTER_S", 1.0)
            eventually(lambda: scene.driver.cached().age_s > 1.0, within_s=30)
            for name in ("reconcile_warm", "sweep_orphans", "guard_disruption", "sweep_stuck"):
                assert scene.run_pass(name)["outcome"] in ("stale", "failed"), name
            # A grant of a warm worker needs no cluster.
            other = scene.granted("bolt")
            assert other.worker_id == idle.id
            scene.release(other.claim_id, "tainted")
            scene.deliver("pool.retire")
            assert scene.state_of(idle.id) is State.DRAINING
        scene.until_seen(lambda pods: held.worker_id in pods)
        eventually(lambda: scene.driver.cached().age_s < 1.0, within_s=30)
        scene.pass_time(20)
        scene.run_pass("reap")
        scene.until_state(idle.id, State.RETIRED)
        scene.run_pass("reconcile_warm")
        scene.until(lambda: len(scene.workers(State.IDLE)) == 3)
        assert held.claim_id in scene.renew(held.claim_id)["renewed"]
        assert leaves

    def test_a_spawn_that_cannot_reach_the_cluster_frees_its_slot(
        self, scene: Scene, ground: PoolGround
    ) -> None:
        scene.profile(warm_target=1)
        scene.configure(max_workers=1)
        scene.run_pass("reconcile_warm")
        (slot,) = scene.workers(State.SPAWNING)
        with ground.unreachable():
            scene.deliver("pool.spawn")
        scene.broker.sent.clear()
        assert scene.state_of(slot.id) is State.DRAINING
        scene.pass_time(20)
        scene.run_pass("reap")
        scene.until_state(slot.id, State.RETIRED)
        eventually(lambda: scene.driver.cached().age_s < 1.0, within_s=30)
        scene.run_pass("reconcile_warm")
        scene.until(lambda: len(scene.workers(State.IDLE)) == 1)

    # A restored database

    def test_a_restored_database_becomes_consistent_and_deletes_no_busy_pod(
        self, ground: PoolGround, store: Store
    ) -> None:
        """Pods newer than rows and rows newer than pods, at once."""
        with Scene(store, ground) as scene:
            scene.profile(warm_target=3)
            taken, kept = scene.warm(2)
            ended = scene.granted("acme", ttl_s=0)
            taken = kept if ended.worker_id == taken else taken
            (kept,) = scene.warm(1)
            scene.settle()
            backup = script(store)
            # After the backup: one is claimed, one claim ends with its pod, two are created, one of
            # them claimed.
            later = scene.granted("bolt")
            assert later.worker_id == taken
            scene.release(ended.claim_id)
            idle, busy = sorted(set(scene.warm(2)) - {kept})
            newest = scene.granted("cats", request_id="newest")
            while newest.worker_id not in (idle, busy):
                newest = scene.granted("cats", request_id=newest.claim_id)
            idle, busy = (idle, busy) if newest.worker_id == busy else (busy, idle)
            scene.settle()
            for worker in (taken, busy):
                ground.make_busy(scene.pod(worker))
            eventually(lambda: scene.driver.read(ended.worker_id) is None, within_s=30)
        put_back(store, backup)
        with Scene(store, ground) as scene:
            scene.profile(warm_target=3)
            scene.deps = replace(scene.deps, ids=_LaterIds(scene.deps.ids))
            for _ in range(4):
                scene.pass_time(200)
                all_passes(scene)
            # More than three if a pod was slow while the clock ran ahead; the surplus drains later.
            scene.until(lambda: len(scene.workers(State.IDLE)) >= 3)
            assert {taken, busy} <= set(scene.driver.pods)
            assert all(scene.pod(w).annotations[NOTE_DO_NOT_DISRUPT] == "true" for w in (taken, busy))
            assert scene.state_of(taken) is State.LOST
            assert scene.state_of(ended.worker_id) is State.LOST
            assert scene.renew(ended.claim_id)["gone"] == {ended.claim_id: "worker_lost"}
            assert idle not in scene.driver.pods
            assert scene.granted("dogs").worker_id not in (taken, busy, idle)
            for worker in (taken, busy):
                ground.make_unused(scene.pod(worker))
            scene.pass_time(400)
            all_passes(scene, times=3)
            scene.until(lambda: set(scene.driver.pods) == {w.id for w in scene.workers(*_PODDED)})
            eventually(lambda: set(scene.driver.companions()) == set(scene.driver.pods), within_s=30)
            scene.check()


_PODDED = (State.SPAWNING, State.IDLE, State.HOT, State.HOT_IDLE)


class _LaterIds:
    """Ids that no earlier state of the database contains."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    def worker(self) -> WorkerId:
        return WorkerId(self._ids.worker().replace("w-", "w-later-"))

    def token(self) -> str:
        return f"later-{self._ids.token()}"


def _given_up(scene: Scene) -> bool:
    """Where a program that cannot be started is retried forever, the stuck sweep ends that. No slot
    is left.
    """
    slots = {w.id for w in scene.workers(State.SPAWNING)}
    pods = {pod.name: pod for pod in scene.driver.cached().pods}
    if all(name in pods and pods[name].trouble and pods[name].phase is PodPhase.PENDING for name in slots):
        scene.pass_time(121)
        scene.run_pass("sweep_stuck")
    return not scene.workers(State.SPAWNING)


def _reconciled(scene: Scene, gone: set[str]) -> set[str]:
    """Run the pass until two placeholders run and these are gone; their names."""
    scene.run_pass("reconcile_headroom")

    def running(pods: dict[str, Pod]) -> bool:
        found = {n for n, p in pods.items() if p.role == PodRole.PLACEHOLDER}
        return len(found) == 2 and not found & gone and all(pods[n].ready for n in found)

    scene.until_seen(running)
    return {n for n, p in scene.driver.pods.items() if p.role == PodRole.PLACEHOLDER}


def _placeholders(pods: dict[str, Pod]) -> int:
    return sum(pod.role == PodRole.PLACEHOLDER for pod in pods.values())
