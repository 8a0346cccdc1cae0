"""The status of the whole pool at one moment: workers, targets, orgs, waiting requests, passes, suspicions,
idle cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pool.core.contract import instant
from pool.core.ids import OrgId, ProfileName
from pool.core.periods import PERIODS_S
from pool.core.planning import clamped_target
from pool.core.profiles import settings_number
from pool.core.records import Org, SeenWorker
from pool.core.settings import Settings
from pool.core.states import LIVE, State
from pool.ops.reporting.problems import worries
from pool.ops.reporting.rollout import rollout_of
from pool.ops.reporting.shapes import maybe, org, seconds, worker
from pool.ops.reporting.waiting import Around, why_it_waits
from pool.store import (
    Store,
    Tx,
    breakers,
    now,
    observed_counts,
    operator_queries,
    orgs,
    passes,
    requests,
    rollouts,
    suspects,
    targets,
    workers,
)
from pool.store.breakers import Breaker

# Number of orgs that fit on one screen; `get orgs` lists all.
ORGS_SHOWN = 40
REFUSALS_WITHIN_S = 60.0
# How long an external event is reported. A call that is still forbidden is repeated well within this time.
EMPTIED_WITHIN_S = 300.0
FORBIDDEN_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """What was read from the database in one snapshot."""

    at: datetime
    pool: Any
    counts: Mapping[tuple[ProfileName, State], int]
    targets: Mapping[ProfileName, int]
    broken: Mapping[ProfileName, Breaker]
    held: Mapping[OrgId, int]
    parked: Mapping[OrgId, int]
    orgs: list[Org]
    orgs_total: int
    lines: list[dict[str, Any]]
    runs: Mapping[str, passes.PassRow]
    suspected: list[tuple[str, str, int, str]]
    unused: list[operator_queries.Unused]
    refusals: Mapping[str, int]
    leaving: list[SeenWorker]
    unhealthy: list[tuple[SeenWorker, int]]
    overdue: Mapping[ProfileName, int]
    rollouts: Mapping[ProfileName, dict[str, Any] | None]
    headroom: Mapping[str, dict[str, int]]
    outdated: Mapping[str, str]
    parked_overdue: int
    unprotected: int
    emptied_at: datetime | None
    forbidden: list[observed_counts.ForbiddenVerb]


def status(store: Store, settings: Settings) -> dict[str, Any]:
    """Return the status of the whole pool, from one snapshot."""
    with store.snapshot() as tx:
        m = _read(tx, settings)
    names = sorted({*m.targets, *(p for p, _ in m.counts)})
    seen: dict[str, Any] = {
        "at": instant(m.at),
        "pool": {
            "live": m.pool.live,
            "max_workers": settings.pool.max_workers,
            "paused": m.pool.paused,
            "lane_open_since": instant(m.pool.lane_open_since),
            "canary_age_s": seconds(m.at - m.pool.canary_at),
        },
        "profiles": {name: _profile(m, name) for name in names},
        "orgs": {o.id: org(o, in_use=m.held.get(o.id, 0), parked=m.parked.get(o.id, 0)) for o in m.orgs},
        "orgs_total": m.orgs_total,
        "waiting": [_line(m, settings, line) for line in m.lines],
        "refused_last_minute": dict(m.refusals),
        "leaving": [worker(w, m.at) for w in m.leaving],
        "unhealthy": [{**worker(w, m.at), "failed_probes": runs} for w, runs in m.unhealthy],
        "parked_overdue": m.parked_overdue,
        "passes": {name: _pass(m.runs.get(name), m.at, m.pool.began_at, name) for name in PERIODS_S},
        "suspects": [{"kind": k, "subject": s, "runs": n, "detail": d} for k, s, n, d in m.suspected],
        "idling": _idling(m.unused),
        "unprotected": m.unprotected,
        "broker_emptied_at": maybe(_lately(m.at, m.emptied_at, EMPTIED_WITHIN_S)),
        "forbidden": [{"call": f.what, "age_s": seconds(m.at - f.at)} for f in m.forbidden],
        "beat_dark": _beat_is_dark(m.runs, m.at, m.pool.began_at),
    }
    return {**seen, "worries": worries(seen)}


def _read(tx: Tx, settings: Settings) -> _Moment:
    held, lines = orgs.live_claims(tx), requests.waiting(tx)
    waiting = {OrgId(line["org"]) for line in lines}
    parked = operator_queries.parked_by_org(tx)
    most_parked = sorted(parked, key=lambda o: (-parked[o], o))[:ORGS_SHOWN]
    shown, total = operator_queries.busiest_orgs(tx, held, also={*waiting, *most_parked}, limit=ORGS_SHOWN)
    wanted = targets.in_force(tx, settings.profiles)
    pool, broken = orgs.pool_row(tx), breakers.every(tx)
    counted = observed_counts.every(tx)
    full = 0 < settings.pool.max_workers <= pool.live
    # Three periods of `reap` as grace: a worker that `reap` could not see yet is not overdue.
    idle_s = settings.pool.surplus_ttl_s + 3 * PERIODS_S["reap"]
    return _Moment(
        at=now(tx),
        pool=pool,
        counts=workers.counts(tx),
        targets={name: clamped_target(n, settings.pool.max_workers) for name, n in wanted.items()},
        broken=broken,
        rollouts={
            name: rollout_of(tx, r, broken.get(name), full=full) for name, r in rollouts.every(tx).items()
        },
        held=held,
        parked=parked,
        orgs=shown,
        orgs_total=total,
        lines=lines,
        runs=passes.every(tx),
        suspected=suspects.every(tx),
        unused=operator_queries.unused(tx),
        refusals=operator_queries.refusals(tx, within_s=REFUSALS_WITHIN_S),
        leaving=operator_queries.leaving_busy(tx),
        unhealthy=operator_queries.unhealthy_busy(tx),
        overdue={name: operator_queries.overdue(tx, name, idle_s=idle_s) for name in wanted},
        headroom={
            name: {"wanted": p.headroom, "running": counted.get(observed_counts.placeholders_of(name), 0)}
            for name, p in settings.profiles.items()
        },
        outdated=_outdated(settings, counted),
        parked_overdue=operator_queries.parked_overdue(tx, for_s=3 * PERIODS_S["reap"]),
        unprotected=counted.get("busy_unprotected_long", 0),
        emptied_at=observed_counts.broker_emptied_at(tx),
        forbidden=observed_counts.forbidden_within(tx, FORBIDDEN_WITHIN_S),
    )


def _outdated(settings: Settings, counted: Mapping[str, int]) -> dict[str, str]:
    """Return the profiles whose settings here are not those of the running pool, and how they differ."""
    if not any(what.startswith(observed_counts.settings_of("")) for what in counted):
        return {}  # no pass has run yet
    found = {}
    for name, profile in settings.profiles.items():
        running = counted.get(observed_counts.settings_of(name))
        if running is None:
            found[name] = "is not known to the running pool"
        elif running != settings_number(profile):
            found[name] = "differs from the one that the running pool uses"
    return found


def _profile(m: _Moment, name: ProfileName) -> dict[str, Any]:
    target, broken = m.targets.get(name), m.broken.get(name)
    return {
        "target": target,
        "states": {str(s): m.counts.get((name, s), 0) for s in State if s in LIVE},
        "headroom": m.headroom.get(name, {"wanted": 0, "running": 0}),
        "surplus_overdue": max(0, m.overdue.get(name, 0) - (target or 0)),
        "rollout": m.rollouts.get(name),
        "outdated": m.outdated.get(name),
        "trouble": None if broken is None else broken.why,
        "trouble_until": None if broken is None else maybe(broken.open_until),
    }


def _line(m: _Moment, settings: Settings, line: dict[str, Any]) -> dict[str, Any]:
    hindrance, why = why_it_waits(around(m, settings, line["org"], line["profile"]))
    since = line["since"]
    return {
        **line,
        "since": instant(since),
        "oldest_s": seconds(m.at - since),
        "reason": str(hindrance),
        "why": why,
    }


def around(m: _Moment, settings: Settings, org_id: str, name: ProfileName) -> Around:
    """Return the state of the pool that a request depends on."""
    mine = next((o for o in m.orgs if o.id == org_id), None)
    broken = m.broken.get(name)
    return Around(
        org=org_id,
        profile=name,
        org_cap=mine.cap if mine else 0,
        org_in_use=m.held.get(OrgId(org_id), 0),
        pool_cap=settings.pool.max_workers,
        pool_live=m.pool.live,
        idle=m.counts.get((name, State.IDLE), 0),
        spawning=m.counts.get((name, State.SPAWNING), 0),
        trouble=broken.why if broken is not None and broken.open_until is not None else "",
        supply_stopped=supply_stopped(m.runs.get("reconcile_warm"), m.at, m.pool.began_at),
    )


def supply_stopped(row: passes.PassRow | None, at: datetime, began_at: datetime) -> str:
    """Return why no slots are created; empty if they are."""
    seen = _pass(row, at, began_at, "reconcile_warm")
    if seen["paused"]:
        return f"reconcile_warm was paused by {seen['paused_by'] or 'an operator'}"
    return "reconcile_warm is dark" if seen["dark"] else ""


def _pass(row: passes.PassRow | None, at: datetime, began_at: datetime, name: str) -> dict[str, Any]:
    """Return one pass. Dark: no success for three periods, counted from the pool's first start if it never
    succeeded."""
    row = row or passes.PassRow(name=name)
    silent_s = seconds(at - (row.last_success_at or began_at))
    return {
        "period_s": PERIODS_S[name],
        "age_s": None if row.last_success_at is None else silent_s,
        "last_success_at": maybe(row.last_success_at),
        "last_attempt_at": maybe(row.last_attempt_at),
        "outcome": row.last_outcome,
        "holder": row.holder,
        "paused": row.paused,
        "paused_by": row.paused_by,
        "dark": not row.paused and silent_s > 3 * PERIODS_S[name],
        "failures": row.failures,
        "duration_s": row.last_duration_s,
        "detail": row.last_detail,
    }


def _idling(unused: list[operator_queries.Unused]) -> dict[str, Any]:
    """Return the resources of workers without a claim, in total and by profile and state."""
    return {
        "workers": sum(u.workers for u in unused),
        "vcpu": round(sum(u.cpu_millicores for u in unused) / 1000, 3),
        "memory_gib": round(sum(u.memory_mib for u in unused) / 1024, 3),
        "by": [
            {
                "profile": u.profile,
                "state": u.state,
                "workers": u.workers,
                "vcpu": round(u.cpu_millicores / 1000, 3),
                "memory_gib": round(u.memory_mib / 1024, 3),
            }
            for u in sorted(unused, key=lambda u: (u.profile, u.state))
        ],
    }


def _lately(at: datetime, then: datetime | None, within_s: float) -> datetime | None:
    """Return `then` if it is within the last `within_s` seconds, else None."""
    return then if then is not None and seconds(at - then) < within_s else None


def _beat_is_dark(runs: Mapping[str, passes.PassRow], at: datetime, began_at: datetime) -> bool:
    """Return whether no pass has been attempted recently, which means that beat sends no ticks."""
    tried = max([began_at, *(r.last_attempt_at for r in runs.values() if r.last_attempt_at is not None)])
    return (at - tried).total_seconds() > 6 * min(PERIODS_S.values())
