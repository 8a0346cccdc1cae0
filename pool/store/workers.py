"""Workers: slots, fenced moves, and picking one. Every write names the state and the epoch it expects and reads its row
count; a lost race is a value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Float, Select, bindparam, exists, func, insert, or_, select, update
from sqlalchemy.sql import ClauseElement, Update

from pool.core.ids import OrgId, ProfileName, WorkerId
from pool.core.records import By, Held, SeenWorker
from pool.core.settings import Profile
from pool.core.states import CLAIMABLE, CLAIMED, LIVE, Outcome, State
from pool.store import rows
from pool.store.engine import Tx
from pool.store.schema import breakers as B
from pool.store.schema import claims as C
from pool.store.schema import workers as W
from pool.store.sql import AHEAD_S, now, plus, word, words, younger_than
from pool.store.windows import in_turn, parked_above_floor

_PARKING = {"hot_idle_since": None, "hot_idle_until": None, "parked_counted": False}
# Built once: to build a statement costs more than to send it.
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
    """What a row keeps of its pod."""

    uid: str
    endpoint: str = ""
    node: str = ""

    def columns(self) -> dict[str, Any]:
        return {"pod_uid": self.uid, "endpoint": self.endpoint, "node": self.node or None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """What a row must still be for a write to happen."""

    worker_id: WorkerId
    epoch: int
    states: frozenset[State]

    @classmethod
    def on(cls, worker: SeenWorker) -> Fence:
        """Exactly as seen."""
        return cls(worker_id=worker.id, epoch=worker.epoch, states=frozenset({worker.state}))


def insert_slots(tx: Tx, profile: Profile, revision: str, ids: Sequence[WorkerId], by: By) -> None:
    """New rows in `spawning`. The caller has moved the pool's counter in this same transaction."""
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
    """One fenced move. Leaving `hot_idle` clears its clock."""
    cleared = {} if to is State.HOT_IDLE else _PARKING
    moved = {"state": to, "state_since": now(), **_moved(by)}
    if _write(tx, fence, moved | cleared | columns):
        return Outcome.MOVED
    return Outcome.FENCED if get(tx, fence.worker_id) else Outcome.GONE


def leave(tx: Tx, worker: SeenWorker, to: State, by: By) -> Outcome:
    """Out of use, with or without a holder before."""
    columns = {"epoch": worker.epoch + 1, "claim_id": None} if worker.claim_id else {}
    return move(tx, Fence.on(worker), to, by, **columns)


def beat(tx: Tx, held: Held) -> Outcome:
    """Its activation is alive."""
    fence = Fence(worker_id=held.worker_id, epoch=held.epoch, states=frozenset({State.ACTIVATING, State.HOT}))
    return note(tx, fence, heartbeat_at=now())


def is_silent(tx: Tx, worker_id: WorkerId, *, for_s: float) -> bool:
    """Whether nobody has said for so long that he is at work on it."""
    old = or_(W.c.heartbeat_at.is_(None), W.c.heartbeat_at <= plus(now(), -for_s))
    return tx.execute(select(W.c.id).where(W.c.id == worker_id, old)).first() is not None


def sent_again(tx: Tx, worker: SeenWorker) -> Outcome:
    """Its task was sent once more; the next time is a budget away."""
    return note(tx, Fence.on(worker), sent_at=now())


def has_pod(tx: Tx, worker: SeenWorker, pod: PodFacts) -> Outcome:
    """Confirmation that the slot's pod was made."""
    return note(tx, Fence.on(worker), pod_uid=pod.uid, node=pod.node or None)


def note(tx: Tx, fence: Fence, **columns: Any) -> Outcome:
    """A fenced write that is not a move: heartbeat, pod identity, resend."""
    return Outcome.MOVED if _write(tx, fence, columns) else Outcome.FENCED


def mark_leaving(tx: Tx, worker_id: WorkerId, by: By) -> Outcome:
    """A claimed worker that must leave stays where it is; when its claim ends it drains. Marked once."""
    statement = (
        update(W)
        .where(W.c.id == worker_id, W.c.leaving_since.is_(None), W.c.state.in_(words(CLAIMED)))
        .values(leaving_since=now(), leaving_reason=by.reason, leaving_detail=by.detail, **_moved(by))
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
    """Rows in these states, oldest in their state first."""
    statement = (
        select(*rows.SEEN).where(W.c.state.in_(words(states))).order_by(W.c.state_since, W.c.id).limit(limit)
    )
    if profile is not None:
        statement = statement.where(W.c.profile == profile)
    return [rows.seen(r) for r in tx.execute(statement)]


def parked_unlike(tx: Tx, suffixes: Collection[str], *, limit: int) -> list[SeenWorker]:
    """At most `limit` parked workers whose id has a mark of a key and ends with none of these, the one parked first first."""
    others = (~W.c.id.endswith(suffix, autoescape=True) for suffix in suffixes)
    statement = select(*rows.SEEN).where(W.c.state == word(State.HOT_IDLE), W.c.id.like("%-k______"), *others)
    return [rows.seen(r) for r in tx.execute(statement.order_by(W.c.state_since, W.c.id).limit(limit))]


def slots_older_than(tx: Tx, seconds: float) -> list[WorkerId]:
    """Slots of this age, oldest first."""
    statement = select(W.c.id).where(
        W.c.state == word(State.SPAWNING), W.c.state_since <= plus(now(), -float(seconds))
    )
    return list(tx.execute(statement.order_by(W.c.state_since, W.c.id)).scalars())


def older_than(tx: Tx, seconds: float, *, limit: int) -> list[SeenWorker]:
    """Ready and unclaimed workers of this age, oldest first."""
    statement = (
        select(*rows.SEEN)
        .where(W.c.state.in_(words(CLAIMABLE)), W.c.created_at <= plus(now(), -float(seconds)))
        .order_by(W.c.created_at, W.c.id)
        .limit(limit)
    )
    return [rows.seen(r) for r in tx.execute(statement)]


def newest_like(tx: Tx, suffix: str) -> datetime | None:
    """When the newest of the workers was made that are ready or in use and whose id ends like this."""
    ready = words(CLAIMABLE | CLAIMED)
    found = select(func.max(W.c.created_at)).where(
        W.c.state.in_(ready), W.c.id.endswith(suffix, autoescape=True)
    )
    at: datetime | None = tx.execute(found).scalar_one()
    return at


def parked_past_end(tx: Tx, *, limit: int) -> list[SeenWorker]:
    """Parked workers whose time is over and that no floor keeps, longest overdue first."""
    found = parked_above_floor(W.c.hot_idle_until <= now(), order=W.c.hot_idle_until, limit=limit)
    return [rows.seen(r) for r in tx.execute(found)]


def parked_and_spare(tx: Tx, *, limit: int) -> list[SeenWorker]:
    """Parked workers that no floor keeps, the one parked first first."""
    found = parked_above_floor(order=W.c.state_since, limit=limit)
    return [rows.seen(r) for r in tx.execute(found)]


def undeleted(tx: Tx, *, older_than_s: float, limit: int) -> list[SeenWorker]:
    """Workers that have been draining for this long: the deletion of their pods failed. Of more than fit, each in its turn."""
    draining = select(*rows.SEEN).where(
        W.c.state == word(State.DRAINING), W.c.state_since <= plus(now(), -float(older_than_s))
    )
    return [rows.seen(r) for r in in_turn(tx, draining.order_by(W.c.state_since, W.c.id), limit=limit)]


def oldest_parked(tx: Tx, org: OrgId, *, limit: int) -> list[SeenWorker]:
    """An org's parked workers, the one parked first first."""
    statement = (
        select(*rows.SEEN)
        .where(W.c.state == word(State.HOT_IDLE), W.c.org == org)
        .order_by(W.c.hot_idle_since, W.c.id)
        .limit(limit)
    )
    return [rows.seen(r) for r in tx.execute(statement)]


def idle_since(tx: Tx, profile: ProfileName, *, older_than_s: float, limit: int) -> list[SeenWorker]:
    """Idle workers that have waited so long, the longest first: the tail that surplus is taken from."""
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
    """How many idle workers have waited so long."""
    statement = select(func.count()).where(
        W.c.state == word(State.IDLE), W.c.profile == profile, W.c.ready_at <= plus(now(), -older_than_s)
    )
    return int(tx.execute(statement).scalar_one())


def silent_bindings(tx: Tx, *, for_s: float, limit: int) -> list[SeenWorker]:
    """Claims that are being bound, and of which nobody has said for so long that he is at it. A hot worker whose lease has not begun
    is being bound, too."""
    # A lease starts when its worker is hot: the few claims without one are the first of the index by lease.
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
    """Slots without a pod whose task was sent longer ago than its budget: it got lost."""
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
    """Live rows by profile and state."""
    statement = (
        select(W.c.profile, W.c.state, func.count())
        .where(W.c.state.in_(words(LIVE)))
        .group_by(W.c.profile, W.c.state)
    )
    return {(ProfileName(p), State(s)): n for p, s, n in tx.execute(statement)}


def profiles(tx: Tx) -> list[ProfileName]:
    """The profiles that have live rows. One look into an index each, however many rows there are."""
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
    """Idle workers that became ready no longer ago than this."""
    return set(tx.execute(_JUST_READY, {"profile": profile, "s": -float(within_s)}).scalars())


def _moved(by: By) -> dict[str, Any]:
    """What the trigger writes into the journal."""
    return {"moved_by": by.who, "moved_reason": by.reason, "moved_detail": by.detail}


def _first(tx: Tx, statement: Select[Any]) -> SeenWorker | None:
    row = tx.execute(statement.limit(1).with_for_update(skip_locked=True)).one_or_none()
    return None if row is None else rows.seen(row)


def _write(tx: Tx, fence: Fence, columns: Mapping[str, Any]) -> bool:
    """Whether the row was still what the fence says, and is now this."""
    at_now = frozenset(name for name, value in columns.items() if isinstance(value, now))
    others = {name: value for name, value in columns.items() if name not in at_now}
    worked_out = {name: value for name, value in others.items() if isinstance(value, ClauseElement)}
    given = {name: value for name, value in others.items() if name not in worked_out}
    statement = _fenced(at_now).values(worked_out) if worked_out else _fenced(at_now)
    expected = {"was_id": fence.worker_id, "was_epoch": fence.epoch, "was_in": sorted(fence.states)}
    return tx.execute(statement, given | expected).rowcount == 1


@cache
def _fenced(at_now: frozenset[str]) -> Update:
    """The other columns are those that it is given values of when it is sent."""
    return (
        update(W)
        .where(
            W.c.id == bindparam("was_id"),
            W.c.epoch == bindparam("was_epoch"),
            W.c.state.in_(bindparam("was_in", expanding=True)),
        )
        .values(dict.fromkeys(at_now, now()))
    )
