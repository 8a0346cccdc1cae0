"""Whether cost grows with the pool: the verbs and every pass at 1,000, 10,000 and 100,000 live workers,
each with a history of proportional size (at 100,000 about 1.3 million rows), on a real Postgres and
with as many pods in the driver's own cache.

The pool is quiet: a pass usually finds nothing to do, and its cost then must fit its period. The
cost of one step of work is measured by `claim-cost` and by the verbs here; a step reads the same
row by its key at any size.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence

from bench.fleets import GrownPool, PassCost, askers, grown, opened
from bench.measuring import BenchReport, Effort, Figure, Measured, count, interleaved, percentile
from pool.core.contract import Acquire, Granted, Release, Renew
from pool.core.ids import ClaimId, ProfileName, new_task_id
from pool.core.periods import PERIODS_S
from pool.core.records import ReplyTo
from pool.core.states import Condition
from pool.lifecycle import claiming
from pool.passes import PASSES
from tests.support.postgres_server import PostgresServer

FEW, SOME, MANY = 1_000, 10_000, 100_000
SIZES = (FEW, SOME, MANY)
FULL = Effort(rounds=8, calls=20, warm_up=30)
QUICK = Effort(rounds=4, calls=10, warm_up=20)
RENEWED_AT_ONCE = 100
# A pass may take half of its period; the guard at 10,000 a tenth of a second of CPU, and no call at
# all.
SHARE, GUARD_CPU_S = 0.5, 0.1
# Additional memory of a run: less than a list of all rows.
MEMORY_MIB = 64.0
Call = Callable[[GrownPool], None]


class Verb:
    """One verb at one size."""

    def __init__(self, pool: GrownPool, name: str) -> None:
        self._pool = pool
        self._call: Call = {"acquire": _acquire, "release": _release, "renew": _renew}[name]
        self._name = name

    def once(self) -> None:
        self._call(self._pool)

    def after(self) -> None:
        """The same number of claims is held before each call."""
        taken = _TAKEN[id(self._pool)]
        if self._name == "acquire":
            _release(self._pool)
        elif self._name == "release":
            _acquire(self._pool)
        while len(taken) < 1:
            _acquire(self._pool)
        self._pool.broker.sent.clear()

    def between(self) -> None:
        """The org claims its parked worker again: the pool does not change."""


_TAKEN: dict[int, list[ClaimId]] = {}
_ORGS = itertools.cycle(askers())


def _acquire(pool: GrownPool) -> None:
    task = new_task_id()
    asked = Acquire(
        org=next(_ORGS), profile=ProfileName("default"), request_id=task, lease_s=3600, ttl_s=600, wait_s=0
    )
    answer = claiming.acquire(pool.deps, asked, ReplyTo(task_id=task))
    if not isinstance(answer, Granted):
        raise TypeError(f"not what was to be measured: {answer}")
    _TAKEN[id(pool)].append(ClaimId(answer.claim_id))


def _release(pool: GrownPool) -> None:
    asked = Release(claim_id=_TAKEN[id(pool)].pop(), condition=Condition.CLEAN)
    if claiming.release(pool.deps, asked)["outcome"] != "released":
        raise RuntimeError("not what was to be measured: it was not released")


def _renew(pool: GrownPool) -> None:
    found = claiming.renew(pool.deps, Renew(claim_ids=tuple(_TAKEN[id(pool)][:RENEWED_AT_ONCE])))
    if found["gone"]:
        raise RuntimeError(f"not what was to be measured: {found}")


def run(effort: Effort) -> BenchReport:
    """Populate, measure the verbs in turn, then every pass in turn."""
    server = PostgresServer(fsync=True).start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.destroy)
        pools = {size: opened(grown(server, f"grown_{size}", size)) for size in SIZES}
        for pool in pools.values():
            stack.callback(pool.store.close)
            _TAKEN[id(pool)] = []
            for _ in range(RENEWED_AT_ONCE + 1):
                _acquire(pool)
        verbs = interleaved(
            {
                f"{verb}, {size:,}": Verb(pool, verb)
                for verb in ("acquire", "release", "renew")
                for size, pool in pools.items()
            },
            effort,
        )
        for pool in pools.values():
            # Claims made here cause refills and stamps; the passes must find no work.
            pool.settle_down()
        costs = {
            (name, size): [pool.once(name) for _ in range(effort.rounds + 1)][1:]
            for size, pool in pools.items()
            for name in PASSES
        }
    passes = {f"{name}, {size:,}": [[c.wall_s] for c in found] for (name, size), found in costs.items()}
    measured = Measured(rounds={**verbs.rounds, **passes})
    return BenchReport(bench="growth", figures=(*_of_verbs(verbs), *_of_passes(costs)), measured=measured)


def _of_verbs(verbs: Measured) -> Sequence[Figure]:
    return [
        verbs.ratio(f"{verb}: {MANY:,} to {FEW:,} workers", f"{verb}, {MANY:,}", f"{verb}, {FEW:,}", most=1.2)
        for verb in ("acquire", "release", "renew")
    ]


def _of_passes(costs: Mapping[tuple[str, int], Sequence[PassCost]]) -> Sequence[Figure]:
    figures = [figure for name in PASSES for figure in _against_period(name, costs[name, MANY])]
    per_worker = [
        _per_worker(name, costs) for name in ("reconcile_warm", "guard_disruption", "sweep_orphans")
    ]
    guard = costs["guard_disruption", SOME]
    return [
        *figures,
        *per_worker,
        count(
            f"guard at {SOME:,}: CPU to {GUARD_CPU_S:g} s",
            percentile([c.cpu_s for c in guard], 50),
            GUARD_CPU_S,
            most=1.0,
        ),
        count(f"guard at {SOME:,}: calls to the API server", max(c.calls for c in guard), 1, most=0),
        count(
            f"memory of any pass at {MANY:,} to {MEMORY_MIB:g} MiB",
            max(c.peak_mib for (_, size), found in costs.items() for c in found if size == MANY),
            MEMORY_MIB,
            most=1.0,
        ),
    ]


def _per_worker(name: str, costs: Mapping[tuple[str, int], Sequence[PassCost]]) -> Figure:
    """CPU time per worker, large to small: passes that compare all rows with all pods must cost the
    same for each.
    """
    large, small = (percentile([c.cpu_s / size for c in costs[name, size]], 50) for size in (MANY, SOME))
    return count(f"{name}: CPU a worker, {MANY:,} to {SOME:,}", large, small, most=1.5)


def _against_period(name: str, found: Sequence[PassCost]) -> Sequence[Figure]:
    """The goal applies to the CPU time of a run, in this process and in the database; the wall time
    depends on other load and is only shown.
    """
    period_s = PERIODS_S[name]
    works, takes = ([c.cpu_s + c.server_cpu_s for c in found], [c.wall_s for c in found])
    return [
        _spread(f"{name} at {MANY:,}: work to its period", [s / period_s for s in works], most=SHARE),
        _spread(f"{name} at {MANY:,}: time to its period", [s / period_s for s in takes]),
    ]


def _spread(name: str, ratios: Sequence[float], *, most: float | None = None) -> Figure:
    return Figure(name=name, ratio=percentile(ratios, 50), lowest=min(ratios), highest=max(ratios), most=most)
