"""Live workers of a profile by build: counts for the progress of a rollout, and the workers to replace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, func, select

from pool.core.ids import ProfileName, WorkerId
from pool.core.states import ENTRY, LIVE, State
from pool.store.engine import Tx
from pool.store.schema import workers as W
from pool.store.sql import word, words

_LIVE = W.c.state.in_(words(LIVE))
_ENDS = select(func.min(W.c.revision), func.max(W.c.revision)).where(
    _LIVE, W.c.profile == bindparam("profile")
)


@dataclass(frozen=True, slots=True)
class Old:
    """An unclaimed worker of another build than the wanted one, with the fields that the choice needs."""

    id: WorkerId
    state: State
    has_pod: bool
    ready_at: datetime


def by_state(tx: Tx, profile: ProfileName) -> dict[tuple[str, State], int]:
    """Count live rows by revision and state."""
    statement = select(W.c.revision, W.c.state, func.count()).where(_LIVE, W.c.profile == profile)
    return {
        (r, State(s)): n for r, s, n in tx.execute(statement.group_by(W.c.profile, W.c.revision, W.c.state))
    }


def others_live(tx: Tx, profile: ProfileName, wanted: str) -> bool:
    """Return whether any live worker has another build.

    Reads only the two ends of an index, so the cost does not depend on the number of workers.
    """
    return bool({*tx.execute(_ENDS, {"profile": profile}).one()} - {wanted, None})


def has_been_ready(tx: Tx, profile: ProfileName, revision: str) -> bool:
    """Return whether a live worker of this build has become ready."""
    statement = select(W.c.id).where(
        _LIVE, W.c.profile == profile, W.c.revision == revision, W.c.ready_at.is_not(None)
    )
    return tx.execute(statement.order_by(W.c.id).limit(1)).first() is not None


def of_idle(tx: Tx, profile: ProfileName) -> Iterator[tuple[WorkerId, str]]:
    """Yield each idle worker with its build."""
    statement = select(W.c.id, W.c.revision).where(W.c.profile == profile, W.c.state == word(State.IDLE))
    return ((worker_id, revision) for worker_id, revision in tx.execute(statement))


def others_unclaimed(tx: Tx, profile: ProfileName, wanted: str) -> list[Old]:
    """Return the unclaimed workers of other builds, longest in their state first."""
    columns = (
        W.c.id,
        W.c.state,
        W.c.pod_uid.is_not(None),
        func.coalesce(W.c.ready_at, W.c.created_at, type_=W.c.created_at.type),
    )
    statement = (
        select(*columns)
        .where(_LIVE, W.c.profile == profile, W.c.revision != wanted, W.c.state.in_(words(ENTRY)))
        .order_by(W.c.state_since, W.c.id)
    )
    return [Old(i, State(s), p, at) for i, s, p, at in tx.execute(statement)]
