"""Canaries show whether callers can renew.

Leases end only while canaries pass through the queue `acquire`.
"""

from __future__ import annotations

from sqlalchemy import case, select, update

from pool.store.engine import Tx
from pool.store.schema import pool as P
from pool.store.sql import now, younger_than


def lane_is_open(tx: Tx, *, gap_s: float) -> bool:
    """Return whether a canary was answered within `gap_s`.

    A time in the future counts as no answer, so no lease ends until the next canary.
    """
    return tx.execute(select(P.c.id).where(younger_than(P.c.canary_at, gap_s))).first() is not None


def canary_answered(tx: Tx, *, gap_s: float) -> None:
    """Record that a canary passed through the queue `acquire`.

    After a gap the lane counts as opened now, and every lease gets its whole length again.
    """
    silent = ~younger_than(P.c.canary_at, gap_s)
    tx.execute(
        update(P).values(lane_open_since=case((silent, now()), else_=P.c.lane_open_since), canary_at=now())
    )
