"""Every crash point of a script. Run it once to count its calls, then once per call and fault;
after each run the pool works without faults until it has converged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pool.core.errors import Refused, Transient
from pool.passes.running import Interrupted
from pool.store import Store
from tests.support.convergence import KeptLocks, WillingWorkers, WorkerLife
from tests.support.failing import CASES, Crash, Fault, Plan, failing
from tests.support.scripts import Script
from tests.support.snapshots import keep, restore
from tests.support.world import World


@dataclass
class Tried:
    """The result of one script."""

    script: str
    calls: list[str]
    cases: int = 0
    most_rounds: int = 0
    longest_s: int = 0
    failures: list[str] = field(default_factory=list)

    def row(self) -> str:
        return f"{self.script:<42} {len(self.calls):>5} {self.cases:>6} {self.most_rounds:>7} {self.longest_s:>6}"


HEADING = f"{'script':<42} {'calls':>5} {'cases':>6} {'rounds':>7} {'s':>6}"
Begin = Callable[[], WorkerLife]


def a_life(store: Store) -> WorkerLife:
    """Create a world for one script."""
    world = World(store)
    world.deps = replace(world.deps, locks=KeptLocks(), worker_api=WillingWorkers())
    world.configure(surplus_ttl_s=15)  # a burst shrinks within a few rounds
    return WorkerLife(world)


def beginning(script: Script, store: Store) -> Begin:
    """The script's start, restored before each run."""
    life = a_life(store)
    script.prepare(life)
    kept, deps, refusals = keep(life.world), life.world.deps, life.world.deps.worker_api.refusals  # type: ignore[attr-defined]
    holders, callers = dict(life.holders), dict(life.callers)

    def begin() -> WorkerLife:
        restore(life.world, kept)
        life.world.deps = replace(deps, locks=KeptLocks(), worker_api=WillingWorkers(refusals=refusals))
        return WorkerLife(life.world, dict(holders), dict(callers))

    return begin


def crash_points(script: Script, begin: Begin, *, every: int = 1) -> Tried:
    """Return all crash points, or every n-th, with a different offset for each script."""
    tried = Tried(script=script.name, calls=_run(script, begin(), Plan()))
    for number, fault in list(cases(tried.calls))[len(script.name) % every :: every]:
        life, plan = begin(), Plan(faults={number: fault})
        tried.cases += 1
        try:
            _run(script, life, plan)
            life.world.check()
            rounds, seconds = life.converge()
            _acknowledged(life)
        except AssertionError as exc:
            tried.failures.append(f"{script.name}, call {number} ({tried.calls[number]}) {fault}: {exc}")
            continue
        tried.most_rounds, tried.longest_s = max(tried.most_rounds, rounds), max(tried.longest_s, seconds)
    return tried


def cases(calls: list[str]) -> Iterator[tuple[int, Fault]]:
    """Return every call with every way in which it can fail."""
    for number, name in enumerate(calls):
        for fault in CASES[name]:
            yield number, fault


def _run(script: Script, life: WorkerLife, plan: Plan) -> list[str]:
    """Run the script with this plan; then faults are off and the locks of crashed runs have
    expired.
    """
    sound = life.world.deps
    life.world.deps = failing(sound, plan)
    # The caller or Celery sees the failure; the verb is over.
    with contextlib.suppress(Crash, Transient, Refused, Interrupted):
        script.act(life)
    # The script may have changed the settings, never the ports.
    now = life.world.deps
    life.world.deps = replace(sound, settings=now.settings)
    life.world.deps.locks.expire()  # type: ignore[attr-defined]
    return plan.calls


def _acknowledged(life: WorkerLife) -> None:
    """A released claim, once acknowledged, must not wait for a lease."""
    ended = {c.id: c.ended_why for c in life.world.rows("claims")}
    for claim in life.released:
        assert ended.get(claim, "released") not in {"expired", None}, f"the release of {claim} was forgotten"
