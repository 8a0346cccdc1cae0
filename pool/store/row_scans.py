"""Rows as far as their pods are concerned, read as a stream: a pass compares all that live with what the cluster says, and holds a few at a time.

They are read page by page in an order that no move changes, each page a statement of its own: every row that lives throughout is met once, as it is then, and no
transaction is held open meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from sqlalchemy import func, literal, select, tuple_

from pool.core.ids import ClaimId, OrgId, ProfileName, WorkerId
from pool.core.states import CLAIMABLE, LIVE, State
from pool.store.engine import Tx
from pool.store.schema import workers as W
from pool.store.sql import now, plus, word, words

T = TypeVar("T", bound=str)

_AT_A_TIME = 2_000


class ScannedRow(NamedTuple):
    """A row's side of what it has in common with its pod. The state is the plain word of the table."""

    id: WorkerId
    state: str
    epoch: int
    org: OrgId | None
    claim_id: ClaimId | None
    pod_uid: str | None


def live(tx: Tx, *, states: frozenset[State] = LIVE) -> Iterator[ScannedRow]:
    """All rows in these states."""
    columns = (W.c.id, W.c.state, W.c.epoch, W.c.org, W.c.claim_id, W.c.pod_uid)
    place = (W.c.profile, W.c.revision, W.c.id)
    page = select(*columns, W.c.profile, W.c.revision).where(W.c.state.in_(words(states)))
    page = page.order_by(*place).limit(_AT_A_TIME)
    statement = page
    while found := tx.execute(statement).all():
        for row in found:
            yield ScannedRow._make(row[: len(columns)])
        last = found[-1]
        statement = page.where(
            tuple_(*place) > tuple_(literal(last.profile), literal(last.revision), literal(last.id))
        )


def idle_ids(tx: Tx, profile: ProfileName) -> Iterator[WorkerId]:
    """The idle workers of one profile, of one moment."""
    asked = select(W.c.id).where(W.c.profile == profile, W.c.state == word(State.IDLE))
    for some in tx.execute(asked).scalars().partitions(_AT_A_TIME):
        yield from some


def claimable_ids(tx: Tx, profile: ProfileName) -> Sequence[WorkerId]:
    """The unclaimed workers of one profile, in an order that no move changes."""
    asked = select(W.c.id).where(W.c.profile == profile, W.c.state.in_(words(CLAIMABLE))).order_by(W.c.id)
    return tx.execute(asked).scalars().all()


def live_among(tx: Tx, names: Sequence[str]) -> set[WorkerId]:
    """Which of these are live rows."""
    found: set[WorkerId] = set()
    for some in _pages(names):
        statement = select(W.c.id).where(W.c.id.in_(some), W.c.state.in_(words(LIVE)))
        found.update(tx.execute(statement).scalars())
    return found


def unmoved_for(tx: Tx, ids: Sequence[WorkerId], seconds: float) -> int:
    """How many of these have been in their state for longer than this."""
    count = select(func.count()).select_from(W).where(W.c.state_since < plus(now(), -float(seconds)))
    return sum(tx.execute(count.where(W.c.id.in_(some))).scalar_one() for some in _pages(ids))


def _pages(names: Sequence[T]) -> Iterator[Sequence[T]]:
    return (names[at : at + _AT_A_TIME] for at in range(0, len(names), _AT_A_TIME))
