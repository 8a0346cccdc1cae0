"""Suspicions: what was seen once and must be seen again before anything is done about it. In the table, since any replica may make the second
observation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import case, delete, select, update
from sqlalchemy.dialects import postgresql

from pool.store.engine import Tx, now
from pool.store.schema import suspects as T
from pool.store.sql import ahead
from pool.store.sql import now as now_sql


class SuspectKind(StrEnum):
    """What is suspected."""

    STAMPED_POD = "stamped_pod"
    # Without a row, and not proven unused: it stays.
    HELD_POD = "held_pod"
    ROW_WITHOUT_POD = "row_without_pod"
    COMPANION = "companion"
    EMPTY_CLUSTER = "empty_cluster"
    PROBE = "probe"
    PROFILE = "profile"
    # Somebody outside refuses what is to be done to one thing: pass, step and thing.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """How often and for how long it has been seen, this time included."""

    runs: int
    age_s: float


def see(tx: Tx, kind: SuspectKind, subject: str, detail: str = "") -> Suspicion:
    """It was seen in this run."""
    first = {"first_seen_at": now_sql(), "last_seen_at": now_sql(), "runs": 0, "detail": detail}
    tx.execute(postgresql.insert(T).values(kind=kind, subject=subject, **first).on_conflict_do_nothing())
    mine = (T.c.kind == kind) & (T.c.subject == subject)
    # A suspicion from before the clock stepped back grows old from now on.
    first_seen = case((ahead(T.c.first_seen_at), now_sql()), else_=T.c.first_seen_at)
    seen = {"runs": T.c.runs + 1, "last_seen_at": now_sql(), "first_seen_at": first_seen, "detail": detail}
    tx.execute(update(T).where(mine).values(**seen))
    before = peek(tx, kind, subject)
    return Suspicion(runs=before.runs - 1, age_s=before.age_s)


def peek(tx: Tx, kind: SuspectKind, subject: str) -> Suspicion:
    """What seeing it now would make of it, without saying so."""
    mine = (T.c.kind == kind) & (T.c.subject == subject)
    row = tx.execute(select(T.c.runs, T.c.first_seen_at).where(mine)).one_or_none()
    if row is None:
        return Suspicion(runs=1, age_s=0.0)
    return Suspicion(runs=row.runs + 1, age_s=(now(tx) - row.first_seen_at).total_seconds())


def forget_others(tx: Tx, kind: SuspectKind, seen: Collection[str], *, among: str = "") -> None:
    """What was not seen this time is no longer suspected: two observations in a row count, not two in a lifetime. `among`: only subjects that begin so."""
    known = subjects(tx, kind, among)
    if gone := known - set(seen):
        tx.execute(delete(T).where(T.c.kind == kind, T.c.subject.in_(gone)))


def subjects(tx: Tx, kind: SuspectKind, among: str = "") -> set[str]:
    """Who is suspected; of those that begin so."""
    known = (s for (s,) in tx.execute(select(T.c.subject).where(T.c.kind == kind)))
    return {s for s in known if s.startswith(among)}


def forget(tx: Tx, kind: SuspectKind, subject: str) -> None:
    tx.execute(delete(T).where(T.c.kind == kind, T.c.subject == subject))


def every(tx: Tx, kind: SuspectKind | None = None) -> list[tuple[str, str, int, str]]:
    """Kind, subject, runs and detail of all that is suspected."""
    statement = select(T.c.kind, T.c.subject, T.c.runs, T.c.detail).order_by(T.c.kind, T.c.subject)
    if kind is not None:
        statement = statement.where(T.c.kind == kind)
    return [(r.kind, r.subject, r.runs, r.detail) for r in tx.execute(statement)]
