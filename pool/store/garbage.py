"""What is over and has been kept long enough, deleted in bounded batches."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Table, delete, select

from pool.states import TERMINAL, RequestState
from pool.store.engine import Tx
from pool.store.schema import claims as C
from pool.store.schema import deeds as D
from pool.store.schema import journal as J
from pool.store.schema import requests as R
from pool.store.schema import workers as W
from pool.store.sql import now, plus

_OVER = (RequestState.SPENT, RequestState.REFUSED)


def terminal_workers(tx: Tx, *, older_than_s: float, limit: int) -> int:
    """Ended workers whose claims have gone before them."""
    has_claims = select(C.c.id).where(C.c.worker_id == W.c.id).exists()
    old = (W.c.state.in_(sorted(TERMINAL))) & (W.c.state_since < plus(now(), -float(older_than_s)))
    return _delete(tx, W, W.c.id, old & ~has_claims, limit)


def ended_claims(tx: Tx, *, older_than_s: float, limit: int) -> int:
    return _delete(tx, C, C.c.id, C.c.ended_at < plus(now(), -float(older_than_s)), limit)


def decided_requests(tx: Tx, *, older_than_s: float, limit: int) -> int:
    """After this their ids may be used again, as new requests."""
    old = (R.c.state.in_(_OVER)) & (R.c.decided_at < plus(now(), -float(older_than_s)))
    return _delete(tx, R, R.c.pk, old, limit)


def journal_entries(tx: Tx, *, older_than_s: float, limit: int) -> int:
    """Of workers that are no longer in the table: what is in it, the journal still replays to."""
    in_table = select(W.c.id).where(W.c.id == J.c.worker_id).exists()
    return _delete(tx, J, J.c.id, (J.c.at < plus(now(), -float(older_than_s))) & ~in_table, limit)


def old_deeds(tx: Tx, *, older_than_s: float, limit: int) -> int:
    return _delete(tx, D, D.c.id, D.c.at < plus(now(), -float(older_than_s)), limit)


def _delete(tx: Tx, table: Table, key: ColumnElement[Any], which: ColumnElement[bool], limit: int) -> int:
    some = select(key).where(which).limit(limit)
    return int(tx.execute(delete(table).where(key.in_(some))).rowcount)
