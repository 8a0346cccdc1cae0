"""The table of claims: begun, leased, renewed, ended. An ended claim never becomes live again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, func, select, update

from pool.core.ids import ClaimId, OrgId
from pool.core.periods import UNSEEN_GAP_S
from pool.core.records import By, Claim
from pool.core.states import ClaimEnd
from pool.store import rows, rules
from pool.store.engine import Tx
from pool.store.schema import claims as C
from pool.store.schema import pool as P
from pool.store.sql import now, plus, prose
from pool.store.windows import in_turn

_BY_ID = select(C).where(C.c.id == bindparam("id"))


def end(tx: Tx, asked: Mapping[str, Any], claim_id: ClaimId, why: ClaimEnd, by: By) -> dict[str, Any] | None:
    """End a claim for a cause other than its holder's release, and decide its request.

    Return None if the claim had already ended, or if it was to expire and has been renewed.
    """
    moved = {"who": prose(by.who), "reason": by.reason, "detail": prose(by.detail)}
    ending = {"claim_id": claim_id, "why": why, **moved, "patient": True, "unseen_s": UNSEEN_GAP_S}
    return rules.call(rules.Within(tx), "end_claim", {**asked, **ending})


def get(tx: Tx, claim_id: ClaimId) -> Claim | None:
    return _one(tx.execute(_BY_ID, {"id": claim_id}).one_or_none())


def request_release(tx: Tx, claim_id: ClaimId, condition: str, org: OrgId | None = None) -> bool:
    """Record that a release was requested, when the release itself could not be written."""
    statement = (
        update(C)
        .where(C.c.id == claim_id, C.c.ended_at.is_(None), C.c.release_asked_at.is_(None), *_of(org))
        .values(release_asked_at=now(), release_condition=condition)
    )
    return tx.execute(statement).rowcount == 1


def unfinished_releases(tx: Tx, *, limit: int) -> list[Claim]:
    """Return claims whose release could not be written.

    If there are more than `limit`, each run starts at another row.
    """
    asked = select(C).where(C.c.ended_at.is_(None), C.c.release_asked_at.is_not(None))
    return [rows.claim(r) for r in in_turn(tx, asked.order_by(C.c.release_asked_at, C.c.id), limit=limit)]


def expired(tx: Tx, *, limit: int) -> list[Claim]:
    """Return claims whose lease has expired, although their holder could have renewed it."""
    statement = select(C).where(C.c.ended_at.is_(None), *_expired()).order_by(C.c.lease_expires_at, C.c.id)
    return [rows.claim(r) for r in tx.execute(statement.limit(limit))]


def live_of(tx: Tx, org_id: OrgId) -> list[Claim]:
    found = tx.execute(select(C).where(C.c.org == org_id, C.c.ended_at.is_(None)).order_by(C.c.created_at))
    return [rows.claim(r) for r in found]


def _expired() -> tuple[Any, ...]:
    """Return the conditions of `warmpool_end_claim`. The first one is for the index."""
    lane_open_since = select(P.c.lane_open_since).scalar_subquery()
    grace_s = func.greatest(0, UNSEEN_GAP_S - C.c.lease_s / 3.0)
    return (
        C.c.lease_expires_at < now(),
        plus(C.c.lease_expires_at, grace_s) < now(),
        plus(lane_open_since, C.c.lease_s) < now(),
    )


def _of(org: OrgId | None) -> tuple[Any, ...]:
    return () if org is None else (C.c.org == org,)


def _one(row: Any) -> Claim | None:
    return None if row is None else rows.claim(row)
