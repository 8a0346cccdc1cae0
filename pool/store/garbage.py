"""What is over and has been kept long enough, deleted in bounded batches."""

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
    """Ended workers whose claims have gone before them. A worker ends no sooner than its claims, so the oldest are free of them first."""
    old = (W.c.state.in_(words(TERMINAL))) & (W.c.state_since < plus(now(), -float(older_than_s)))
    oldest = select(W.c.id).where(old).order_by(W.c.state_since, W.c.id).limit(number(limit)).subquery()
    # Two questions, since each has an index of its own.
    claims = select(C.c.id).where(C.c.worker_id == oldest.c.id)
    ended, live = (
        claims.where(which).exists() for which in (C.c.ended_at.is_not(None), C.c.ended_at.is_(None))
    )
    some = select(oldest.c.id).where(~ended, ~live)
    return int(tx.execute(delete(W).where(W.c.id.in_(some))).rowcount)


def ended_claims(tx: Tx, *, older_than_s: float, limit: int) -> int:
    return _delete(tx, (C.c.id, C.c.ended_at), C.c.ended_at < plus(now(), -float(older_than_s)), limit)


def decided_requests(tx: Tx, *, older_than_s: float, limit: int) -> int:
    """After this their ids may be used again, as new requests."""
    old = R.c.state.in_(words(OVER)) & (R.c.decided_at < plus(now(), -float(older_than_s)))
    return _delete(tx, (R.c.pk, R.c.decided_at), old, limit)


def journal_entries(tx: Tx, *, older_than_s: float, limit: int) -> int:
    """Of workers that are no longer in the table: what is in it, the journal still replays to."""
    in_table = select(W.c.id).where(W.c.id == J.c.worker_id).exists()
    old = J.c.at < plus(now(), -float(older_than_s))
    return _delete(tx, (J.c.id, J.c.at), old & ~in_table, limit)


def old_audit_entries(tx: Tx, *, older_than_s: float, limit: int) -> int:
    return _delete(tx, (D.c.id, D.c.at), D.c.at < plus(now(), -float(older_than_s)), limit)


def _delete(
    tx: Tx, key_and_age: tuple[Column[Any], Column[Any]], which: ColumnElement[bool], limit: int
) -> int:
    """The oldest first: in the order of the index by age, so that a batch costs the same wherever in the table its rows are."""
    key, age = key_and_age
    some = select(key).where(which).order_by(age, key).limit(number(limit))
    return int(tx.execute(delete(key.table).where(key.in_(some))).rowcount)
