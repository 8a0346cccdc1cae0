"""Delete ended rows that are past their retention, in bounded batches."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, delete, select

from pool.core.states import OVER, TERMINAL
from pool.store.engine import Tx
from pool.store.schema import claims as C
from pool.store.schema import deeds as D
from pool.store.schema import journal as J
from pool.store.schema import requests as R
from pool.store.schema import workers as W
from pool.store.sql import now, number, plus, words


def terminal_workers(tx: Tx, *, older_than_s: float, limit: int) -> int:
    """Delete ended workers whose claims have been deleted.

    A worker never ends before its claims, so the oldest workers lose their claims first.
    """
    old = (W.c.state.in_(words(TERMINAL))) & (W.c.state_since < plus(now(), -float(older_than_s)))
    oldest = select(W.c.id).where(old).order_by(W.c.state_since, W.c.id).limit(number(limit)).subquery()
    # Two subqueries, because each has its own index.
    claims = select(C.c.id).where(C.c.worker_id == oldest.c.id)
    ended, live = (
        claims.where(which).exists() for which in (C.c.ended_at.is_not(None), C.c.ended_at.is_(None))
    )
    some = select(oldest.c.id).where(~ended, ~live)
    return int(tx.execute(delete(W).where(W.c.id.in_(some))).rowcount)


def ended_claims(tx: Tx, *, older_than_s: float, limit: int) -> int:
    return _delete(tx, (C.c.id, C.c.ended_at), C.c.ended_at < plus(now(), -float(older_than_s)), limit)


def decided_requests(tx: Tx, *, older_than_s: float, limit: int) -> int:
    """Delete answered requests. After that, their request ids may be used for new requests."""
    old = R.c.state.in_(words(OVER)) & (R.c.decided_at < plus(now(), -float(older_than_s)))
    return _delete(tx, (R.c.pk, R.c.decided_at), old, limit)


def journal_entries(tx: Tx, *, older_than_s: float, limit: int) -> int:
    """Delete entries of workers that are no longer in the table.

    The journal of workers in the table stays complete.
    """
    in_table = select(W.c.id).where(W.c.id == J.c.worker_id).exists()
    old = J.c.at < plus(now(), -float(older_than_s))
    return _delete(tx, (J.c.id, J.c.at), old & ~in_table, limit)


def old_audit_entries(tx: Tx, *, older_than_s: float, limit: int) -> int:
    return _delete(tx, (D.c.id, D.c.at), D.c.at < plus(now(), -float(older_than_s)), limit)


def _delete(
    tx: Tx, key_and_age: tuple[Column[Any], Column[Any]], which: ColumnElement[bool], limit: int
) -> int:
    """Delete the oldest rows, in the order of the index by age, so that the cost of a batch does
    not depend on where its rows are in the table.
    """
    key, age = key_and_age
    some = select(key).where(which).order_by(age, key).limit(number(limit))
    return int(tx.execute(delete(key.table).where(key.in_(some))).rowcount)
