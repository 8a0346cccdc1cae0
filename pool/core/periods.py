"""The period of each pass, in seconds, and the times that follow from it."""

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
# The lane counts as closed if no canary was answered for this long. Callers may have been unable to
# renew for a shorter time without any sign of it.
UNSEEN_GAP_S = 2 * PERIODS_S["reap"]


def tick_s(name: str) -> float:
    """Return the interval at which beat sends ticks: the period, but at most `LONGEST_TICK_S`.

    Beat forgets its schedule at a restart, so a pass with a long period gets more ticks than it needs. The
    table knows when it is due.
    """
    return min(PERIODS_S[name], LONGEST_TICK_S)


def not_within_s(name: str) -> float:
    """Return the age of the last attempt below which a tick is skipped: half a period, or more for
    long periods.
    """
    return max(PERIODS_S[name] / 2, PERIODS_S[name] - LONGEST_TICK_S)


def lock_ttl_s(name: str) -> float:
    """Return the TTL of a pass's lock: 1.5 periods, at most 15 s. A dead holder blocks the pass for
    no longer.
    """
    return min(15.0, 1.5 * PERIODS_S[name])


def tick_expires_s(name: str) -> float:
    """Return the age at which a tick expires: three ticks, but at least 10 s because a worker may
    be starting.
    """
    return max(10.0, 3 * tick_s(name))
