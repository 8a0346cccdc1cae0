"""The passes: bounded, singleton, scheduled by beat.

One file each; `running` has what all of them use.
"""

from pool.passes.collect_garbage import COLLECT_GARBAGE
from pool.passes.guard_disruption import GUARD_DISRUPTION
from pool.passes.reap import REAP
from pool.passes.reconcile_headroom import RECONCILE_HEADROOM
from pool.passes.reconcile_warm import RECONCILE_WARM, refill_once
from pool.passes.running import Pass, Run, run_once
from pool.passes.sweep_orphans import SWEEP_ORPHANS
from pool.passes.sweep_stuck import SWEEP_STUCK

PASSES: dict[str, Pass] = {
    p.name: p
    for p in (
        RECONCILE_WARM,
        REAP,
        GUARD_DISRUPTION,
        SWEEP_STUCK,
        SWEEP_ORPHANS,
        RECONCILE_HEADROOM,
        COLLECT_GARBAGE,
    )
}

__all__ = ["PASSES", "Pass", "Run", "refill_once", "run_once"]
