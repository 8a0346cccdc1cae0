"""The lane: whether callers could have renewed. Leases only run while canaries come through the acquire queue."""

from __future__ import annotations

from sqlalchemy import case, select, update

from pool.store.engine import Tx
from pool.store.schema import pool as P
from pool.store.sql import now, younger_than


def lane_is_open(tx: Tx, *, gap_s: float) -> bool:
    """Whether a canary came through lately. One from the future tells nothing: until the next one comes through no lease ends."""
    return tx.execute(select(P.c.id).where(younger_than(P.c.canary_at, gap_s))).first() is not None


def canary_answered(tx: Tx, *, gap_s: float) -> None:
    """A canary has come through the acquire queue. After a gap the lane opens anew, and so do all leases."""
    silent = ~younger_than(P.c.canary_at, gap_s)
    tx.execute(
        update(P).values(lane_open_since=case((silent, now()), else_=P.c.lane_open_since), canary_at=now())
    )
