"""Deeds: what was done to the pool and is no move of a worker, with who and why. Drains and retirements are moves and stand in
the journal; pauses, targets, orgs, orphan pods and requests that nobody's key had signed stand here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, select

from pool.store.engine import Tx
from pool.store.schema import REQUEST_REFUSED
from pool.store.schema import deeds as D
from pool.store.sql import now, word


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One thing that was done."""

    id: int
    at: datetime
    who: str
    what: str
    subject: str
    why: str


def record(tx: Tx, what: str, subject: str, *, who: str, why: str) -> None:
    """In the transaction of the deed itself, or right before an effect outside of the database."""
    tx.execute(insert(D).values(at=now(), who=who, what=what, subject=subject, why=why))


def latest(tx: Tx, *, limit: int, refused: int) -> list[AuditEntry]:
    """The newest, oldest of them first; of refused requests a few and beside the others, so that a flood of them hides nothing."""
    found: list[AuditEntry] = []
    for condition, most in (
        (D.c.what != word(REQUEST_REFUSED), limit),
        (D.c.what == word(REQUEST_REFUSED), refused),
    ):
        newest = tx.execute(select(D).where(condition).order_by(D.c.id.desc()).limit(most))
        found += [AuditEntry(**r._mapping) for r in newest]
    return sorted(found, key=lambda deed: deed.id)


def of(tx: Tx, subject: str, *, limit: int = 100) -> list[AuditEntry]:
    """What was done to one thing, oldest first."""
    newest = tx.execute(select(D).where(D.c.subject == subject).order_by(D.c.id.desc()).limit(limit))
    return [AuditEntry(**r._mapping) for r in reversed(list(newest))]
