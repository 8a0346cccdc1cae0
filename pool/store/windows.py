"""Bounded selections of rows for passes. Rows that a run cannot handle do not block the others."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, select

from pool.core.states import State
from pool.core.turns import begins_at
from pool.store import rows
from pool.store.engine import Tx, now
from pool.store.schema import orgs as O
from pool.store.schema import workers as W
from pool.store.sql import word


def in_turn(tx: Tx, ordered: Select[Any], *, limit: int) -> list[Any]:
    """Return at most `limit` rows of an ordered statement.

    If there are more, each run starts at another row, so that rows whose step keeps failing do not
    block the others.
    """
    first = list(tx.execute(ordered.limit(limit)))
    if len(first) < limit:
        return first
    total = int(tx.execute(select(func.count()).select_from(ordered.order_by(None).subquery())).scalar_one())
    begin = begins_at(int(now(tx).timestamp()), total)
    found = list(tx.execute(ordered.offset(begin).limit(limit)))
    return found + first[: min(limit - len(found), begin)]


def parked_above_floor(*which: ColumnElement[bool], order: ColumnElement[Any], limit: int) -> Select[Any]:
    """Select parked workers without those that their org's floor keeps: of each org only the number
    above its floor, in this order.
    """
    kept = case(
        ((O.c.hot_idle_cap > 0) & (O.c.hot_idle_cap < O.c.hot_idle_floor), O.c.hot_idle_cap),
        else_=O.c.hot_idle_floor,
    )
    above = select(O.c.parked - kept).where(O.c.id == W.c.org).scalar_subquery()
    place = func.row_number().over(partition_by=(W.c.org, W.c.parked_counted), order_by=(order, W.c.id))
    found = (
        select(W.c.id, W.c.parked_counted, place.label("place"), above.label("above"))
        .where(W.c.state == word(State.HOT_IDLE), *which)
        .subquery()
    )
    # No floor keeps a worker that is not counted.
    goes = ~found.c.parked_counted | (found.c.place <= found.c.above)
    ids = select(found.c.id).where(goes)
    return select(*rows.SEEN).where(W.c.id.in_(ids)).order_by(order, W.c.id).limit(limit)
