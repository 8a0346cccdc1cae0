"""The state of each pass: last attempt, last success, holder, and whether it is paused.

All times are by the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.dialects import postgresql

from pool.store.engine import Tx
from pool.store.schema import passes as T
from pool.store.sql import now, younger_than


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """The stored state of one pass."""

    name: str
    last_attempt_at: datetime | None = None
    last_success_at: datetime | None = None
    last_outcome: str | None = None
    last_detail: str | None = None
    last_duration_s: float | None = None
    last_actions: int | None = None
    holder: str | None = None
    failures: int = 0
    paused: bool = False
    paused_by: str | None = None


_FIELDS = tuple(f.name for f in fields(PassRow))


def seed(tx: Tx, name: str) -> None:
    tx.execute(postgresql.insert(T).values(name=name).on_conflict_do_nothing())


def get(tx: Tx, name: str) -> PassRow:
    row = tx.execute(select(T).where(T.c.name == name)).one_or_none()
    return PassRow(name=name) if row is None else _row(row)


def every(tx: Tx) -> dict[str, PassRow]:
    return {r.name: _row(r) for r in tx.execute(select(T))}


def attempt(tx: Tx, name: str, holder: str, *, not_within_s: float) -> bool:
    """Record an attempt.

    Return False if the pass is paused, or if the last attempt is younger than `not_within_s`.
    """
    seed(tx, name)
    young = younger_than(T.c.last_attempt_at, not_within_s)
    statement = update(T).where(T.c.name == name, ~T.c.paused, or_(T.c.last_attempt_at.is_(None), ~young))
    return tx.execute(statement.values(last_attempt_at=now(), holder=holder)).rowcount == 1


def succeeded(tx: Tx, name: str, *, detail: str, actions: int, duration_s: float) -> None:
    """Record a successful run."""
    seed(tx, name)
    tx.execute(
        update(T)
        .where(T.c.name == name)
        .values(
            last_success_at=now(),
            last_outcome="ok",
            last_detail=detail,
            last_actions=actions,
            last_duration_s=duration_s,
            failures=0,
        )
    )


def failed(tx: Tx, name: str, *, outcome: str, detail: str) -> int:
    """Record a failed run and return the number of consecutive failures."""
    seed(tx, name)
    statement = update(T).where(T.c.name == name)
    statement = statement.values(last_outcome=outcome, last_detail=detail, failures=T.c.failures + 1)
    return int(tx.execute(statement.returning(T.c.failures)).scalar_one())


def silent_for(tx: Tx, name: str, seconds: float) -> bool:
    """Return whether the pass is not paused and had no success within `seconds`."""
    young = younger_than(T.c.last_success_at, seconds)
    return tx.execute(select(T.c.name).where(T.c.name == name, or_(T.c.paused, young))).first() is None


def set_paused(tx: Tx, name: str, *, paused: bool, by: str) -> None:
    seed(tx, name)
    tx.execute(update(T).where(T.c.name == name).values(paused=paused, paused_by=by if paused else None))


def _row(row: Any) -> PassRow:
    return PassRow(**{k: row._mapping[k] for k in _FIELDS})
