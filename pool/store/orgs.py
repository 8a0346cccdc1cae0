"""Orgs and the row of the pool: settings, and the counters that enforce caps and floors.

A counter changes by a guarded UPDATE in the transaction of the move that it counts. An org without
a cap has no counter, so its claims take no lock. `claims.counted` shows which claims are in the
counter, so that the counter stays correct if a cap is set or removed while claims are live.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.dialects import postgresql

from pool.core.ids import OrgId
from pool.core.records import Org
from pool.core.settings import OrgDefaults
from pool.core.states import State
from pool.store import rows
from pool.store.engine import Tx
from pool.store.schema import claims as C
from pool.store.schema import orgs as O
from pool.store.schema import pool as P
from pool.store.schema import workers as W
from pool.store.sql import ZERO, now, word

_BY_ID = select(O).where(O.c.id == bindparam("id"))
_BY_ID_LOCKED = _BY_ID.with_for_update()


def get(tx: Tx, org_id: OrgId) -> Org | None:
    row = tx.execute(_BY_ID, {"id": org_id}).one_or_none()
    return None if row is None else rows.org(row)


def every(tx: Tx) -> list[Org]:
    return [rows.org(r) for r in tx.execute(select(O).order_by(O.c.id))]


def seed(tx: Tx, org_id: OrgId, defaults: OrgDefaults) -> None:
    """Create the org unless it exists. The settings of an existing org do not change."""
    values = {
        k: getattr(defaults, k) for k in ("cap", "weight", "hot_idle_floor", "hot_idle_cap", "hot_idle_ttl_s")
    }
    statement = postgresql.insert(O).values(
        id=org_id, values=dict(defaults.values), created_at=now(), **values
    )
    tx.execute(statement.on_conflict_do_nothing())


def change(tx: Tx, org_id: OrgId, settings: Mapping[str, Any]) -> None:
    """Write new settings.

    If they add a counter, existing claims and workers are counted in the same transaction.
    """
    tx.execute(update(O).where(O.c.id == org_id).values(**settings))
    count_uncounted(tx, org_id)


def count_uncounted(tx: Tx, org_id: OrgId) -> int:
    """Add claims and parked workers that are not counted yet to the counters of an org. Return
    their number.

    They began while the org had no cap, or in a transaction that ran concurrently with the change.
    """
    row = tx.execute(_BY_ID_LOCKED, {"id": org_id}).one_or_none()
    if row is None:
        return 0
    org, claims, parked = rows.org(row), 0, 0
    if org.cap:
        statement = (
            update(C).where(C.c.org == org_id, C.c.ended_at.is_(None), ~C.c.counted).values(counted=True)
        )
        claims = tx.execute(statement).rowcount
    if org.counts_parked:
        found = update(W).where(W.c.org == org_id, W.c.state == word(State.HOT_IDLE), ~W.c.parked_counted)
        parked = tx.execute(found.values(parked_counted=True)).rowcount
    if claims or parked:
        tx.execute(
            update(O).where(O.c.id == org_id).values(in_use=O.c.in_use + claims, parked=O.c.parked + parked)
        )
    return claims + parked


def decrement_parked(tx: Tx, org_id: OrgId) -> None:
    """Decrement the counter of parked workers."""
    tx.execute(update(O).where(O.c.id == org_id).values(parked=O.c.parked - 1))


def decrement_parked_above_floor(tx: Tx, org_id: OrgId) -> bool:
    """Decrement the counter of parked workers if the org keeps its floor.

    Return whether it did. A hot-idle cap below the floor takes precedence over the floor.
    """
    floor = O.c.parked > O.c.hot_idle_floor
    over_cap = (O.c.hot_idle_cap > 0) & (O.c.parked > O.c.hot_idle_cap)
    statement = update(O).where(O.c.id == org_id, floor | over_cap).values(parked=O.c.parked - 1)
    return tx.execute(statement).rowcount == 1


def capped_parking(tx: Tx) -> list[Org]:
    """Return the orgs that have more parked workers than their hot-idle cap."""
    statement = (
        select(O)
        .where(
            (O.c.hot_idle_floor > ZERO) | (O.c.hot_idle_cap > ZERO),
            O.c.hot_idle_cap > ZERO,
            O.c.parked > O.c.hot_idle_cap,
        )
        .order_by(O.c.id)
    )
    return [rows.org(r) for r in tx.execute(statement)]


def uncounted(tx: Tx) -> list[OrgId]:
    """Return the orgs with counters that have claims or parked workers which are not counted."""
    # Few orgs have counters. Most uncounted rows belong to orgs without counters and are not read.
    claims = select(C.c.id).where(C.c.org == O.c.id, C.c.ended_at.is_(None), ~C.c.counted).exists()
    parks = (
        select(W.c.id)
        .where(W.c.org == O.c.id, W.c.state == word(State.HOT_IDLE), ~W.c.parked_counted)
        .exists()
    )
    claimed = select(O.c.id).where(O.c.cap > ZERO, claims)
    parked = select(O.c.id).where((O.c.hot_idle_floor > ZERO) | (O.c.hot_idle_cap > ZERO), parks)
    return [OrgId(o) for (o,) in tx.execute(claimed.union(parked))]


def reserve_slots(tx: Tx, wanted: int, max_workers: int) -> int:
    """Count up to `wanted` new slots as live, as far as the cap of the pool allows. Return how many."""
    if wanted <= 0:
        return 0
    if not max_workers:
        tx.execute(update(P).values(live=P.c.live + wanted))
        return wanted
    live_now = int(tx.execute(select(P.c.live).with_for_update()).scalar_one())
    granted = max(0, min(wanted, max_workers - live_now))
    tx.execute(update(P).values(live=P.c.live + granted))
    return granted


def decrement_live(tx: Tx) -> None:
    """Decrement the counter of live workers."""
    tx.execute(update(P).values(live=P.c.live - 1))


def pool_row(tx: Tx) -> Any:
    """Return the row of the pool: live, paused, lane_open_since, canary_at."""
    return tx.execute(select(P)).one()


def live_claims(tx: Tx) -> dict[OrgId, int]:
    """Count the live claims of each org. For display, never to decide."""
    statement = select(C.c.org, func.count()).where(C.c.ended_at.is_(None)).group_by(C.c.org)
    return {OrgId(o): n for o, n in tx.execute(statement)}


def pause(tx: Tx, *, paused: bool) -> None:
    """Stop or resume granting workers."""
    tx.execute(update(P).values(paused=paused))


def miscounted(tx: Tx) -> list[str]:
    """Return the counters that differ from what they count, one text for each.

    Empty in a healthy pool.
    """
    found = []
    live_claims = (
        select(func.count()).where(C.c.org == O.c.id, C.c.ended_at.is_(None), C.c.counted).scalar_subquery()
    )
    parked = select(func.count()).where(W.c.org == O.c.id, W.c.parked_counted).scalar_subquery()
    for org, in_use, claims, held, seen in tx.execute(
        select(O.c.id, O.c.in_use, live_claims, O.c.parked, parked)
    ):
        if in_use != claims:
            found.append(f"org {org}: in_use is {in_use}, its counted live claims are {claims}")
        if held != seen:
            found.append(f"org {org}: parked is {held}, its counted parked workers are {seen}")
    live_rows = (
        select(func.count()).select_from(W).where(W.c.state.not_in(["retired", "lost"])).scalar_subquery()
    )
    live_now, live_seen = tx.execute(select(P.c.live, live_rows)).one()
    if live_now != live_seen:
        found.append(f"pool: live is {live_now}, its live rows are {live_seen}")
    return found
