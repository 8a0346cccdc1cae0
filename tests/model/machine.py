"""The model: every possible action, in any order, with faults, compared with the oracle
(`promised.py`) after each step. At the end the faults stop, and the pool must converge within a
bounded number of passes (`tests/support/convergence.py`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pool.core.contract import Granted, Pending, RefusedAnswer
from pool.core.errors import Refused, Transient
from pool.core.ids import ProfileName
from pool.drivers.port import PodPhase
from pool.passes import PASSES, run_once
from pool.passes.fallback import reap_if_dark
from pool.passes.reconcile_warm import refill_once
from tests.model.promised import Promised
from tests.support.convergence import KeptLocks, WillingWorkers, WorkerLife
from tests.support.failing import FIVE, FOUR, Crash, Plan, failing
from tests.support.snapshots import Kept, restore
from tests.support.world import STOP, World

ORGS = ("acme", "bolt")
LEASE_S = 15
PROFILES = ("default", "bound")

STEPS: Counter[str] = Counter()
pick = st.integers(min_value=0, max_value=10_000)


class PoolMachine(RuleBasedStateMachine):
    """One pool, two orgs, two profiles: one without activation and one with it."""

    world: World
    empty: Kept

    def __init__(self) -> None:
        super().__init__()
        restore(self.world, self.empty)
        self.world.deps = replace(self.world.deps, locks=KeptLocks(), worker_api=WillingWorkers())
        self.world.configure(surplus_ttl_s=15, max_workers=0)
        self.world.profile(warm_target=1, activation_path="")
        self.world.profile("bound", warm_target=1, activation_path="/configure")
        self.life = WorkerLife(self.world)
        self.promised = Promised()
        self.world.canary = self._canary  # type: ignore[method-assign]
        self.plan = Plan()
        self.caps = dict.fromkeys(ORGS, 0)
        self.requests = 0

    @initialize()
    def begin(self) -> None:
        for org in ORGS:
            self.world.org(org)
        self.world.run_pass("reconcile_warm")
        self.life.settle()
        self._canary()

    # Actions of callers.

    @rule(org=st.sampled_from(ORGS), profile=st.sampled_from(PROFILES), wait_s=st.sampled_from([0, 0, 20]))
    def acquire(self, org: str, profile: str, wait_s: int) -> None:
        self.requests += 1
        self._ask(org, f"r{self.requests}", (profile, wait_s))

    @rule(which=pick)
    def acquire_again(self, which: int) -> None:
        """Repeat an old request, like a retry or a redelivery."""
        if self.promised.asked:
            org, request_id = sorted(self.promised.asked)[which % len(self.promised.asked)]
            self._ask(org, request_id, self.promised.asked[org, request_id])

    @rule(which=pick)
    def renew(self, which: int) -> None:
        """Two holds, also old ones."""
        ids = list(self.promised.holds)  # in the order of arrival, because the ids are random
        some = {ids[which % len(ids)], ids[which // 7 % len(ids)]} if ids else set()
        answer = self._do(lambda: self.world.renew(*sorted(some)))
        for claim in some if isinstance(answer, dict) else ():
            hold = self.promised.holds[claim]
            if claim in answer["renewed"]:
                assert not hold.over, f"{claim} had ended and was renewed"
                hold.lease_until = max(hold.lease_until, _instant(answer["renewed"][claim]))

    @rule(which=pick, condition=st.sampled_from(["clean", "clean", "tainted"]))
    def release(self, which: int, condition: str) -> None:
        """Any hold, also one that ended long ago."""
        ids = list(self.promised.holds)  # in the order of arrival, because the ids are random
        if ids:
            hold = self.promised.holds[ids[which % len(ids)]]
            was_over, hold.released = hold.over, True
            outcome = self._do(lambda: self.world.release(hold.claim_id, condition))
            assert not (was_over and outcome == "released"), f"{hold.claim_id} was released after its end"

    @rule(which=pick)
    def cancel(self, which: int) -> None:
        if self.promised.asked:
            key = sorted(self.promised.asked)[which % len(self.promised.asked)]
            outcome = self._do(lambda: self.world.cancel(*key))
            if outcome == "cancelled":
                assert key not in self.promised.claim_of, f"{key} was cancelled after it had been granted"

    # Actions of the pool.

    @rule(name=st.sampled_from(sorted(PASSES)))
    def tick(self, name: str) -> None:
        self._do(lambda: run_once(self.world.deps, PASSES[name]))

    @rule()
    def reap(self) -> None:
        """Run a pass as beat does, with its canary, which passes."""
        self._do(lambda: run_once(self.world.deps, PASSES["reap"]))
        self._canary()

    @rule()
    def fallback(self) -> None:
        self._do(lambda: reap_if_dark(self.world.deps, STOP))

    @rule(which=pick, times=st.sampled_from([1, 1, 2]), late=st.booleans())
    def deliver(self, which: int, times: int, late: bool) -> None:
        """Deliver a message, possibly twice, possibly out of order."""
        sent = self.world.broker.sent
        if sent:
            task, arguments = sent.pop(which % len(sent) if late else 0)
            for _n in range(times):
                self._do(lambda: self.world.run_task(task, arguments))

    @rule()
    def refill(self) -> None:
        nudged, self.world.broker.nudged = self.world.broker.nudged, set()
        for profile in sorted(nudged):
            self._do(lambda p=profile: refill_once(self.world.deps, ProfileName(p)))

    @rule()
    def pods_start_and_are_seen(self) -> None:
        self.life.start_pods()
        self._do(self.life.observe)

    @rule()
    def everything_is_carried_out(self) -> None:
        self._do(self.life.settle_quietly)

    # Events.

    @rule(which=pick, how=st.sampled_from(["ends", "vanishes", "vanishes unseen"]))
    def a_pod_dies(self, which: int, how: str) -> None:
        names = sorted(self.world.driver.pods)
        if not names:
            return
        name = names[which % len(names)]
        self.promised.dead_pods.add(name)
        if how == "ends":
            self.world.driver.change(name, phase=PodPhase.ENDED, ready=False, exit_code=137)
        else:
            self.world.driver.take_away(name)
            if how == "vanishes unseen":
                self.world.driver.drain_events()

    @rule()
    def a_node_vanishes(self) -> None:
        """With every second pod, without a watch event."""
        for name in sorted(self.world.driver.pods)[::2]:
            self.promised.dead_pods.add(name)
            self.world.driver.take_away(name)
        self.world.driver.drain_events()

    @rule(seconds=st.sampled_from([2, 6, 6, 9, 20, 70, 130, 320]))
    def time_passes(self, seconds: int) -> None:
        self.world.pass_time(seconds)
        self.world.driver.grow_older(seconds)

    @rule()
    def redis_is_emptied(self) -> None:
        self.world.broker.sent.clear()
        self.world.broker.nudged.clear()
        self.world.deps.locks.expire()  # type: ignore[attr-defined]

    @rule()
    def a_replica_restarts(self) -> None:
        self.world.driver.tell_again()
        self.world.deps.locks.expire()  # type: ignore[attr-defined]

    @rule(org=st.sampled_from(ORGS), cap=st.sampled_from([0, 1, 2]))
    def a_cap_changes(self, org: str, cap: int) -> None:
        self.world.org(org, cap=cap)
        self.caps[org] = cap
        self.promised.cap_changed(org, cap, self._live()[org])

    @rule(profile=st.sampled_from(PROFILES), warm=st.sampled_from([0, 1, 2]))
    def a_target_changes(self, profile: str, warm: int) -> None:
        self.world.profile(profile, warm_target=warm)

    @rule(cap=st.sampled_from([0, 2, 4]))
    def the_pools_cap_changes(self, cap: int) -> None:
        self.world.configure(max_workers=cap)

    @rule(at=st.integers(0, 12), fault=st.sampled_from(FIVE))
    def the_next_step_will_fail(self, at: int, fault: Any) -> None:
        self.plan = Plan(faults={at: fault if fault in FOUR else FOUR[0]})

    # Invariants after each step.

    @invariant()
    def promises_are_kept(self) -> None:
        STEPS["steps"] += 1
        self._hear_replies()
        self.world.check()
        claims = {c.id: c for c in self.world.rows("claims")}
        for hold in [h for h in self.promised.holds.values() if not h.over]:
            row = claims[hold.claim_id]
            if row.ended_at is not None:
                self.promised.ended(hold.claim_id, row.ended_why, row.ended_at)
            elif hold.worker_id not in self.promised.dead_pods:
                pod = self.world.driver.pods.get(hold.worker_id)
                assert pod is not None, f"the pod of live {hold.claim_id} was deleted"
        for org, live in self._live().items():
            self.promised.counted(org, live, self.caps.get(org, 0))
        for pod in self.world.driver.pods.values():
            named = pod.annotations.get("warmpool.dev/org")
            if named is not None:
                first = self.promised.org_of.setdefault(pod.name, named)
                assert first == named, f"pod {pod.name} carried the stamps of {first} and {named}"

    def teardown(self) -> None:
        """The faults stop; live holders continue to renew; the rest must converge."""
        STEPS["examples"] += 1
        self.world.configure(max_workers=0)
        self.world.deps.locks.expire()  # type: ignore[attr-defined]
        self._hear_replies()
        claims = {c.id: c for c in self.world.rows("claims")}
        for hold in self.promised.holds.values():
            live = claims[hold.claim_id].ended_at is None
            if live and not hold.released and hold.worker_id not in self.promised.dead_pods:
                self.life.take_over(hold.claim_id)
        for org in ORGS:
            self.world.org(org, cap=0)
        self.life.converge()

    # Implementation.

    def _ask(self, org: str, request_id: str, given: tuple[Any, ...]) -> None:
        self.promised.asked[org, request_id] = given
        profile, wait_s = given
        before = self._eligible_waiters(profile)
        answer = self._do(
            lambda: self.world.acquire(
                org,
                task_id=f"{org}/{request_id}",
                request_id=request_id,
                profile=profile,
                wait_s=wait_s,
                lease_s=LEASE_S,
            )
        )
        new = (org, request_id) not in self.promised.claim_of
        if isinstance(answer, Granted):
            self.promised.granted((org, request_id), answer.as_dict(), LEASE_S)
        elif isinstance(answer, RefusedAnswer):
            self.promised.refused((org, request_id), answer.as_dict())
        if new and isinstance(answer, Granted) and answer.source == "warm":
            passed = (before & self._eligible_waiters(profile)) - {(org, request_id)}
            assert not passed, f"{org} {request_id} was served before {passed}"
        assert answer is None or isinstance(answer, Granted | RefusedAnswer | Pending)

    def _do(self, step: Any) -> Any:
        """Run one step with the plan; None if a crash or an outage leaves the result open."""
        sound, plan, self.plan = self.world.deps, self.plan, Plan()
        if plan.faults:
            self.world.deps = failing(sound, plan)
        try:
            with contextlib.suppress(Crash, Transient, Refused):
                return step()
            return None
        finally:
            self.world.deps = sound

    def _canary(self) -> None:
        """Record the delivery for the oracle."""
        before = self.world.store.now()
        World.canary(self.world)
        self.promised.canaries.append((before, self.world.store.now()))

    def _hear_replies(self) -> None:
        replies, self.world.broker.replies = self.world.broker.replies, []
        for to, answer in replies:
            org, _, request_id = to.task_id.partition("/")
            if answer["outcome"] == "granted":
                self.promised.granted((org, request_id), answer, LEASE_S)
            else:
                self.promised.refused((org, request_id), answer)

    def _live(self) -> Counter[str]:
        return Counter(c.org for c in self.world.rows("claims") if c.ended_at is None)

    def _eligible_waiters(self, profile: str) -> set[tuple[str, str]]:
        now, live = self.world.store.now(), self._live()
        return {
            (r.org, r.request_id)
            for r in self.world.rows("requests")
            if r.state == "waiting" and r.profile == profile and r.wait_s > 0 and r.deadline_at > now
            and not (self.caps.get(r.org) and live[r.org] >= self.caps[r.org])
        }  # fmt: skip


def _instant(text: str) -> Any:
    from datetime import datetime

    return datetime.fromisoformat(text)
