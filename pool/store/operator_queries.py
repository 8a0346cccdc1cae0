"""Reads for people: bounded, indexed, never for deciding. Each is one statement, so that a page costs a known number of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, or_, select

from pool.core.ids import OrgId, ProfileName, WorkerId
from pool.core.records import Claim, Org, Request, SeenWorker
from pool.core.states import CLAIMED, LIVE, RequestState, State
from pool.store import rows
from pool.store.engine import Tx
from pool.store.schema import claims as C
from pool.store.schema import journal as J
from pool.store.schema import orgs as O
from pool.store.schema import requests as R
from pool.store.schema import workers as W
from pool.store.sql import minutes_ago, now, plus, word

_UNUSED = frozenset(LIVE - CLAIMED)


@dataclass(frozen=True, slots=True)
class Cell:
    """What a picture of the fleet needs of one worker."""

    id: str
    profile: str
    state: str
    org: str | None
    leaving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFilter:
    """Which rows somebody wants to see. Empty: all."""

    profile: str = ""
    org: str = ""
    node: str = ""
    states: Collection[State] = LIVE
    limit: int = 500


@dataclass(frozen=True, slots=True)
class Moves:
    """How many workers of a profile went from one state to another in one minute."""

    minutes_ago: int
    profile: str
    frm: str | None
    to: str
    count: int


@dataclass(frozen=True, slots=True)
class Unused:
    """What the unclaimed workers of one profile and state keep reserved."""

    profile: str
    state: str
    workers: int
    cpu_millicores: int
    memory_mib: int


def cells(tx: Tx, ids: Collection[str] | None = None) -> list[Cell]:
    """Every live worker; or these, whatever has become of them."""
    statement = select(W.c.id, W.c.profile, W.c.state, W.c.org, W.c.leaving_since.is_not(None))
    if ids is None:
        found = statement.where(W.c.state.in_(sorted(LIVE))).order_by(W.c.created_at, W.c.id)
    else:
        found = statement.where(W.c.id.in_(list(ids))).order_by(W.c.created_at, W.c.id)
    return [Cell(i, p, s, o, bool(leaving)) for i, p, s, o, leaving in tx.execute(found)]


def last_entry(tx: Tx) -> int:
    """The journal's newest number."""
    return int(tx.execute(select(func.coalesce(func.max(J.c.id), 0))).scalar_one())


def moved_since(tx: Tx, entry: int, *, limit: int) -> list[tuple[int, WorkerId]]:
    """Which workers the journal has entries about after this one, oldest first."""
    statement = select(J.c.id, J.c.worker_id).where(J.c.id > entry).order_by(J.c.id).limit(limit)
    return [(i, WorkerId(w)) for i, w in tx.execute(statement)]


def workers(tx: Tx, wanted: ListFilter) -> list[SeenWorker]:
    """Newest last, at most `limit`."""
    statement = select(W).where(W.c.state.in_(sorted(wanted.states)))
    named = ((W.c.profile, wanted.profile), (W.c.org, wanted.org), (W.c.node, wanted.node))
    for column, value in named:
        if value:
            statement = statement.where(column == value)
    return [rows.seen(r) for r in tx.execute(statement.order_by(W.c.created_at, W.c.id).limit(wanted.limit))]


def named_like(tx: Tx, start: str, *, limit: int = 10) -> list[WorkerId]:
    """Workers whose id begins so; the range is what an index can search in."""
    statement = select(W.c.id).where(W.c.id >= start, W.c.id < start + "~").order_by(W.c.id).limit(limit)
    return [WorkerId(i) for (i,) in tx.execute(statement)]


def live_claims(tx: Tx, *, org: str = "", limit: int = 500) -> list[Claim]:
    """Soonest to expire first."""
    statement = select(C).where(C.c.ended_at.is_(None))
    if org:
        statement = statement.where(C.c.org == org)
    return [rows.claim(r) for r in tx.execute(statement.order_by(C.c.lease_expires_at, C.c.id).limit(limit))]


def claims_of(tx: Tx, journalled: Collection[str]) -> list[tuple[Claim, Request | None]]:
    """These claims with the requests that asked for them, oldest first."""
    if not journalled:
        return []
    statement = select(C).where(C.c.id.in_(list(journalled))).order_by(C.c.epoch)
    found = [rows.claim(r) for r in tx.execute(statement)]
    asked = {r.pk: r for r in _requests(tx, select(R).where(R.c.pk.in_([c.request_pk for c in found])))}
    return [(c, asked.get(c.request_pk)) for c in found]


def open_requests(tx: Tx, *, org: str = "", limit: int = 500) -> list[Request]:
    """Those without an answer, longest waiting first: the waiting line, and those whose worker is being made hot. Ended requests are many and
    have no part in either search."""
    waiting = select(R).where(R.c.state == RequestState.WAITING)
    unleased = (
        select(C.c.request_pk).where(C.c.ended_at.is_(None), C.c.lease_expires_at.is_(None)).limit(limit)
    )
    binding = select(R).where(R.c.pk.in_(unleased), R.c.state == RequestState.BINDING)
    if org:
        waiting, binding = waiting.where(R.c.org == org), binding.where(R.c.org == org)
    found = [*_requests(tx, waiting.order_by(R.c.created_at, R.c.pk).limit(limit)), *_requests(tx, binding)]
    return sorted(found, key=lambda r: (r.created_at, r.pk))[:limit]


def requests_called(tx: Tx, name: str, *, org: str = "") -> list[Request]:
    """By key, or by the caller's own id, which several orgs may have used. Without an org the latter looks at every row."""
    if name.startswith("r-") and (found := _requests(tx, select(R).where(R.c.pk == name))):
        return found
    statement = select(R).where(R.c.request_id == name)
    return _requests(tx, (statement.where(R.c.org == org) if org else statement).limit(10))


def ahead_of(tx: Tx, request: Request) -> int:
    """How many requests of the same profile have waited longer."""
    older = (R.c.profile == request.profile, R.c.state == RequestState.WAITING, R.c.deadline_at > now())
    statement = select(func.count()).where(*older, R.c.created_at < request.created_at)
    return int(tx.execute(statement).scalar_one())


def refusals(tx: Tx, *, within_s: float) -> dict[str, int]:
    """How often the pool said no lately, by reason."""
    statement = (
        select(R.c.reason, func.count())
        .where(R.c.decided_at > plus(now(), -within_s), R.c.state == word(RequestState.REFUSED))
        .group_by(R.c.reason)
    )
    return {str(reason): n for reason, n in tx.execute(statement)}


def busiest_orgs(
    tx: Tx, held: dict[OrgId, int], *, also: Collection[OrgId], limit: int
) -> tuple[list[Org], int]:
    """Orgs that hold most and those asked for, then others that park or are capped; and how many there are in all."""
    top = [*sorted(held, key=lambda o: (-held[o], o))[:limit], *also]
    found = [rows.org(r) for r in tx.execute(select(O).where(O.c.id.in_(top)))]
    if len(found) < limit:
        others = select(O).where(O.c.id.not_in(top), or_(O.c.parked > 0, O.c.cap > 0)).order_by(O.c.id)
        found += [rows.org(r) for r in tx.execute(others.limit(limit - len(found)))]
    found.sort(key=lambda o: (-held.get(o.id, 0), o.id))
    return found, int(tx.execute(select(func.count()).select_from(O)).scalar_one())


def parked_by_org(tx: Tx) -> dict[OrgId, int]:
    """Parked workers by org, counted: the org's own counter moves only where a floor or a cap needs it."""
    statement = select(W.c.org, func.count()).where(W.c.state == State.HOT_IDLE).group_by(W.c.org)
    return {OrgId(o): n for o, n in tx.execute(statement)}


def unused(tx: Tx) -> list[Unused]:
    """What is kept reserved while nobody uses it."""
    statement = (
        select(W.c.profile, W.c.state, func.count(), func.sum(W.c.cpu_millicores), func.sum(W.c.memory_mib))
        .where(W.c.state.in_(sorted(_UNUSED)))
        .group_by(W.c.profile, W.c.state)
    )
    return [Unused(p, s, n, int(cpu), int(mib)) for p, s, n, cpu, mib in tx.execute(statement)]


def overdue(tx: Tx, profile: ProfileName, *, idle_s: float) -> int:
    """Idle workers of a profile that have been so for longer than this."""
    statement = select(func.count()).where(
        W.c.state == State.IDLE, W.c.profile == profile, W.c.ready_at <= plus(now(), -idle_s)
    )
    return int(tx.execute(statement).scalar_one())


def parked_overdue(tx: Tx, *, for_s: float) -> int:
    """Parked workers whose time was over so long ago."""
    statement = select(func.count()).where(
        W.c.state == State.HOT_IDLE, W.c.hot_idle_until <= plus(now(), -for_s)
    )
    return int(tx.execute(statement).scalar_one())


def leaving_busy(tx: Tx, *, limit: int = 50) -> list[SeenWorker]:
    """Workers in use whose pod is about to go."""
    statement = select(W).where(W.c.leaving_since.is_not(None), W.c.state.in_(sorted(CLAIMED)))
    return [rows.seen(r) for r in tx.execute(statement.order_by(W.c.id).limit(limit))]


def moves_by_minute(tx: Tx, *, minutes: int, newest: int) -> list[Moves]:
    """The last minutes of the journal, counted; only its `newest` entries, so that a busy pool's hour costs no more than that."""
    since = int(tx.execute(select(func.coalesce(func.max(J.c.id), 0))).scalar_one()) - newest
    ago = minutes_ago(J.c.at)
    profile = func.coalesce(W.c.profile, "")
    statement: Select[Any] = (
        select(ago, profile, J.c.from_state, J.c.to_state, func.count())
        .select_from(J.outerjoin(W, W.c.id == J.c.worker_id))
        .where(J.c.at > plus(now(), -60.0 * minutes), J.c.id > since)
        .group_by(ago, profile, J.c.from_state, J.c.to_state)
    )
    return [Moves(int(m), p, f, t, n) for m, p, f, t, n in tx.execute(statement)]


def _requests(tx: Tx, statement: Select[Any]) -> list[Request]:
    return [rows.request(r) for r in tx.execute(statement)]
