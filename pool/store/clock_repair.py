"""Repair times in the future after the database's clock has stepped back. Their age is not known,
so they are set to now: no row stays longer by the length of the step, and no lease, TTL or wait is
cut short.

Times that only save work (last attempt, last success, sent, decided, missed, canary) need no
repair: `sql.younger_than` ignores a time in the future.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, select, update

from pool.core.states import CLAIMED, RequestState, State
from pool.store.engine import Tx
from pool.store.schema import claims as C
from pool.store.schema import requests as R
from pool.store.schema import workers as W
from pool.store.sql import AHEAD_S, ahead, now, plus, word, words

_UNCLAIMED = (State.SPAWNING, State.IDLE, State.HOT_IDLE, State.DRAINING)


def count_from_now(tx: Tx, *, limit: int) -> int:
    """Set times in the future to now, at most `limit` rows of each kind, and return the number of rows.

    Rows keep their order, so that waiters keep theirs.
    """
    return _states(tx, limit) + _heartbeats(tx, limit) + _waits(tx, limit) + _leases(tx, limit)


def _states(tx: Tx, limit: int) -> int:
    """Repair unclaimed workers. Every time in such a row is the time of its last move."""
    columns = (W.c.id, W.c.epoch, W.c.state, W.c.hot_idle_since, W.c.hot_idle_until)
    found = select(*columns).where(W.c.state.in_(words(_UNCLAIMED)), ahead(W.c.state_since))
    rows = _locked(tx, found.order_by(W.c.state_since, W.c.id), limit)
    for row in rows:
        times: dict[str, Any] = {"state_since": now()}
        if row.state == State.IDLE:
            times |= {"ready_at": now()}
        if row.state == State.HOT_IDLE:
            ttl_s = (row.hot_idle_until - row.hot_idle_since).total_seconds()
            times |= {"hot_idle_since": now(), "hot_idle_until": plus(now(), ttl_s)}
        tx.execute(update(W).where(W.c.id == row.id, W.c.epoch == row.epoch).values(**times))
    return len(rows)


def _heartbeats(tx: Tx, limit: int) -> int:
    found = select(W.c.id, W.c.epoch).where(W.c.state.in_(words(CLAIMED)), ahead(W.c.heartbeat_at))
    rows = _locked(tx, found.order_by(W.c.id), limit)
    for row in rows:
        tx.execute(update(W).where(W.c.id == row.id, W.c.epoch == row.epoch).values(heartbeat_at=now()))
    return len(rows)


def _waits(tx: Tx, limit: int) -> int:
    late = R.c.deadline_at > plus(now(), R.c.wait_s + AHEAD_S)
    found = select(R.c.pk, R.c.wait_s).where(R.c.state == word(RequestState.WAITING), late)
    rows = _locked(tx, found.order_by(R.c.created_at, R.c.pk), limit)
    for row in rows:
        times = {"created_at": now(), "deadline_at": plus(now(), float(row.wait_s))}
        tx.execute(update(R).where(R.c.pk == row.pk, R.c.state == RequestState.WAITING).values(**times))
    return len(rows)


def _leases(tx: Tx, limit: int) -> int:
    """Give the holder a whole lease from now, never less than it was promised."""
    late = C.c.lease_expires_at > plus(now(), C.c.lease_s + AHEAD_S)
    found = select(C.c.id).where(C.c.ended_at.is_(None), late)
    ids = [row.id for row in _locked(tx, found.order_by(C.c.id), limit)]
    if ids:
        tx.execute(update(C).where(C.c.id.in_(ids)).values(lease_expires_at=plus(now(), C.c.lease_s)))
    return len(ids)


def _locked(tx: Tx, found: Select[Any], limit: int) -> list[Any]:
    """Lock rows. Rows that another transaction has locked are skipped: it writes a new time."""
    return list(tx.execute(found.limit(limit).with_for_update(skip_locked=True)))
