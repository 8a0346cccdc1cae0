"""How often each pass runs, in seconds."""

from __future__ import annotations

PERIODS_S: dict[str, float] = {
    "reconcile_warm": 5.0,
    "reap": 5.0,
    "guard_disruption": 2.0,
    "sweep_stuck": 15.0,
    "sweep_orphans": 30.0,
    "reconcile_headroom": 15.0,
    "collect_garbage": 3600.0,
}


def lock_ttl_s(name: str) -> float:
    """A lock outlives one and a half periods of its pass, and never 15 s: what holds it and dies is dark for no longer."""
    return min(15.0, 1.5 * PERIODS_S[name])


def tick_expires_s(name: str) -> float:
    """A tick that nobody took by then is not worth running. Not less than 10 s: clocks differ."""
    return max(10.0, 3 * PERIODS_S[name])
