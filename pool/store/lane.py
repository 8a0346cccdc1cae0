"""The lane: whether callers could have renewed. Leases only run while canaries come through the acquire queue."""

from __future__ import annotations

from sqlalchemy import case, select, update

from pool.store.engine import Tx
from pool.store.schema import pool as P
from pool.store.sql import now, plus


def lane_is_open(tx: Tx, *, gap_s: float) -> bool:
    """Whether a canary came through lately."""
    return tx.execute(select(P.c.id).where(P.c.canary_at >= plus(now(), -gap_s))).first() is not None


def canary_answered(tx: Tx, *, gap_s: float) -> None:
    """A canary has come through the acquire queue. After a gap the lane opens anew, and so do all leases."""
    silent = P.c.canary_at < plus(now(), -gap_s)
    tx.execute(
        update(P).values(lane_open_since=case((silent, now()), else_=P.c.lane_open_since), canary_at=now())
    )
