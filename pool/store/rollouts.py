"""The wanted build of each profile, and whether a worker of that build has become ready.

The configuration of the process that was started last wins. While it is in use, processes with
another configuration do not create or replace workers, so that the two do not undo each other's
work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql

from pool.core.ids import ProfileName
from pool.store.engine import Tx, now
from pool.store.schema import breakers as B
from pool.store.schema import rollouts as T
from pool.store.sql import AHEAD_S
from pool.store.sql import now as now_sql

# A configuration that no process has used for this time is no longer the wanted one.
SILENT_S = 60.0
_NOTED_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRevision:
    """The build of a profile in this process's configuration, and when the process was started, by
    the database's clock.
    """

    profile: ProfileName
    revision: str
    image: str
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The wanted build of a profile's workers."""

    profile: ProfileName
    revision: str
    image: str
    since: datetime
    started_at: datetime
    seen_at: datetime
    proven_at: datetime | None


def get(tx: Tx, profile: ProfileName) -> Rollout | None:
    row = tx.execute(select(T).where(T.c.profile == profile)).one_or_none()
    return None if row is None else Rollout(**row._mapping)


def every(tx: Tx) -> Mapping[ProfileName, Rollout]:
    return {ProfileName(r.profile): Rollout(**r._mapping) for r in tx.execute(select(T))}


def adopt(tx: Tx, wanted: WantedRevision) -> bool:
    """Make this process's build of the profile the wanted one if this process was started later, or
    if the other configuration was not used for `SILENT_S`. Return whether it is the wanted one.
    Call it under `lock_reconcile`.
    """
    known = get(tx, wanted.profile)
    if known is None:
        _insert(tx, wanted)
        return True
    at = now(tx)
    silent_s = (at - known.seen_at).total_seconds()
    if known.revision == wanted.revision:
        if not -AHEAD_S <= silent_s <= _NOTED_EVERY_S or wanted.started_at > known.started_at:
            later = max(known.started_at, wanted.started_at)
            _set(tx, wanted.profile, seen_at=at, started_at=later)
        return True
    if wanted.started_at < known.started_at and -AHEAD_S <= silent_s <= SILENT_S:
        return False
    build = {"revision": wanted.revision, "image": wanted.image, "started_at": wanted.started_at}
    _set(tx, wanted.profile, since=at, seen_at=at, proven_at=None, **build)
    # Failures of the previous build do not count against this one.
    tx.execute(delete(B).where(B.c.profile == wanted.profile))
    return True


def prove(tx: Tx, profile: ProfileName) -> None:
    """Record that a worker of the wanted build has been ready."""
    tx.execute(update(T).where(T.c.profile == profile, T.c.proven_at.is_(None)).values(proven_at=now_sql()))


def replaces(tx: Tx, profile: ProfileName, revision: str) -> bool:
    """Return whether workers of this build are to be replaced: another build is wanted, has become
    ready, and does not fail now.
    """
    failing = select(B.c.profile).where(B.c.profile == T.c.profile).exists()
    statement = select(T.c.profile).where(
        T.c.profile == profile, T.c.revision != revision, T.c.proven_at.is_not(None), ~failing
    )
    return tx.execute(statement).first() is not None


def _insert(tx: Tx, wanted: WantedRevision) -> None:
    row = {"profile": wanted.profile, "revision": wanted.revision, "image": wanted.image}
    stamps = {"since": now_sql(), "started_at": wanted.started_at, "seen_at": now_sql()}
    tx.execute(postgresql.insert(T).values(**row, **stamps).on_conflict_do_nothing())


def _set(tx: Tx, profile: ProfileName, **columns: object) -> None:
    tx.execute(update(T).where(T.c.profile == profile).values(**columns))
