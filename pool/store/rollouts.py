"""The wanted build of each profile, and whether a worker of that build has become ready.

A build that no process has had before becomes the wanted one at once. While it is in use, processes
with another build do not create or replace workers, so that the two do not undo each other's work. A
build that was wanted before becomes so again only after no process has used the present one for
`CHALLENGE_S`: a restart of an old replica does not roll the fleet back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql

from pool.core.ids import ProfileName
from pool.store.engine import Tx, now
from pool.store.schema import breakers as B
from pool.store.schema import revisions_seen as S
from pool.store.schema import rollouts as T
from pool.store.sql import AHEAD_S, plus
from pool.store.sql import now as now_sql

# How long the wanted build may be unused after a process with an earlier build has asked for its place.
CHALLENGE_S = 30.0
_NOTED_EVERY_S = 10.0
# An earlier build is remembered for this time.
_REMEMBERED_S = 90 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRevision:
    """The build of a profile in this process's configuration."""

    profile: ProfileName
    revision: str
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The wanted build of a profile's workers."""

    profile: ProfileName
    revision: str
    image: str
    since: datetime
    seen_at: datetime
    challenged_at: datetime | None
    proven_at: datetime | None


def get(tx: Tx, profile: ProfileName) -> Rollout | None:
    row = tx.execute(select(T).where(T.c.profile == profile)).one_or_none()
    return None if row is None else Rollout(**row._mapping)


def every(tx: Tx) -> Mapping[ProfileName, Rollout]:
    return {ProfileName(r.profile): Rollout(**r._mapping) for r in tx.execute(select(T))}


def adopt(tx: Tx, wanted: WantedRevision) -> bool:
    """Make this build the wanted one if it may be. Return whether it is. Call it under
    `lock_reconcile`.
    """
    known, at = get(tx, wanted.profile), now(tx)
    if known is not None and known.revision == wanted.revision:
        unseen_s = (at - known.seen_at).total_seconds()
        if known.challenged_at is not None or not -AHEAD_S <= unseen_s <= _NOTED_EVERY_S:
            _set(tx, wanted.profile, seen_at=at, challenged_at=None)
        return True
    if not _is_new(tx, wanted) and known is not None and not _is_unused(tx, known, at):
        return False
    _want(tx, wanted)
    # Failures of the previous build do not count against this one.
    tx.execute(delete(B).where(B.c.profile == wanted.profile))
    return True


def is_wanted(tx: Tx, wanted: WantedRevision) -> bool:
    """Return whether this build is the wanted one, and change nothing."""
    known = get(tx, wanted.profile)
    return known is None or known.revision == wanted.revision


def _is_new(tx: Tx, wanted: WantedRevision) -> bool:
    """Return whether no process has had this build before, and remember it."""
    old = S.c.first_seen_at < plus(now_sql(), -_REMEMBERED_S)
    tx.execute(delete(S).where(S.c.profile == wanted.profile, old))
    row = {"profile": wanted.profile, "revision": wanted.revision, "first_seen_at": now_sql()}
    inserted = postgresql.insert(S).values(**row).on_conflict_do_nothing().returning(S.c.revision)
    return tx.execute(inserted).first() is not None


def _is_unused(tx: Tx, known: Rollout, at: datetime) -> bool:
    """Return whether the wanted build was not used since it was challenged, `CHALLENGE_S` ago. A
    process that has it withdraws the challenge.
    """
    waited_s = -1.0 if known.challenged_at is None else (at - known.challenged_at).total_seconds()
    if waited_s < 0:
        _set(tx, known.profile, challenged_at=at)
    return waited_s > CHALLENGE_S


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


def _want(tx: Tx, wanted: WantedRevision) -> None:
    build: dict[str, Any] = {"revision": wanted.revision, "image": wanted.image}
    build |= {"since": now_sql(), "seen_at": now_sql(), "proven_at": None, "challenged_at": None}
    inserted = postgresql.insert(T).values(profile=wanted.profile, **build)
    tx.execute(inserted.on_conflict_do_update(index_elements=[T.c.profile], set_=build))


def _set(tx: Tx, profile: ProfileName, **columns: object) -> None:
    tx.execute(update(T).where(T.c.profile == profile).values(**columns))
