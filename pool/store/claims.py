"""Claims: begun, leased, renewed, ended. An ended claim never comes back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from pool.ids import ClaimId, OrgId
from pool.records import Claim
from pool.states import ClaimEnd
from pool.store import rows
from pool.store.engine import Tx
from pool.store.schema import claims as C
from pool.store.schema import pool as P
from pool.store.sql import now, plus
from pool.store.windows import in_turn

_BY_ID = select(C).where(C.c.id == bindparam("id"))
_BY_ID_LOCKED = _BY_ID.with_for_update()


def begin(tx: Tx, *, leased: bool, lease_s: int, **columns: Any) -> Claim:
    """A new claim; its lease starts now if its worker is hot."""
    lease = {"hot_at": now(), "lease_expires_at": plus(now(), float(lease_s))} if leased else {}
    statement = insert(C).values(created_at=now(), lease_s=lease_s, **lease, **columns).returning(C)
    return rows.claim(tx.execute(statement).one())


def start_lease(tx: Tx, claim_id: ClaimId) -> Claim | None:
    """The worker is hot: from here the holder must renew."""
    statement = (
        update(C)
        .where(C.c.id == claim_id, C.c.ended_at.is_(None), C.c.hot_at.is_(None))
        .values(hot_at=now(), lease_expires_at=plus(now(), C.c.lease_s))
        .returning(C)
    )
    return _one(tx.execute(statement).one_or_none())


def end(tx: Tx, claim_id: ClaimId, why: ClaimEnd) -> Claim | None:
    """End a live claim. None: it had ended before; or it was to expire, and has been renewed meanwhile."""
    statement = (
        update(C).where(C.c.id == claim_id, C.c.ended_at.is_(None)).values(ended_at=now(), ended_why=why)
    )
    if why is ClaimEnd.EXPIRED:
        statement = statement.where(*_expired())
    return _one(tx.execute(statement.returning(C)).one_or_none())


def get(tx: Tx, claim_id: ClaimId) -> Claim | None:
    return _one(tx.execute(_BY_ID, {"id": claim_id}).one_or_none())


def get_for_update(tx: Tx, claim_id: ClaimId) -> Claim | None:
    return _one(tx.execute(_BY_ID_LOCKED, {"id": claim_id}).one_or_none())


def get_many(tx: Tx, claim_ids: Sequence[ClaimId], org: OrgId | None = None) -> dict[ClaimId, Claim]:
    """Those that there are, of one org if it is named."""
    found = tx.execute(select(C).where(C.c.id.in_(claim_ids), *_of(org)))
    return {c.id: c for c in map(rows.claim, found)}


def renew(tx: Tx, claim_ids: Sequence[ClaimId], org: OrgId | None = None) -> dict[ClaimId, datetime]:
    """Extend the leases of all that are live, and of one org if it is named, in the order of their ids so that two renewals never deadlock."""
    live = select(C.c.id).where(C.c.id.in_(claim_ids), C.c.ended_at.is_(None), C.c.hot_at.is_not(None))
    live = live.where(*_of(org)).order_by(C.c.id).with_for_update()
    ids = [i for (i,) in tx.execute(live)]
    statement = update(C).where(C.c.id.in_(ids)).values(lease_expires_at=plus(now(), C.c.lease_s))
    found = tx.execute(statement.returning(C.c.id, C.c.lease_expires_at)) if ids else ()
    return {ClaimId(r[0]): r[1] for r in found}


def ask_release(tx: Tx, claim_id: ClaimId, condition: str, org: OrgId | None = None) -> bool:
    """Keep the wish to release, when the release itself could not be carried out."""
    statement = (
        update(C)
        .where(C.c.id == claim_id, C.c.ended_at.is_(None), C.c.release_asked_at.is_(None), *_of(org))
        .values(release_asked_at=now(), release_condition=condition)
    )
    return tx.execute(statement).rowcount == 1


def abandon(tx: Tx, claim_id: ClaimId, condition: str) -> bool:
    """Its requester has gone before the worker was hot, and left it in this condition."""
    statement = update(C).where(C.c.id == claim_id, C.c.ended_at.is_(None))
    return tx.execute(statement.values(abandoned=True, release_condition=condition)).rowcount == 1


def unfinished_releases(tx: Tx, *, limit: int) -> list[Claim]:
    """Claims whose release could not be carried out. Of more than fit, each in its turn."""
    asked = select(C).where(C.c.ended_at.is_(None), C.c.release_asked_at.is_not(None))
    return [rows.claim(r) for r in in_turn(tx, asked.order_by(C.c.release_asked_at, C.c.id), limit=limit)]


def expired(tx: Tx, *, limit: int) -> list[Claim]:
    """Claims whose lease is over by the lane's rule: the holder had a whole lease of open lane to renew in."""
    statement = select(C).where(C.c.ended_at.is_(None), *_expired()).order_by(C.c.lease_expires_at, C.c.id)
    return [rows.claim(r) for r in tx.execute(statement.limit(limit))]


def live_of(tx: Tx, org_id: OrgId) -> list[Claim]:
    found = tx.execute(select(C).where(C.c.org == org_id, C.c.ended_at.is_(None)).order_by(C.c.created_at))
    return [rows.claim(r) for r in found]


def _expired() -> tuple[Any, ...]:
    lane_open_since = select(P.c.lane_open_since).scalar_subquery()
    return C.c.lease_expires_at < now(), plus(lane_open_since, C.c.lease_s) < now()


def _of(org: OrgId | None) -> tuple[Any, ...]:
    return () if org is None else (C.c.org == org,)


def _one(row: Any) -> Claim | None:
    return None if row is None else rows.claim(row)
