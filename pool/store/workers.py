"""The table of workers: slots, fenced moves and selections.

Every write names the state and epoch that it expects and checks the row count; a lost race is a
value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Float, Select, bindparam, exists, func, insert, or_, select, update
from sqlalchemy.sql import ClauseElement, Update

from pool.core.ids import OrgId, ProfileName, WorkerId
from pool.core.records import By, Held, SeenWorker
from pool.core.settings import Profile
from pool.core.states import CLAIMABLE, CLAIMED, LIVE, MoveReason, Outcome, State
from pool.store import rows
from pool.store.engine import Tx
from pool.store.schema import breakers as B
from pool.store.schema import claims as C
from pool.store.schema import workers as W
from pool.store.sql import AHEAD_S, now, plus, word, words, younger_than
from pool.store.windows import in_turn, parked_above_floor

_PARKING = {"hot_idle_since": None, "hot_idle_until": None, "parked_counted": False}
# Built once: building a statement costs more than sending it.
_BY_ID = select(*rows.SEEN).where(W.c.id == bindparam("id"))
_BY_ID_LOCKED = _BY_ID.with_for_update()
_OF_PROFILE = select(W.c.id).where(W.c.profile == bindparam("profile"))
_LATELY = plus(now(), bindparam("s", type_=Float()))
_SOON = plus(now(), AHEAD_S)
_JUST_READY = _OF_PROFILE.where(W.c.state == word(State.IDLE), W.c.ready_at > _LATELY, W.c.ready_at <= _SOON)
_SLOTS = insert(W).values(dict.fromkeys(("created_at", "state_since", "sent_at"), now()))
_SLOT_LOCKED = _BY_ID_LOCKED.add_columns(
    now().label("at"), exists().where(B.c.profile == W.c.profile).label("has_failed")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """The fields of its pod that a row stores."""

    uid: str
    endpoint: str = ""
    node: str = ""

    def columns(self) -> dict[str, Any]:
        return {"pod_uid": self.uid, "endpoint": self.endpoint, "node": self.node or None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The state and epoch that a row must have for a write to succeed."""

    worker_id: WorkerId
    epoch: int
    states: frozenset[State]

    @classmethod
    def on(cls, worker: SeenWorker) -> Fence:
        """Return the fence for a worker as it was read."""
        return cls(worker_id=worker.id, epoch=worker.epoch, states=frozenset({worker.state}))


def insert_slots(tx: Tx, profile: Profile, revision: str, ids: Sequence[WorkerId], by: By) -> None:
    """Insert rows in `spawning`.

    The caller has changed the counter of the pool in the same transaction.
    """
    if not ids:
        return
    shape = {
        "profile": profile.name,
        "image": profile.image,
        "revision": revision,
        "cpu_millicores": profile.cpu_millicores,
        "memory_mib": profile.memory_mib,
        "grace_s": profile.grace_s,
        "state": State.SPAWNING,
        **_moved(by),
    }
    tx.execute(_SLOTS, [shape | {"id": i} for i in ids])


def move(tx: Tx, fence: Fence, to: State, by: By, **columns: Any) -> Outcome:
    """Move a worker if the fence holds. Leaving `hot_idle` clears the fields of parking."""
    cleared = {} if to is State.HOT_IDLE else _PARKING
    moved = {"state": to, "state_since": now(), **_moved(by)}
    if _write(tx, fence, moved | cleared | columns):
        return Outcome.MOVED
    return Outcome.FENCED if get(tx, fence.worker_id) else Outcome.GONE


def leave(tx: Tx, worker: SeenWorker, to: State, by: By) -> Outcome:
    """Take a worker out of use. If it has a holder, its epoch grows."""
    columns = {"epoch": worker.epoch + 1, "claim_id": None} if worker.claim_id else {}
    return move(tx, Fence.on(worker), to, by, **columns)


def record_heartbeat(tx: Tx, held: Held) -> Outcome:
    """Record a heartbeat of an activation."""
    fence = Fence(worker_id=held.worker_id, epoch=held.epoch, states=frozenset({State.ACTIVATING, State.HOT}))
    return write_columns(tx, fence, heartbeat_at=now())


def is_silent(tx: Tx, worker_id: WorkerId, *, for_s: float) -> bool:
    """Return whether the worker had no heartbeat within `for_s` seconds."""
    old = or_(W.c.heartbeat_at.is_(None), W.c.heartbeat_at <= plus(now(), -for_s))
    return tx.execute(select(W.c.id).where(W.c.id == worker_id, old)).first() is not None


def record_resend(tx: Tx, worker: SeenWorker) -> Outcome:
    """Record that the task of this slot was sent again, so that the next resend is a whole budget
    later.
    """
    return write_columns(tx, Fence.on(worker), sent_at=now())


def record_pod(tx: Tx, worker: SeenWorker, pod: PodFacts) -> Outcome:
    """Record the pod that was created for a slot."""
    return write_columns(tx, Fence.on(worker), pod_uid=pod.uid, node=pod.node or None)


def write_columns(tx: Tx, fence: Fence, **columns: Any) -> Outcome:
    """Write columns without a move if the fence holds: heartbeat, pod, resend."""
    return Outcome.MOVED if _write(tx, fence, columns) else Outcome.FENCED


def mark_leaving(tx: Tx, worker_id: WorkerId, by: By) -> Outcome:
    """Mark a claimed worker as leaving, once. It keeps its state and drains when its claim ends.

    A node that is being removed may stay after all, so any other reason replaces that one.
    """
    free: ColumnElement[bool] = W.c.leaving_since.is_(None)
    if by.reason is not MoveReason.DISRUPTED:
        free = or_(free, W.c.leaving_reason == MoveReason.DISRUPTED)
    statement = (
        update(W)
        .where(W.c.id == worker_id, free, W.c.state.in_(words(CLAIMED)))
        .values(
            leaving_since=func.coalesce(W.c.leaving_since, now()),
            leaving_reason=by.reason,
            leaving_detail=by.detail,
            **_moved(by),
        )
    )
    return Outcome.MOVED if tx.execute(statement).rowcount == 1 else Outcome.FENCED


def unmark_disrupted(tx: Tx, worker_id: WorkerId, by: By, *, epoch: int) -> Outcome:
    """Remove the mark of a claimed worker whose node stays, unless it must leave for another reason."""
    statement = (
        update(W)
        .where(
            W.c.id == worker_id,
            W.c.epoch == epoch,
            W.c.leaving_reason == MoveReason.DISRUPTED,
            W.c.state.in_(words(CLAIMED)),
        )
        .values(leaving_since=None, leaving_reason=None, leaving_detail=None, **_moved(by))
    )
    return Outcome.MOVED if tx.execute(statement).rowcount == 1 else Outcome.FENCED


def get(tx: Tx, worker_id: WorkerId) -> SeenWorker | None:
    row = tx.execute(_BY_ID, {"id": worker_id}).one_or_none()
    return None if row is None else rows.seen(row)


def get_many(tx: Tx, worker_ids: Iterable[WorkerId]) -> dict[WorkerId, SeenWorker]:
    found = tx.execute(select(*rows.SEEN).where(W.c.id.in_(list(worker_ids))))
    return {s.id: s for s in map(rows.seen, found)}


def get_for_update(tx: Tx, worker_id: WorkerId) -> SeenWorker | None:
    row = tx.execute(_BY_ID_LOCKED, {"id": worker_id}).one_or_none()
    return None if row is None else rows.seen(row)


def live(
    tx: Tx,
    *,
    states: frozenset[State] = LIVE,
    profile: ProfileName | None = None,
    limit: int | None = None,
) -> list[SeenWorker]:
    """Return rows in these states, longest in their state first."""
    statement = (
        select(*rows.SEEN).where(W.c.state.in_(words(states))).order_by(W.c.state_since, W.c.id).limit(limit)
    )
    if profile is not None:
        statement = statement.where(W.c.profile == profile)
    return [rows.seen(r) for r in tx.execute(statement)]


def parked_unlike(tx: Tx, suffixes: Collection[str], *, limit: int) -> list[SeenWorker]:
    """Return at most `limit` parked workers whose id has the mark of a master key and none of these
    suffixes, first parked first.
    """
    others = (~W.c.id.endswith(suffix, autoescape=True) for suffix in suffixes)
    statement = select(*rows.SEEN).where(W.c.state == word(State.HOT_IDLE), W.c.id.like("%-k______"), *others)
    return [rows.seen(r) for r in tx.execute(statement.order_by(W.c.state_since, W.c.id).limit(limit))]


def slots_older_than(tx: Tx, seconds: float) -> list[WorkerId]:
    """Return slots of at least this age, oldest first."""
    statement = select(W.c.id).where(
        W.c.state == word(State.SPAWNING), W.c.state_since <= plus(now(), -float(seconds))
    )
    return list(tx.execute(statement.order_by(W.c.state_since, W.c.id)).scalars())


def older_than(tx: Tx, seconds: float, *, limit: int) -> list[SeenWorker]:
    """Return unclaimed, ready workers of at least this age, oldest first."""
    statement = (
        select(*rows.SEEN)
        .where(W.c.state.in_(words(CLAIMABLE)), W.c.created_at <= plus(now(), -float(seconds)))
        .order_by(W.c.created_at, W.c.id)
        .limit(limit)
    )
    return [rows.seen(r) for r in tx.execute(statement)]


def newest_like(tx: Tx, suffix: str) -> datetime | None:
    """Return when the newest ready or busy worker with this suffix in its id was created."""
    ready = words(CLAIMABLE | CLAIMED)
    found = select(func.max(W.c.created_at)).where(
        W.c.state.in_(ready), W.c.id.endswith(suffix, autoescape=True)
    )
    at: datetime | None = tx.execute(found).scalar_one()
    return at


def parked_past_end(tx: Tx, *, limit: int) -> list[SeenWorker]:
    """Return parked workers past their TTL that no floor keeps, longest overdue first."""
    found = parked_above_floor(W.c.hot_idle_until <= now(), order=W.c.hot_idle_until, limit=limit)
    return [rows.seen(r) for r in tx.execute(found)]


def parked_and_spare(tx: Tx, *, limit: int) -> list[SeenWorker]:
    """Return parked workers that no floor keeps, first parked first."""
    found = parked_above_floor(order=W.c.state_since, limit=limit)
    return [rows.seen(r) for r in tx.execute(found)]


def undeleted(tx: Tx, *, older_than_s: float, limit: int) -> list[SeenWorker]:
    """Return workers that have been draining for at least this time, because the deletion of their
    pods failed. If there are more than `limit`, each run starts at another row.
    """
    draining = select(*rows.SEEN).where(
        W.c.state == word(State.DRAINING), W.c.state_since <= plus(now(), -float(older_than_s))
    )
    return [rows.seen(r) for r in in_turn(tx, draining.order_by(W.c.state_since, W.c.id), limit=limit)]


def oldest_parked(tx: Tx, org: OrgId, *, limit: int) -> list[SeenWorker]:
    """Return parked workers of an org, first parked first."""
    statement = (
        select(*rows.SEEN)
        .where(W.c.state == word(State.HOT_IDLE), W.c.org == org)
        .order_by(W.c.hot_idle_since, W.c.id)
        .limit(limit)
    )
    return [rows.seen(r) for r in tx.execute(statement)]


def idle_since(tx: Tx, profile: ProfileName, *, older_than_s: float, limit: int) -> list[SeenWorker]:
    """Return workers that have been idle for at least this time, longest first."""
    statement = (
        select(*rows.SEEN)
        .where(
            W.c.state == word(State.IDLE), W.c.profile == profile, W.c.ready_at <= plus(now(), -older_than_s)
        )
        .order_by(W.c.ready_at, W.c.id)
        .limit(limit)
    )
    return [rows.seen(r) for r in tx.execute(statement)]


def count_idle_since(tx: Tx, profile: ProfileName, *, older_than_s: float) -> int:
    """Count the workers that have been idle for at least this time."""
    statement = select(func.count()).where(
        W.c.state == word(State.IDLE), W.c.profile == profile, W.c.ready_at <= plus(now(), -older_than_s)
    )
    return int(tx.execute(statement).scalar_one())


def silent_bindings(tx: Tx, *, for_s: float, limit: int) -> list[SeenWorker]:
    """Return workers that are being bound without a heartbeat within `for_s` seconds.

    A hot worker whose lease has not started is also being bound.
    """
    # A lease starts when its worker is hot. The few claims without one are at the start of the
    # index by lease.
    unleased = (C.c.id == W.c.claim_id) & C.c.ended_at.is_(None) & C.c.lease_expires_at.is_(None)
    statement = (
        select(*rows.SEEN)
        .join(C, unleased)
        .where(W.c.state.in_(words(CLAIMED)), W.c.heartbeat_at <= plus(now(), -float(for_s)))
        .order_by(W.c.heartbeat_at, W.c.id)
        .limit(limit)
    )
    return [rows.seen(r) for r in tx.execute(statement)]


def unsent_slots(tx: Tx, *, older_than_s: float, limit: int) -> list[SeenWorker]:
    """Return slots without a pod whose task was sent longer ago than its budget: the task was lost."""
    statement = (
        select(*rows.SEEN)
        .where(
            W.c.state == word(State.SPAWNING),
            W.c.pod_uid.is_(None),
            ~younger_than(W.c.sent_at, older_than_s),
        )
        .order_by(W.c.sent_at, W.c.id)
        .limit(limit)
    )
    return [rows.seen(r) for r in tx.execute(statement)]


def counts(tx: Tx) -> dict[tuple[ProfileName, State], int]:
    """Count live rows by profile and state."""
    statement = (
        select(W.c.profile, W.c.state, func.count())
        .where(W.c.state.in_(words(LIVE)))
        .group_by(W.c.profile, W.c.state)
    )
    return {(ProfileName(p), State(s)): n for p, s, n in tx.execute(statement)}


def profiles(tx: Tx) -> list[ProfileName]:
    """Return the profiles that have live rows.

    Reads one index entry per profile, whatever the number of rows.
    """
    live, found = W.c.state.in_(words(LIVE)), list[ProfileName]()
    while True:
        after = (W.c.profile > found[-1],) if found else ()
        name = tx.execute(select(func.min(W.c.profile)).where(live, *after)).scalar_one()
        if name is None:
            return found
        found.append(ProfileName(name))


def count(tx: Tx, profile: ProfileName, state: State) -> int:
    statement = select(func.count()).where(W.c.profile == profile, W.c.state == word(state))
    return int(tx.execute(statement).scalar_one())


def ids_in_state(tx: Tx, profile: ProfileName, state: State) -> list[WorkerId]:
    statement = select(W.c.id).where(W.c.profile == profile, W.c.state == word(state))
    return [WorkerId(i) for (i,) in tx.execute(statement)]


def just_ready(tx: Tx, profile: ProfileName, *, within_s: float) -> set[WorkerId]:
    """Return idle workers that became ready within `within_s` seconds."""
    return set(tx.execute(_JUST_READY, {"profile": profile, "s": -float(within_s)}).scalars())


def _moved(by: By) -> dict[str, Any]:
    """Return the columns that the trigger copies into the journal."""
    return {"moved_by": by.who, "moved_reason": by.reason, "moved_detail": by.detail}


def _first(tx: Tx, statement: Select[Any]) -> SeenWorker | None:
    row = tx.execute(statement.limit(1).with_for_update(skip_locked=True)).one_or_none()
    return None if row is None else rows.seen(row)


def _write(tx: Tx, fence: Fence, columns: Mapping[str, Any]) -> bool:
    """Write the columns if the row matches the fence. Return whether it did."""
    at_now = frozenset(name for name, value in columns.items() if isinstance(value, now))
    others = {name: value for name, value in columns.items() if name not in at_now}
    worked_out = {name: value for name, value in others.items() if isinstance(value, ClauseElement)}
    given = {name: value for name, value in others.items() if name not in worked_out}
    statement = _fenced(at_now).values(worked_out) if worked_out else _fenced(at_now)
    expected = {"was_id": fence.worker_id, "was_epoch": fence.epoch, "was_in": sorted(fence.states)}
    return tx.execute(statement, given | expected).rowcount == 1


@cache
def _fenced(at_now: frozenset[str]) -> Update:
    """Return the fenced UPDATE. The other columns are parameters of the execution."""
    return (
        update(W)
        .where(
            W.c.id == bindparam("was_id"),
            W.c.epoch == bindparam("was_epoch"),
            W.c.state.in_(bindparam("was_in", expanding=True)),
        )
        .values(dict.fromkeys(at_now, now()))
    )
