"""Refusals: 64 clients that do not wait, in a pool whose 50 workers are its cap and are all held,
compared with 64 clients whose acquires are granted.
"""

from __future__ import annotations

from bench.lane_load import callers
from bench.lanes import LONG_S, lanes
from bench.measuring import BenchReport, Effort
from bench.populating import askers
from bench.turns import TurnLoad, in_turns
from pool.client import Pool

FULL = Effort(rounds=7, calls=20, warm_up=5)
QUICK = Effort(rounds=3, calls=10, warm_up=3)
TIGHT, IDLE = 50, 2_000
LEAST = 0.7
_REFUSED, _GRANTED = "refused at the cap", "granted"


def run(effort: Effort) -> BenchReport:
    """Start everything, measure in turns, end everything."""
    with lanes() as ground:
        full = ground.open("full", idle=TIGHT, settings={"pool": {"max_workers": TIGHT}})
        roomy = ground.open("roomy", idle=IDLE)
        holder = ground.stack.enter_context(Pool(full.url, name="holder"))
        held = [holder.acquire(askers()[0], lease_s=LONG_S) for _ in range(TIGHT)]
        again = callers(ground.stack, "lane", roomy.url)
        granted = callers(ground.stack, "lane", roomy.url)
        loads = [
            TurnLoad(name=_REFUSED, lane=full, callers=callers(ground.stack, "refused", full.url)),
            TurnLoad(name=_GRANTED, lane=roomy, callers=granted, workers_a_call=1),
            TurnLoad(name=f"{_GRANTED} (again)", lane=roomy, callers=again, workers_a_call=1),
        ]
        measured = in_turns(loads, effort)
        if not all(holder.holds(worker.claim_id) for worker in held):
            raise RuntimeError("not what was to be measured: a worker was free meanwhile")
    figures = (
        measured.rate("a second: refusals to grants", _REFUSED, _GRANTED, least=LEAST),
        measured.rate("grants to themselves (the noise)", f"{_GRANTED} (again)", _GRANTED),
    )
    return BenchReport(bench="refusals", figures=figures, measured=measured)
