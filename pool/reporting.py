"""What the pool looks like now, as one value: the same for the CLI, its JSON and the board."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from pool.contract import instant
from pool.ids import ProfileName
from pool.periods import PERIODS_S
from pool.settings import Settings
from pool.states import LIVE, State
from pool.store import Store, breakers, now, orgs, passes, requests, suspects, workers
from pool.store.journal import Entry


def status(store: Store, settings: Settings) -> dict[str, Any]:
    """One moment of the whole pool."""
    with store.snapshot() as tx:
        at = now(tx)
        counts = workers.counts(tx)
        broken = breakers.every(tx)
        pool = orgs.pool_row(tx)
        known = orgs.every(tx)
        held = orgs.live_claims(tx)
        lines = requests.waiting(tx)
        runs = passes.every(tx)
        suspected = suspects.every(tx)
    names = sorted({*map(ProfileName, settings.profiles), *(p for p, _ in counts)})
    return {
        "at": instant(at),
        "pool": {
            "live": pool.live,
            "max_workers": settings.pool.max_workers,
            "paused": pool.paused,
            "lane_open_since": instant(pool.lane_open_since),
        },
        "profiles": {
            name: {
                "target": settings.profiles[name].warm_target if name in settings.profiles else None,
                "states": {str(s): counts.get((name, s), 0) for s in State if s in LIVE},
                "trouble": broken[name].why if name in broken else None,
                "trouble_until": _instant(broken[name].open_until) if name in broken else None,
            }
            for name in names
        },
        "orgs": {
            o.id: {"in_use": held.get(o.id, 0), "cap": o.cap, "parked": o.parked, "weight": o.weight}
            for o in known
        },
        "waiting": [{**line, "since": instant(line["since"])} for line in lines],
        "passes": {name: _pass(runs.get(name), at, pool.began_at, name) for name in PERIODS_S},
        "suspects": [{"kind": k, "subject": s, "runs": n, "detail": d} for k, s, n, d in suspected],
        "beat_dark": _beat_is_dark(runs, at, pool.began_at),
    }


def entry(e: Entry) -> dict[str, Any]:
    """A line of the journal for programs."""
    return {**asdict(e), "at": instant(e.at)}


def _pass(row: passes.PassRow | None, at: datetime, began_at: datetime, name: str) -> dict[str, Any]:
    """One pass. Dark: no success for three periods, counted from the pool's beginning if there never was one."""
    row = row or passes.PassRow(name=name)
    silent_s = (at - (row.last_success_at or began_at)).total_seconds()
    return {
        "period_s": PERIODS_S[name],
        "age_s": None if row.last_success_at is None else silent_s,
        "outcome": row.last_outcome,
        "holder": row.holder,
        "paused": row.paused,
        "dark": not row.paused and silent_s > 3 * PERIODS_S[name],
        "detail": row.last_detail,
    }


def _beat_is_dark(runs: dict[str, passes.PassRow], at: datetime, began_at: datetime) -> bool:
    """Nobody has even tried a pass for a while: ticks do not come."""
    tried = max([began_at, *(r.last_attempt_at for r in runs.values() if r.last_attempt_at is not None)])
    return (at - tried).total_seconds() > 6 * min(PERIODS_S.values())


def _instant(at: datetime | None) -> str | None:
    return None if at is None else instant(at)
