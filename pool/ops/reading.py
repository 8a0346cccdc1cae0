"""Metric samples of the database, one `Reading` each, from one snapshot. States, profiles and
passes with a count of zero are included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from pool.core import planning
from pool.core.ids import ProfileName
from pool.core.periods import PERIODS_S
from pool.core.settings import Settings
from pool.core.states import LIVE, State
from pool.store import Store, breakers, gauges, now, observed_counts, orgs, passes, targets
from pool.store.gauges import LiveRows, Spent
from pool.store.idle_cost import IdleReason

# Number of orgs that become labels.
TOP_ORGS = 20
# A parked or surplus worker is promised to be gone within its TTL plus one period of `reap`.
OVERDUE_GRACE_S = PERIODS_S["reap"]

_SIGHTINGS = {
    "busy_unprotected": "busy_unprotected",
    "stale_protected": "stale_protected",
    "orphans": "orphans",
    "orphans_held": "orphans_held",
    "rows_without_pod": "rows_without_pod",
    "broker_emptied": "broker_emptied",
}


class Reading(NamedTuple):
    """One sample: a metric of the catalog, its value, and its label values in the order of the catalog."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


def read(store: Store, settings: Settings) -> list[Reading]:
    """Return all samples, from one snapshot."""
    with store.snapshot() as tx:
        at = now(tx)
        rows, before = gauges.live_rows(tx), gauges.spent_before(tx)
        pool, runs = orgs.pool_row(tx), passes.every(tx)
        waiting, broken = gauges.waiting(tx), breakers.every(tx)
        unhealthy = gauges.unhealthy_in_use(tx)
        parked = gauges.parked_overdue(tx, grace_s=OVERDUE_GRACE_S)
        wanted = targets.in_force(tx, settings.profiles)
        idle = gauges.idle_longer_than(tx, settings.pool.surplus_ttl_s + OVERDUE_GRACE_S)
        seen, fullest, known = (
            observed_counts.every(tx),
            gauges.fullest_orgs(tx, limit=TOP_ORGS),
            gauges.count_orgs(tx),
        )
    profiles = sorted({*wanted, *(p for p, _ in rows.counts), *(p for p, _ in before)})
    found = [
        Reading("live_workers", pool.live),
        Reading("max_workers", settings.pool.max_workers),
        Reading("pool_paused", int(pool.paused)),
        Reading("canary_age_seconds", _age_s(at, pool.canary_at)),
        *_headroom(settings, seen),
        Reading("orgs", known),
        Reading("unhealthy_in_use", unhealthy),
        *(Reading("org_in_use", held, (org,)) for org, held, _ in fullest),
        *(Reading("org_cap", cap, (org,)) for org, _, cap in fullest),
        *(Reading(metric, seen.get(what, 0)) for what, metric in _SIGHTINGS.items()),
    ]
    for name in profiles:
        target = planning.clamped_target(wanted.get(ProfileName(name), 0), settings.pool.max_workers)
        count, oldest_s = waiting.get(name, (0, 0.0))
        breaker = next((b for p, b in broken.items() if p == name), None)
        is_open = breaker is not None and breaker.open_until is not None and breaker.open_until > at
        found += [
            Reading("warm_target", target, (name,)),
            Reading("waiting_requests", count, (name,)),
            Reading("waiting_oldest_seconds", oldest_s, (name,)),
            Reading("breaker_open", int(is_open), (name,)),
            Reading("breaker_failures", 0 if breaker is None else breaker.failures, (name,)),
            Reading("idle_overdue", parked.get(name, 0), (name, "parked")),
            Reading("idle_overdue", max(0, idle.get(name, 0) - target), (name, "surplus")),
        ]
        found += _of_workers(name, rows)
        found += _cost(
            name, {s: before.get((name, s), Spent()) + rows.spent.get((name, s), Spent()) for s in IdleReason}
        )
    for name in PERIODS_S:
        found += _of_pass(runs.get(name) or passes.PassRow(name=name), at, pool.began_at)
    return found


def _headroom(settings: Settings, seen: Mapping[str, int]) -> Iterator[Reading]:
    for name, profile in settings.profiles.items():
        yield Reading("headroom_wanted", profile.headroom, (name,))
        yield Reading("headroom_pods", seen.get(observed_counts.placeholders_of(name), 0), (name,))


def _of_workers(profile: str, rows: LiveRows) -> Iterator[Reading]:
    for state in State:
        if state in LIVE:
            yield Reading("workers", rows.counts.get((profile, state), 0), (profile, str(state)))


def _cost(profile: str, spent: dict[IdleReason, Spent]) -> Iterator[Reading]:
    for spell, cost in spent.items():
        yield Reading("idle_vcpu_seconds", cost.vcpu_s, (profile, str(spell)))
        yield Reading("idle_gib_seconds", cost.gib_s, (profile, str(spell)))


def _of_pass(row: passes.PassRow, at: datetime, began_at: datetime) -> Iterator[Reading]:
    """Yield the samples of a pass. Ages use the database clock, so that a scraper with a wrong clock sees no
    dark pass."""
    label = (row.name,)
    yield Reading("pass_period_seconds", PERIODS_S[row.name], label)
    yield Reading("pass_last_success_age_seconds", _age_s(at, row.last_success_at or began_at), label)
    yield Reading("pass_last_attempt_age_seconds", _age_s(at, row.last_attempt_at or began_at), label)
    yield Reading("pass_ever_succeeded", int(row.last_success_at is not None), label)
    yield Reading("pass_last_duration_seconds", row.last_duration_s or 0.0, label)
    yield Reading("pass_failures_in_a_row", row.failures, label)
    yield Reading("pass_paused", int(row.paused), label)
    if row.holder:
        yield Reading("pass_holder", 1, (row.name, row.holder))


def _age_s(at: datetime, then: datetime) -> float:
    return max(0.0, (at - then).total_seconds())
