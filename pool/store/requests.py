"""Requests: asked, waiting, decided, replied; and the misses that are demand. A request is decided once, in the transaction
of the move that decides it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Float, bindparam, case, cast, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from pool.contract import Acquire, RefusedAnswer
from pool.ids import ClaimId, OrgId, ProfileName, RequestPk
from pool.records import ReplyTo, Request
from pool.states import Reason, RequestState, State
from pool.store import rows
from pool.store.engine import Tx
from pool.store.schema import claims as C
from pool.store.schema import orgs as O
from pool.store.schema import requests as R
from pool.store.schema import workers as W
from pool.store.sql import ahead, now, plus, word, younger_than
from pool.store.windows import in_turn

_OPEN = (RequestState.WAITING, RequestState.BINDING)
_ORGS_CONSIDERED = 50
# To so many places one answer is delivered.
MAX_REPLIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """An org that has somebody waiting."""

    org: OrgId
    usage: float


def insert(tx: Tx, pk: RequestPk, asked: Acquire, reply: ReplyTo) -> bool:
    """The request as waiting, unless this org has used its id before."""
    dialect = postgresql if tx.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(R).values(
        pk=pk,
        org=asked.org,
        request_id=asked.request_id,
        profile=asked.profile,
        lease_s=asked.lease_s,
        ttl_s=asked.ttl_s,
        wait_s=asked.wait_s,
        state=RequestState.WAITING,
        created_at=now(),
        deadline_at=plus(now(), float(asked.wait_s)),
        replies=[[reply.task_id, reply.address]],
    )
    return tx.execute(statement.on_conflict_do_nothing().returning(R.c.pk)).first() is not None


def reopen(tx: Tx, request: Request, reply: ReplyTo) -> None:
    """A refused request is evaluated afresh: it waits from now. Whether it was counted as a miss stays."""
    tx.execute(
        update(R)
        .where(R.c.pk == request.pk, R.c.state == RequestState.REFUSED)
        .values(
            state=RequestState.WAITING,
            reason=None,
            detail=None,
            retry_after_s=None,
            claim_id=None,
            attempts=0,
            created_at=now(),
            deadline_at=plus(now(), float(request.wait_s)),
            decided_at=None,
            replied_at=None,
            replies=[[reply.task_id, reply.address]],
        )
    )


def find(tx: Tx, org: OrgId, request_id: str) -> Request | None:
    """By the caller's own key, locked."""
    return _one(tx.execute(_BY_KEY_LOCKED, {"org": org, "request_id": request_id}).one_or_none())


def find_unlocked(tx: Tx, org: OrgId, request_id: str) -> Request | None:
    """By the caller's own key, as it is now."""
    return _one(tx.execute(_BY_KEY, {"org": org, "request_id": request_id}).one_or_none())


def get(tx: Tx, pk: RequestPk) -> Request | None:
    return _one(tx.execute(_BY_PK, {"pk": pk}).one_or_none())


def add_reply(tx: Tx, request: Request, reply: ReplyTo) -> None:
    """One more place that waits for the answer. The newest few are kept: a caller that asks again and again under new ids reads the last ones."""
    if reply not in request.replies:
        replies = [[r.task_id, r.address] for r in (*request.replies, reply)[-MAX_REPLIES:]]
        tx.execute(update(R).where(R.c.pk == request.pk).values(replies=replies))


def bind(tx: Tx, pk: RequestPk, claim_id: ClaimId) -> bool:
    """Waiting, now with a worker that is being made hot."""
    statement = update(R).where(R.c.pk == pk, R.c.state == word(RequestState.WAITING), _in_time())
    return tx.execute(statement.values(state=RequestState.BINDING, claim_id=claim_id)).rowcount == 1


def grant(tx: Tx, pk: RequestPk, claim_id: ClaimId) -> bool:
    """Decided: yes."""
    statement = update(R).where(R.c.pk == pk, R.c.state.in_(_OPEN), _in_time())
    values = {"state": RequestState.GRANTED, "claim_id": claim_id, "decided_at": now(), "replied_at": None}
    return tx.execute(statement.values(**values)).rowcount == 1


def refuse(tx: Tx, pk: RequestPk, answer: RefusedAnswer, *, frm: Collection[RequestState] = _OPEN) -> bool:
    """Decided: no. A miss that is demand is counted once per request, and again only if it grew stale unused."""
    miss = answer.reason in {Reason.NO_WARM_WORKER, Reason.POOL_CAP}
    missed = {"missed_at": case((R.c.miss_consumed_at.is_(None), now()), else_=R.c.missed_at)} if miss else {}
    statement = (
        update(R)
        .where(R.c.pk == pk, R.c.state.in_(sorted(frm)))
        .values(
            state=RequestState.REFUSED,
            reason=answer.reason,
            detail=answer.detail,
            retry_after_s=answer.retry_after_s,
            claim_id=None,
            decided_at=now(),
            replied_at=None,
            **missed,
        )
    )
    return tx.execute(statement).rowcount == 1


def wait_again(tx: Tx, pk: RequestPk) -> bool:
    """Its activation failed; it waits for another worker."""
    statement = update(R).where(R.c.pk == pk, R.c.state == RequestState.BINDING)
    values = {"state": RequestState.WAITING, "claim_id": None, "attempts": R.c.attempts + 1}
    return tx.execute(statement.values(**values)).rowcount == 1


def spend(tx: Tx, pk: RequestPk, claim_id: ClaimId) -> None:
    """Its claim has ended: it will never be granted again."""
    statement = update(R).where(R.c.pk == pk, R.c.claim_id == claim_id, R.c.state == RequestState.GRANTED)
    tx.execute(statement.values(state=RequestState.SPENT))


def anyone_waiting(tx: Tx, profile: ProfileName) -> bool:
    """Whether an eligible waiter exists for this profile."""
    return tx.execute(_ANYONE, {"profile": profile}).first() is not None


def waits_before(tx: Tx, request: Request) -> bool:
    """Whether an eligible waiter of the same org and profile came before this request."""
    named = {name: getattr(request, name) for name in ("profile", "org", "pk", "created_at")}
    return tx.execute(_BEFORE, named).first() is not None


def queue(tx: Tx, profile: ProfileName) -> list[Queued]:
    """Orgs with an eligible waiter for this profile, in the order in which they are to be served: least use for its weight
    first, ties by the oldest wait."""
    return _queued(tx, _QUEUE, profile)


def servable(tx: Tx, profile: ProfileName) -> list[Queued]:
    """Those of the queue for whom there is a worker now, parked for them or idle."""
    return _queued(tx, _SERVABLE, profile)


def _queued(tx: Tx, statement: Any, profile: ProfileName) -> list[Queued]:
    return [Queued(org=OrgId(o), usage=u) for o, u in tx.execute(statement, {"profile": profile})]


def next_of(tx: Tx, profile: ProfileName, org: OrgId) -> Request | None:
    """The org's oldest eligible waiter, locked; one that somebody else is serving is skipped."""
    return _one(tx.execute(_NEXT, {"profile": profile, "org": org}).one_or_none())


def profiles_waited_for(tx: Tx, org: OrgId) -> list[ProfileName]:
    statement = select(R.c.profile).where(R.c.org == org, R.c.state == word(RequestState.WAITING)).distinct()
    return [ProfileName(p) for (p,) in tx.execute(statement.order_by(R.c.profile))]


def overdue(tx: Tx, *, limit: int) -> list[RequestPk]:
    """Waiters past their deadline."""
    statement = select(R.c.pk).where(R.c.state == word(RequestState.WAITING), R.c.deadline_at <= now())
    return [RequestPk(pk) for (pk,) in tx.execute(statement.order_by(R.c.deadline_at).limit(limit))]


def is_overdue(tx: Tx, pk: RequestPk) -> bool:
    statement = select(R.c.pk).where(
        R.c.pk == pk, R.c.state == word(RequestState.WAITING), R.c.deadline_at <= now()
    )
    return tx.execute(statement.with_for_update()).first() is not None


def still_waiting(tx: Tx, pks: Collection[RequestPk]) -> set[RequestPk]:
    """Which of these wait."""
    waits = select(R.c.pk).where(R.c.pk.in_(pks), R.c.state == word(RequestState.WAITING))
    return set(tx.execute(waits).scalars())


def unreplied(tx: Tx, *, older_than_s: float, limit: int) -> list[RequestPk]:
    """Decided, but nobody has marked the answer as delivered. Of more than fit, each in its turn."""
    statement = select(R.c.pk).where(
        R.c.decided_at.is_not(None), R.c.replied_at.is_(None), ~younger_than(R.c.decided_at, older_than_s)
    )
    ordered = statement.order_by(R.c.decided_at, R.c.pk)
    return [RequestPk(pk) for (pk,) in in_turn(tx, ordered, limit=limit)]


def mark_replied(tx: Tx, pks: Sequence[RequestPk]) -> None:
    statement = update(R).where(R.c.pk.in_(pks), R.c.decided_at.is_not(None), R.c.replied_at.is_(None))
    tx.execute(statement.values(replied_at=now()))


def count_waiting(tx: Tx, profile: ProfileName) -> int:
    """Waiters that a new worker could serve: level demand, counted anew each run."""
    return int(tx.execute(_HOW_MANY, {"profile": profile}).scalar_one())


def waiting(tx: Tx, *, limit: int = 200) -> list[dict[str, Any]]:
    """The waiting line: who waits for what since when, by org and profile, longest first."""
    statement = (
        select(R.c.org, R.c.profile, func.count().label("waiting"), func.min(R.c.created_at).label("since"))
        .where(R.c.state == word(RequestState.WAITING))
        .group_by(R.c.org, R.c.profile)
        .order_by(func.min(R.c.created_at), R.c.org, R.c.profile)
        .limit(limit)
    )
    return [dict(r._mapping) for r in tx.execute(statement)]


def fresh_misses(tx: Tx, profile: ProfileName, *, fresh_s: float) -> list[RequestPk]:
    """Misses that no slot was made for yet, oldest first, locked: they are consumed with the slots."""
    return list(tx.execute(_FRESH_MISSES, {"profile": profile, "s": -float(fresh_s)}).scalars())


def consume_misses(tx: Tx, pks: Sequence[RequestPk]) -> None:
    if pks:
        tx.execute(update(R).where(R.c.pk.in_(pks)).values(miss_consumed_at=now()))


def _in_time() -> Any:
    """A waiter that gave up is not served. What is being bound, and what did not ask to wait, has no deadline to miss."""
    return or_(R.c.deadline_at > now(), R.c.wait_s == 0, R.c.state == RequestState.BINDING)


def _eligible(statement: Any) -> Any:
    """Not past its deadline, its org below its cap; of the profile that is named when it is sent."""
    below_cap = select(O.c.id).where(O.c.id == R.c.org, (O.c.cap == 0) | (O.c.in_use < O.c.cap)).exists()
    waits = R.c.state == word(RequestState.WAITING)
    return statement.where(R.c.profile == bindparam("profile"), waits, R.c.deadline_at > now(), below_cap)


def _waiting_orgs() -> Any:
    return _eligible(select(R.c.org, func.min(R.c.created_at).label("since")))


def _with_a_worker() -> Any:
    of_profile = select(W.c.id).where(W.c.profile == bindparam("profile"))
    parked = of_profile.where(W.c.state == word(State.HOT_IDLE), W.c.org == R.c.org).exists()
    idle = of_profile.where(W.c.state == word(State.IDLE)).exists()
    return or_(idle, parked)


def _in_order(waiting: Any) -> Any:
    live = select(func.count()).where(C.c.org == O.c.id, C.c.ended_at.is_(None)).scalar_subquery()
    usage = cast(case((O.c.cap > 0, O.c.in_use), else_=live), Float) / O.c.weight
    oldest = waiting.group_by(R.c.org).subquery()
    return (
        select(oldest.c.org, usage.label("usage"))
        .join(O, O.c.id == oldest.c.org)
        .order_by(usage, oldest.c.since, oldest.c.org)
        .limit(_ORGS_CONSIDERED)
    )


# Built once: to build one of these costs more than to send it.
_BY_PK = select(R).where(R.c.pk == bindparam("pk"))
_BY_KEY = select(R).where(R.c.org == bindparam("org"), R.c.request_id == bindparam("request_id"))
_BY_KEY_LOCKED = _BY_KEY.with_for_update()
_ANYONE = _eligible(select(R.c.pk)).limit(1)
_HOW_MANY = _eligible(select(func.count()).select_from(R))
_QUEUE = _in_order(_waiting_orgs())
_SERVABLE = _in_order(_waiting_orgs().where(_with_a_worker()))
_FRESH_MISSES = (
    select(R.c.pk)
    .where(
        R.c.profile == bindparam("profile"),
        R.c.missed_at.is_not(None),
        R.c.miss_consumed_at.is_(None),
        R.c.missed_at > plus(now(), bindparam("s", type_=Float())),
        ~ahead(R.c.missed_at),
    )
    .order_by(R.c.missed_at, R.c.pk)
    .with_for_update(skip_locked=True)
)
_BEFORE = (
    _eligible(select(R.c.pk))
    .where(R.c.org == bindparam("org"), R.c.pk != bindparam("pk"), R.c.created_at <= bindparam("created_at"))
    .limit(1)
)
_NEXT = (
    _eligible(select(R))
    .where(R.c.org == bindparam("org"))
    .order_by(R.c.created_at, R.c.pk)
    .limit(1)
    .with_for_update(skip_locked=True, of=R)
)


def _one(row: Any) -> Request | None:
    return None if row is None else rows.request(row)
