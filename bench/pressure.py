"""A pool at its cap: 64 clients on 50 workers, where every acquire waits for a release, compared with
the same clients on 1,000 idle workers, where none waits.

A client requests its next worker before it releases the one it has. A client that requested after
its release would find a free worker most of the time: at any moment half of 64 clients are
releasing, and 50 workers are more than 32.
"""

from __future__ import annotations

from bench.lane_load import callers
from bench.lanes import LONG_S, BenchLane, lanes
from bench.measuring import BenchReport, Effort
from bench.peers.caller import FEW_ORGS
from bench.populating import askers
from bench.turns import TurnLoad, in_turns
from pool.client import Pool

FULL = Effort(rounds=7, calls=20, warm_up=10)
QUICK = Effort(rounds=3, calls=10, warm_up=5)
TIGHT, ROOMY = 50, 1_000
LEAST = 0.5
_TIGHT, _ROOMY = f"cycle, {TIGHT} workers: each waits", f"cycle, {ROOMY:,} workers: none waits"


def run(effort: Effort) -> BenchReport:
    """Start everything, measure in turns, end everything."""
    with lanes() as ground:
        tight, roomy = ground.open("tight", idle=TIGHT), ground.open("roomy", idle=ROOMY)
        shared_out(tight)
        loads = [
            TurnLoad(name=name, lane=lane, callers=callers(ground.stack, "ahead", lane.url))
            for name, lane in ((_TIGHT, tight), (_ROOMY, roomy), (f"{_ROOMY} (again)", roomy))
        ]
        measured = in_turns(loads, effort)
    figures = (
        measured.rate(f"cycles a second: {TIGHT} workers to {ROOMY:,}", _TIGHT, _ROOMY, least=LEAST),
        measured.rate(f"{ROOMY:,} to itself (the noise)", f"{_ROOMY} (again)", _ROOMY),
    )
    return BenchReport(bench="pressure", figures=figures, measured=measured)


def shared_out(lane: BenchLane) -> None:
    """Give each of the few orgs its share of the workers, which stay with it for life."""
    with Pool(lane.url, name="bench") as pool:
        held = [pool.acquire(askers()[n % FEW_ORGS], lease_s=LONG_S, ttl_s=LONG_S) for n in range(TIGHT)]
        for worker in held:
            worker.release()
