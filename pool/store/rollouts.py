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

from sqlalchemy import delete, select, tuple_, update
from sqlalchemy.dialects import postgresql

from pool.core.ids import ProfileName
from pool.store.engine import Tx, now
from pool.store.schema import breakers as B
from pool.store.schema import revisions_seen as S
from pool.store.schema import rollouts as T
from pool.store.sql import now as now_sql
from pool.store.sql import younger_than

# How long the wanted build may be unused after a process with an earlier build has asked for its place.
CHALLENGE_S = 30.0
REPEATED_WITHIN_S = 15.0
# A build that was used within this time is in use: its use is recorded more often.
USED_WITHIN_S = 60.0
_NOTED_EVERY_S = 10.0


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
    challenge_seen_at: datetime | None
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
        note_use(tx, {wanted.profile: wanted.revision})
        return True
    if not _is_new(tx, wanted) and known is not None and not _is_unused(tx, known, at):
        return False
    _want(tx, wanted)
    if known is not None:
        # Failures of the previous build do not count against this one.
        tx.execute(delete(B).where(B.c.profile == wanted.profile))
    return True


def note_use(tx: Tx, revisions: Mapping[ProfileName, str]) -> None:
    """Record that a process has these builds, where they are the wanted ones, and withdraw challenges
    against them. Every run of every pass does so: with several processes, a process may get no tick
    of one pass for a while.
    """
    due = T.c.challenged_at.is_not(None) | ~younger_than(T.c.seen_at, _NOTED_EVERY_S)
    same = tuple_(T.c.profile, T.c.revision).in_(list(revisions.items()))
    noted = {"seen_at": now_sql(), "challenged_at": None, "challenge_seen_at": None}
    tx.execute(update(T).where(same, due).values(**noted))


def is_wanted(tx: Tx, wanted: WantedRevision) -> bool:
    """Return whether this build is the wanted one, and change nothing."""
    known = get(tx, wanted.profile)
    return known is None or known.revision == wanted.revision


def used_by_others(tx: Tx, revisions: Mapping[ProfileName, str]) -> list[ProfileName]:
    """Return the profiles whose wanted build is another one and was in use a moment ago."""
    lately = select(T.c.profile, T.c.revision).where(younger_than(T.c.seen_at, USED_WITHIN_S))
    return [ProfileName(p) for p, revision in tx.execute(lately) if revisions.get(ProfileName(p)) != revision]


def _is_new(tx: Tx, wanted: WantedRevision) -> bool:
    """Return whether no process has had this build before, and remember it."""
    row = {"profile": wanted.profile, "revision": wanted.revision, "first_seen_at": now_sql()}
    inserted = postgresql.insert(S).values(**row).on_conflict_do_nothing().returning(S.c.revision)
    return tx.execute(inserted).first() is not None


def _is_unused(tx: Tx, known: Rollout, at: datetime) -> bool:
    """Return whether the wanted build was not used since it was challenged, `CHALLENGE_S` ago. A
    process that has it withdraws the challenge. A challenge that was not repeated for a while begins
    again: during an outage no process could withdraw it.
    """
    since, repeated = known.challenged_at, known.challenge_seen_at
    if since is None or repeated is None or not 0 <= (at - repeated).total_seconds() <= REPEATED_WITHIN_S:
        _set(tx, known.profile, challenged_at=at, challenge_seen_at=at)
        return False
    _set(tx, known.profile, challenge_seen_at=at)
    return (at - since).total_seconds() > CHALLENGE_S


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
    build |= {"since": now_sql(), "seen_at": now_sql(), "proven_at": None}
    build |= {"challenged_at": None, "challenge_seen_at": None}
    inserted = postgresql.insert(T).values(profile=wanted.profile, **build)
    tx.execute(inserted.on_conflict_do_update(index_elements=[T.c.profile], set_=build))


def _set(tx: Tx, profile: ProfileName, **columns: object) -> None:
    tx.execute(update(T).where(T.c.profile == profile).values(**columns))
