"""Whether waiters slow an acquire: with 10,000 waiters of an org at its own cap, so that none of
them can be served, compared with 10 of them. Once they wait for the same profile, once for another
one.
"""

from __future__ import annotations

from bench.hand_over import LoneAcquire
from bench.lanes import LONG_S, BenchLane, Lanes, lanes
from bench.measuring import BenchReport, Effort, interleaved
from bench.waiters import Waiters
from pool.client import Pool

FULL = Effort(rounds=8, calls=40, warm_up=40)
QUICK = Effort(rounds=4, calls=20, warm_up=20)
FEW, MANY, IDLE = 10, 10_000, 1_000
MOST = 1.2
CROWD, SAME, OTHER = "crowd", "default", "other"
_BESIDE = (
    (f"acquire, {FEW} waiters", FEW, SAME),
    (f"acquire, {MANY:,} waiters", MANY, SAME),
    (f"acquire, {FEW} of another profile", FEW, OTHER),
    (f"acquire, {MANY:,} of another profile", MANY, OTHER),
    (f"acquire, {FEW} of another profile (again)", FEW, OTHER),
)
_SETTINGS = {"profiles": {OTHER: {"warm_target": 0}}, "orgs": {CROWD: {"cap": 1}}}


def run(effort: Effort) -> BenchReport:
    """Start everything, let them wait, measure, end everything."""
    with lanes() as ground:
        subjects = {
            name: _acquire(ground, f"lane_{number}", waiters, profile)
            for number, (name, waiters, profile) in enumerate(_BESIDE)
        }
        measured = interleaved(subjects, effort)
    few, many, few_other, many_other, again = subjects
    figures = (
        measured.ratio(f"acquire: {MANY:,} waiters to {FEW}", many, few, most=MOST),
        measured.ratio(
            f"acquire: {MANY:,} waiters of another profile to {FEW}", many_other, few_other, most=MOST
        ),
        measured.ratio(f"acquire: {FEW} waiters of its profile to {FEW} of another", few, few_other),
        measured.ratio(f"{FEW} of another profile to itself (the noise)", again, few_other),
    )
    return BenchReport(bench="waiting", figures=figures, measured=measured)


def _acquire(ground: Lanes, name: str, waiters: int, profile: str) -> LoneAcquire:
    lane = ground.open(name, idle=IDLE, settings=_SETTINGS)
    _at_cap(ground, lane)
    lane.crowd(CROWD, waiters, profile=profile)
    lane.put_right()
    return LoneAcquire(lane, ground.stack.enter_context(Waiters(lane.url)))


def _at_cap(ground: Lanes, lane: BenchLane) -> None:
    """The org holds the one worker that its cap allows."""
    ground.stack.enter_context(Pool(lane.url, name="crowd")).acquire(CROWD, lease_s=LONG_S)
