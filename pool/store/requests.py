"""The table of requests: open, decided, replied; and the misses that count as demand.

A request is decided once, in the transaction of the move that decides it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ARRAY, Text, bindparam, cast, func, select, update
from sqlalchemy.dialects.postgresql import JSONB

from pool.core.ids import OrgId, ProfileName, RequestPk
from pool.core.records import Request
from pool.core.states import RequestState
from pool.store import rows
from pool.store.engine import Tx
from pool.store.schema import requests as R
from pool.store.sql import now, word, younger_than
from pool.store.windows import in_turn

# Highest number of reply addresses of one request.
MAX_REPLIES = 16


def find_unlocked(tx: Tx, org: OrgId, request_id: str) -> Request | None:
    """Find a request by the caller's request id, without a lock."""
    return _one(tx.execute(_BY_KEY, {"org": org, "request_id": request_id}).one_or_none())


def get(tx: Tx, pk: RequestPk) -> Request | None:
    return _one(tx.execute(_BY_PK, {"pk": pk}).one_or_none())


def profiles_waited_for(tx: Tx, org: OrgId) -> list[ProfileName]:
    statement = select(R.c.profile).where(R.c.org == org, R.c.state == word(RequestState.WAITING)).distinct()
    return [ProfileName(p) for (p,) in tx.execute(statement.order_by(R.c.profile))]


def waited_for(tx: Tx, profiles: Collection[str]) -> list[ProfileName]:
    """Return those of these profiles that a request waits for."""
    name = func.unnest(bindparam("profiles", list(profiles), type_=ARRAY(Text))).column_valued("name")
    waits = select(R.c.pk).where(R.c.profile == name, R.c.state == word(RequestState.WAITING)).exists()
    return [ProfileName(p) for p in tx.execute(select(name).where(waits)).scalars()]


def overdue(tx: Tx, *, limit: int) -> list[RequestPk]:
    """Return waiters past their deadline."""
    statement = select(R.c.pk).where(R.c.state == word(RequestState.WAITING), R.c.deadline_at <= now())
    return [RequestPk(pk) for (pk,) in tx.execute(statement.order_by(R.c.deadline_at).limit(limit))]


def still_waiting(tx: Tx, pks: Collection[RequestPk]) -> set[RequestPk]:
    """Return which of these requests wait."""
    waits = select(R.c.pk).where(R.c.pk.in_(pks), R.c.state == word(RequestState.WAITING))
    return set(tx.execute(waits).scalars())


def waiting_for_tasks(tx: Tx, task_ids: Sequence[str]) -> list[tuple[OrgId, str]]:
    """Return the org and the request id of waiting requests that these Celery tasks sent."""
    found = []
    for task_id in task_ids:
        sent = cast(cast(R.c.replies, Text), JSONB).contains([[task_id]])
        statement = select(R.c.org, R.c.request_id).where(R.c.state == word(RequestState.WAITING), sent)
        found += [(OrgId(org), request_id) for org, request_id in tx.execute(statement)]
    return found


def unreplied(tx: Tx, *, older_than_s: float, limit: int) -> list[RequestPk]:
    """Return requests that are decided, but whose answer is not marked as delivered.

    If there are more than `limit`, each run starts at another row.
    """
    statement = select(R.c.pk).where(
        R.c.decided_at.is_not(None), R.c.replied_at.is_(None), ~younger_than(R.c.decided_at, older_than_s)
    )
    ordered = statement.order_by(R.c.decided_at, R.c.pk)
    return [RequestPk(pk) for (pk,) in in_turn(tx, ordered, limit=limit)]


def mark_replied(tx: Tx, pks: Sequence[RequestPk]) -> None:
    statement = update(R).where(R.c.pk.in_(pks), R.c.decided_at.is_not(None), R.c.replied_at.is_(None))
    tx.execute(statement.values(replied_at=now()))


def waiting(tx: Tx, *, limit: int = 200) -> list[dict[str, Any]]:
    """Return the number of waiters and the oldest wait by org and profile, oldest first."""
    statement = (
        select(R.c.org, R.c.profile, func.count().label("waiting"), func.min(R.c.created_at).label("since"))
        .where(R.c.state == word(RequestState.WAITING))
        .group_by(R.c.org, R.c.profile)
        .order_by(func.min(R.c.created_at), R.c.org, R.c.profile)
        .limit(limit)
    )
    return [dict(r._mapping) for r in tx.execute(statement)]


def consume_misses(tx: Tx, pks: Sequence[RequestPk]) -> None:
    if pks:
        tx.execute(update(R).where(R.c.pk.in_(pks)).values(miss_consumed_at=now()))


# Built once: to build one of these costs more than to send it.
_BY_PK = select(R).where(R.c.pk == bindparam("pk"))
_BY_KEY = select(R).where(R.c.org == bindparam("org"), R.c.request_id == bindparam("request_id"))


def _one(row: Any) -> Request | None:
    return None if row is None else rows.request(row)
