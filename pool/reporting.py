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
from pool.store import Store, breakers, now, orgs, passes, requests, workers
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
        "passes": {name: _pass(runs.get(name), at, period_s) for name, period_s in PERIODS_S.items()},
        "beat_dark": _beat_is_dark(runs, at),
    }


def entry(e: Entry) -> dict[str, Any]:
    """A line of the journal for programs."""
    return {**asdict(e), "at": instant(e.at)}


def _pass(row: passes.PassRow | None, at: datetime, period_s: float) -> dict[str, Any]:
    if row is None:
        return {
            "period_s": period_s,
            "age_s": None,
            "outcome": None,
            "holder": None,
            "paused": False,
            "dark": True,
            "detail": None,
        }
    age_s = None if row.last_success_at is None else (at - row.last_success_at).total_seconds()
    return {
        "period_s": period_s,
        "age_s": age_s,
        "outcome": row.last_outcome,
        "holder": row.holder,
        "paused": row.paused,
        "dark": not row.paused and (age_s is None or age_s > 3 * period_s),
        "detail": row.last_detail,
    }


def _beat_is_dark(runs: dict[str, passes.PassRow], at: datetime) -> bool:
    """Nobody has even tried a pass for a while: ticks do not come."""
    tried = [r.last_attempt_at for r in runs.values() if r.last_attempt_at is not None]
    return not tried or (at - max(tried)).total_seconds() > 3 * min(PERIODS_S.values())


def _instant(at: datetime | None) -> str | None:
    return None if at is None else instant(at)
