"""The journal of moves: written by triggers, read by people.

Replaying it gives the table of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select

from pool.core.ids import WorkerId
from pool.core.states import MoveReason, State
from pool.store.engine import Tx
from pool.store.schema import journal as J
from pool.store.schema import workers as W


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One move, or one change of holder."""

    id: int
    at: datetime
    worker_id: WorkerId
    from_state: State | None
    to_state: State
    epoch: int
    org: str | None
    claim_id: str | None
    who: str
    reason: MoveReason
    detail: str

    @property
    def is_mark(self) -> bool:
        """Return whether the worker kept its state and was marked as leaving."""
        return self.from_state == self.to_state and not self.is_unmark

    @property
    def is_unmark(self) -> bool:
        """Return whether the worker kept its state and is no longer leaving."""
        return self.reason is MoveReason.NODE_RETURNED


def of(tx: Tx, worker_id: WorkerId, *, newest: int | None = None) -> list[Entry]:
    """Return the entries of a worker, or only the newest, in ascending order."""
    found = tx.execute(select(J).where(J.c.worker_id == worker_id).order_by(J.c.id.desc()).limit(newest))
    return [_entry(r) for r in reversed(list(found))]


def since(tx: Tx, after_id: int = 0, *, limit: int = 1000) -> list[Entry]:
    """Return the entries after this id, in ascending order."""
    found = tx.execute(select(J).where(J.c.id > after_id).order_by(J.c.id).limit(limit))
    return [_entry(r) for r in found]


def latest(tx: Tx, *, limit: int) -> list[Entry]:
    """Return the newest entries, in ascending order."""
    newest = tx.execute(select(J).order_by(J.c.id.desc()).limit(limit))
    return [_entry(r) for r in reversed(list(newest))]


def disagreements(tx: Tx) -> list[str]:
    """Return where replaying the journal does not give the table, one text for each.

    Empty in a healthy pool.
    """
    replayed: dict[str, tuple[str, int, str | None]] = {}
    found = []
    for e in tx.execute(select(J).order_by(J.c.id)):
        before = replayed.get(e.worker_id)
        if (before[0] if before else None) != e.from_state:
            found.append(
                f"{e.worker_id}: entry {e.id} leaves {e.from_state}, the one before ended in {before}"
            )
        replayed[e.worker_id] = (e.to_state, e.epoch, e.claim_id)
    table = {i: (s, n, c) for i, s, n, c in tx.execute(select(W.c.id, W.c.state, W.c.epoch, W.c.claim_id))}
    found += [
        f"{i}: table {table[i]}, journal {replayed.get(i)}" for i in table if replayed.get(i) != table[i]
    ]
    return found


def _entry(row: Row[Any]) -> Entry:
    return Entry(**{**row._mapping, "reason": MoveReason(row.reason)})
