"""Audit entries: changes to the pool that are not moves of a worker, with actor and reason.

Drains and retirements are moves and are in the journal. Pauses, targets, orgs, orphaned pods and
requests with an invalid signature are here.
"""

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
    """One change, with its actor and reason."""

    id: int
    at: datetime
    who: str
    what: str
    subject: str
    why: str


def record(tx: Tx, what: str, subject: str, *, who: str, why: str) -> None:
    """Write an entry.

    Call it in the transaction of the change, or just before an effect outside of the database.
    """
    tx.execute(insert(D).values(at=now(), who=who, what=what, subject=subject, why=why))


def latest(tx: Tx, *, limit: int, refused: int) -> list[AuditEntry]:
    """Return the newest entries, in ascending order.

    Refused requests have a limit of their own, so that many of them do not hide other entries.
    """
    found: list[AuditEntry] = []
    for condition, most in (
        (D.c.what != word(REQUEST_REFUSED), limit),
        (D.c.what == word(REQUEST_REFUSED), refused),
    ):
        newest = tx.execute(select(D).where(condition).order_by(D.c.id.desc()).limit(most))
        found += [AuditEntry(**r._mapping) for r in newest]
    return sorted(found, key=lambda entry: entry.id)


def of(tx: Tx, subject: str, *, limit: int = 100) -> list[AuditEntry]:
    """Return the newest entries about one subject, in ascending order."""
    newest = tx.execute(select(D).where(D.c.subject == subject).order_by(D.c.id.desc()).limit(limit))
    return [AuditEntry(**r._mapping) for r in reversed(list(newest))]
