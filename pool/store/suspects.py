"""Suspicions: observations that must be made twice before a pass acts on them.

They are in the database, because any replica may make the second observation.
"""

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

# Consecutive failed probes after which a worker is unhealthy: unclaimed it is drained, in use it is reported.
PROBE_FAILURES = 3


class SuspectKind(StrEnum):
    """The kind of observation."""

    STAMPED_POD = "stamped_pod"
    # A pod without a row that reports an open session: it is kept. The subject is `pod_subject`.
    HELD_POD = "held_pod"
    # A pod without a row that does not answer: it is kept until an operator releases it.
    SILENT_POD = "silent_pod"
    # A silent pod that an operator has released. The detail is the operator.
    RELEASED_POD = "released_pod"
    ROW_WITHOUT_POD = "row_without_pod"
    COMPANION = "companion"
    EMPTY_CLUSTER = "empty_cluster"
    PROBE = "probe"
    PROFILE = "profile"
    # A step that another system refuses for one item. The subject is pass, step and item.
    REFUSED = "refused"
    # What is wrong or unknown about the time that nodes wait for busy workers. The subject is the finding's id.
    NODE_CEILING = "node_ceiling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """How often and how long it was observed, including this time."""

    runs: int
    age_s: float


def pod_subject(name: str, uid: str) -> str:
    """Return the subject of a held, silent or released pod: one pod, not a later one of its name."""
    return f"{name}/{uid}"


def see(tx: Tx, kind: SuspectKind, subject: str, detail: str = "") -> Suspicion:
    """Record an observation of this run."""
    first = {"first_seen_at": now_sql(), "last_seen_at": now_sql(), "runs": 0, "detail": detail}
    tx.execute(postgresql.insert(T).values(kind=kind, subject=subject, **first).on_conflict_do_nothing())
    mine = (T.c.kind == kind) & (T.c.subject == subject)
    # A suspicion from before the clock stepped back is as old as this observation.
    first_seen = case((ahead(T.c.first_seen_at), now_sql()), else_=T.c.first_seen_at)
    seen = {"runs": T.c.runs + 1, "last_seen_at": now_sql(), "first_seen_at": first_seen, "detail": detail}
    tx.execute(update(T).where(mine).values(**seen))
    before = peek(tx, kind, subject)
    return Suspicion(runs=before.runs - 1, age_s=before.age_s)


def peek(tx: Tx, kind: SuspectKind, subject: str) -> Suspicion:
    """Return what `see` would return, without recording."""
    mine = (T.c.kind == kind) & (T.c.subject == subject)
    row = tx.execute(select(T.c.runs, T.c.first_seen_at).where(mine)).one_or_none()
    if row is None:
        return Suspicion(runs=1, age_s=0.0)
    return Suspicion(runs=row.runs + 1, age_s=(now(tx) - row.first_seen_at).total_seconds())


def forget_others(tx: Tx, kind: SuspectKind, seen: Collection[str], *, among: str = "") -> None:
    """Delete suspicions that were not observed this time, because only consecutive observations count.

    `among` restricts it to subjects with this prefix.
    """
    known = subjects(tx, kind, among)
    if gone := known - set(seen):
        tx.execute(delete(T).where(T.c.kind == kind, T.c.subject.in_(gone)))


def subjects(tx: Tx, kind: SuspectKind, among: str = "") -> set[str]:
    """Return the suspected subjects with this prefix."""
    known = (s for (s,) in tx.execute(select(T.c.subject).where(T.c.kind == kind)))
    return {s for s in known if s.startswith(among)}


def forget(tx: Tx, kind: SuspectKind, subject: str) -> None:
    tx.execute(delete(T).where(T.c.kind == kind, T.c.subject == subject))


def every(tx: Tx, kind: SuspectKind | None = None) -> list[tuple[str, str, int, str]]:
    """Return kind, subject, runs and detail of all suspicions."""
    statement = select(T.c.kind, T.c.subject, T.c.runs, T.c.detail).order_by(T.c.kind, T.c.subject)
    if kind is not None:
        statement = statement.where(T.c.kind == kind)
    return [(r.kind, r.subject, r.runs, r.detail) for r in tx.execute(statement)]
