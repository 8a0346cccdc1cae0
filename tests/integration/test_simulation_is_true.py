"""The simulation compared with the pool: the same demand through the real verbs, passes and table,
in virtual time, gives the same numbers of hits, waits, refusals by reason, sources and pods.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from pool.core.contract import Granted, Pending, RefusedAnswer
from pool.core.settings import OrgDefaults, PoolSettings, Profile, Settings
from pool.lifecycle import claiming
from pool.ops.simulating import Assumptions, Trace, simulate
from pool.ops.simulating.engine import NUDGES_WITHIN_S
from pool.store import Store
from tests.support.world import World


class Replay:
    """A real pool whose clock is set to each event's time. Events are seconds apart, so that the
    speed of the machine does not matter.
    """

    def __init__(self, store: Store, settings: Settings, given: Assumptions) -> None:
        self.world = World(store, settings)
        self.given = given
        self.answers: dict[int, str] = {}
        self.began = store.now()
        self._pending: dict[str, tuple[int, float]] = {}
        self._events: list[tuple[float, int, Callable[[float], object]]] = []
        self._order = itertools.count()
        self._nudged = False

    def run(self, trace: Trace) -> None:
        self.world.warm(self.world.deps.settings.profiles["default"].warm_target)
        self._later(0.0, self._reconcile)
        self._later(2.5, self._reap)
        rows = zip(trace.at_s, trace.org, trace.hold_s, strict=True)
        for number, (at, org, hold_s) in enumerate(rows):
            self._until(at)
            self._at(at, partial(self._ask, number=number, org=org, hold_s=hold_s))
        self._until(trace.span_s + self.given.wait_s)

    def _later(self, at: float, what: Callable[[float], object]) -> None:
        heapq.heappush(self._events, (at, next(self._order), what))

    def _until(self, at: float) -> None:
        while self._events and self._events[0][0] <= at:
            then, _, what = heapq.heappop(self._events)
            self._at(then, what)

    def _at(self, at: float, what: Callable[[float], object]) -> None:
        wanted = self.began + timedelta(seconds=at)
        # Never back: requests of one moment keep their order.
        self.world.pass_time(max(0.0, (wanted - self.world.store.now()).total_seconds()))
        what(at)
        self._follow(at)

    def _follow(self, at: float) -> None:
        """Carry out messages: spawns and deletions take their time, everything else none."""
        for task, arguments in list(self.world.broker.sent):
            if task == "pool.spawn":
                self._later(at + self.given.spawn_s, partial(self._ready, arguments["worker_id"]))
            elif task == "pool.retire":
                self._later(at + self.given.delete_s, partial(self._deliver, task, arguments))
        self.world.broker.sent = [
            m for m in self.world.broker.sent if m[0] not in {"pool.spawn", "pool.retire"}
        ]
        self.world.deliver()
        for task_id, (number, hold_s) in list(self._pending.items()):
            for answer in self.world.broker.answers_for(task_id):
                del self._pending[task_id]
                self._note(
                    at, number, hold_s, answer.get("source") or answer["reason"], answer.get("claim_id")
                )
        if self.world.broker.nudged and not self._nudged:
            self._nudged = True
            self._later(at + NUDGES_WITHIN_S, self._refill)
        self.world.broker.nudged.clear()

    def _deliver(self, task: str, arguments: dict[str, Any], _: float) -> None:
        self.world.broker.send(task, **arguments)
        self.world.deliver(task)
        self.world.observe()

    def _ready(self, worker_id: str, at: float) -> None:
        self._deliver("pool.spawn", {"worker_id": worker_id}, at)
        self.world.driver.become_ready(worker_id)
        self.world.observe()

    def _refill(self, _: float) -> None:
        self._nudged = False
        self.world.refill()

    def _reconcile(self, at: float) -> None:
        self.world.run_pass("reconcile_warm")
        self._later(at + 5, self._reconcile)

    def _reap(self, at: float) -> None:
        self.world.run_pass("reap")
        self.world.broker.sent = [m for m in self.world.broker.sent if m[0] != "pool.canary"]
        self._later(at + 5, self._reap)

    def _ask(self, at: float, number: int, org: str, hold_s: float) -> None:
        task_id = f"ask-{number}"
        answer = self.world.acquire(org, task_id=task_id, wait_s=int(self.given.wait_s), lease_s=3600)
        if isinstance(answer, Pending):
            self._pending[task_id] = (number, hold_s)
            pk = answer.request_pk
            # Nothing is granted in between, and a slow machine may have set the deadline slightly
            # later.
            self._later(at + self.given.wait_s + 2.0, lambda _: claiming.time_out(self.world.deps, pk))
        elif isinstance(answer, Granted):
            self._note(at, number, hold_s, f"hit {answer.source}", answer.claim_id)
        elif isinstance(answer, RefusedAnswer):
            self._note(at, number, hold_s, str(answer.reason), None)

    def _note(self, at: float, number: int, hold_s: float, what: str, claim_id: str | None) -> None:
        self.answers[number] = what
        if claim_id is not None:
            self._later(at + hold_s, lambda _: self.world.release(claim_id))


def a_trace() -> Trace:
    """On a grid of five seconds, one second after the reconcile: bursts, a quiet period, an org at
    its cap, one that gets its parked worker again.
    """
    bursts = {
        0: "aab", 1: "c", 2: "abcc", 4: "a", 6: "bbbb", 8: "ac", 9: "a", 10: "cccab", 13: "b", 14: "aab",
        20: "abc", 21: "c", 22: "b",
    }  # fmt: skip
    holds = itertools.cycle((10.0, 25.0, 5.0, 15.0))
    return Trace.of(
        (5.0 * n + 1.0, org, "default", next(holds)) for n, orgs in bursts.items() for org in orgs
    )


CASES: dict[str, tuple[Assumptions, dict[str, Any]]] = {
    "no request waits": (Assumptions(wait_s=0, spawn_s=2.0, delete_s=0.5), {}),
    "all wait": (Assumptions(wait_s=6, spawn_s=2.0, delete_s=0.5), {}),
    "a cap": (Assumptions(wait_s=6, spawn_s=2.0, delete_s=0.5), {"max_workers": 4}),
    "a cap and no patience": (Assumptions(wait_s=0, spawn_s=2.0, delete_s=0.5), {"max_workers": 4}),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_the_pool_behaves_as_the_simulation_predicts(case: str, store: Store) -> None:
    given, pool = CASES[case]
    profile = Profile(warm_target=2, hot_idle_ttl_s=15, cpu_millicores=1000, memory_mib=1024)
    settings = Settings(
        pool=PoolSettings(surplus_ttl_s=20, **pool),
        profiles={"default": profile},
        orgs={"c": OrgDefaults(cap=2)},
    )
    trace = a_trace()
    real = Replay(store, settings, given)
    real.run(trace)
    foretold = simulate(trace, settings, given)

    hits = [a for a in real.answers.values() if a.startswith("hit ")]
    refused = [a for a in real.answers.values() if not a.startswith("hit ") and a not in {"warm", "hot_idle"}]
    assert len(real.answers) == len(trace)
    assert (len(hits), len(refused)) == (foretold.hits, sum(foretold.refused.values()))
    assert {r: refused.count(r) for r in set(refused)} == foretold.refused
    granted = [a.removeprefix("hit ") for a in real.answers.values() if a not in refused]
    assert {s: granted.count(s) for s in set(granted)} == foretold.sources
    assert len(real.world.rows("workers")) == foretold.pods
    real.world.check()
