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


LONGEST_TICK_S = 60.0


def tick_s(name: str) -> float:
    """How often beat sends a tick. A pass that is due seldom is asked often: beat remembers nothing when it is restarted, the table does."""
    return min(PERIODS_S[name], LONGEST_TICK_S)


def not_within_s(name: str) -> float:
    """A tick is skipped if the last attempt is younger than this: half a period, or for seldom passes nearly the whole of it."""
    return max(PERIODS_S[name] / 2, PERIODS_S[name] - LONGEST_TICK_S)


def lock_ttl_s(name: str) -> float:
    """A lock outlives one and a half periods of its pass, and never 15 s: what holds it and dies is dark for no longer."""
    return min(15.0, 1.5 * PERIODS_S[name])


def tick_expires_s(name: str) -> float:
    """A tick that nobody took by then is not worth running. Not less than 10 s: a worker may be starting."""
    return max(10.0, 3 * tick_s(name))
