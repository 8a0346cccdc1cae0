"""The passes: bounded, singleton, scheduled by beat. One file each; `running` is what they have in common."""

from pool.passes.reap import REAP
from pool.passes.reconcile_warm import RECONCILE_WARM, refill_once
from pool.passes.running import Pass, Run, run_once

PASSES: dict[str, Pass] = {p.name: p for p in (RECONCILE_WARM, REAP)}

__all__ = ["PASSES", "Pass", "Run", "refill_once", "run_once"]
