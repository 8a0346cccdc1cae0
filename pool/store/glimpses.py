"""Rows as far as their pods are concerned, read as a stream: a pass compares all that live with what the cluster says, and holds a few at a time.

Read inside `Store.snapshot`: all of them are of one moment, so none is seen twice or passed over because it moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import select

from pool.ids import ClaimId, OrgId, ProfileName, WorkerId
from pool.states import LIVE, State
from pool.store.engine import Tx
from pool.store.schema import workers as W

_AT_A_TIME = 2_000


class Glimpse(NamedTuple):
    """A row's side of what it has in common with its pod. The state is the plain word of the table."""

    id: WorkerId
    state: str
    epoch: int
    org: OrgId | None
    claim_id: ClaimId | None
    pod_uid: str | None


def live(tx: Tx, *, states: frozenset[State] = LIVE) -> Iterator[Glimpse]:
    """All rows in these states, in no particular order."""
    statement = select(W.c.id, W.c.state, W.c.epoch, W.c.org, W.c.claim_id, W.c.pod_uid)
    found = tx.execute(statement.where(W.c.state.in_(sorted(states))), execution_options=_STREAMED)
    return map(Glimpse._make, found)


def idle_ids(tx: Tx, profile: ProfileName) -> Iterator[WorkerId]:
    """The idle workers of one profile."""
    statement = select(W.c.id).where(W.c.profile == profile, W.c.state == State.IDLE)
    return tx.execute(statement, execution_options=_STREAMED).scalars()


def live_among(tx: Tx, names: Sequence[str]) -> set[WorkerId]:
    """Which of these are live rows."""
    found: set[WorkerId] = set()
    for at in range(0, len(names), _AT_A_TIME):
        some = names[at : at + _AT_A_TIME]
        statement = select(W.c.id).where(W.c.id.in_(some), W.c.state.in_(sorted(LIVE)))
        found.update(tx.execute(statement).scalars())
    return found


_STREAMED = {"yield_per": _AT_A_TIME}
