"""Read all live rows, page by page, with the fields that passes compare with pods.

The pages are in an order that no move changes, and each page is a statement of its own. So every
row that is live throughout is read once, in its state at that time, and no transaction stays open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeVar

from sqlalchemy import func, literal, select, tuple_

from pool.core.ids import ClaimId, OrgId, ProfileName, WorkerId
from pool.core.states import CLAIMED, LIVE, MoveReason, State
from pool.store.engine import Tx
from pool.store.schema import workers as W
from pool.store.sql import now, plus, words

T = TypeVar("T", bound=str)

_AT_A_TIME = 2_000


class ScannedRow(NamedTuple):
    """The fields of a row that its pod's labels and annotations repeat.

    `state` is the text of the column.
    """

    id: WorkerId
    state: str
    epoch: int
    org: OrgId | None
    claim_id: ClaimId | None
    pod_uid: str | None


def live(tx: Tx, *, states: frozenset[State] = LIVE) -> Iterator[ScannedRow]:
    """Yield all rows in these states."""
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


def disrupted(tx: Tx, *, for_s: float) -> Sequence[ScannedRow]:
    """Return the claimed workers that have been marked as disrupted for at least this number of seconds."""
    found = select(W.c.id, W.c.state, W.c.epoch, W.c.org, W.c.claim_id, W.c.pod_uid).where(
        W.c.state.in_(words(CLAIMED)),
        W.c.leaving_since <= plus(now(), -for_s),
        W.c.leaving_reason == MoveReason.DISRUPTED,
    )
    return [ScannedRow._make(row) for row in tx.execute(found.order_by(W.c.id))]


def unmarked_among(tx: Tx, names: Sequence[str]) -> list[WorkerId]:
    """Return which of these names are claimed workers that are not marked as leaving."""
    found: list[WorkerId] = []
    for some in _pages(names):
        asked = select(W.c.id).where(
            W.c.id.in_(some), W.c.state.in_(words(CLAIMED)), W.c.leaving_since.is_(None)
        )
        found += tx.execute(asked.order_by(W.c.id)).scalars()
    return found


def ids_in(tx: Tx, profile: ProfileName, states: Collection[State]) -> Sequence[WorkerId]:
    """Return the workers of one profile in these states, in an order that no move changes."""
    asked = select(W.c.id).where(W.c.profile == profile, W.c.state.in_(words(states))).order_by(W.c.id)
    return tx.execute(asked).scalars().all()


def live_among(tx: Tx, names: Sequence[str]) -> set[WorkerId]:
    """Return which of these names are live rows."""
    found: set[WorkerId] = set()
    for some in _pages(names):
        statement = select(W.c.id).where(W.c.id.in_(some), W.c.state.in_(words(LIVE)))
        found.update(tx.execute(statement).scalars())
    return found


def unmoved_for(tx: Tx, ids: Sequence[WorkerId], seconds: float) -> int:
    """Count the workers that have been in their state for more than this number of seconds."""
    count = select(func.count()).select_from(W).where(W.c.state_since < plus(now(), -float(seconds)))
    return sum(tx.execute(count.where(W.c.id.in_(some))).scalar_one() for some in _pages(ids))


def _pages(names: Sequence[T]) -> Iterator[Sequence[T]]:
    return (names[at : at + _AT_A_TIME] for at in range(0, len(names), _AT_A_TIME))
