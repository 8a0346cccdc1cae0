"""Queries for the board, the command line and reports.

Bounded, indexed, and never used to decide. Each is one statement, so that the cost of a page is
known.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, or_, select

from pool.core.ids import OrgId, ProfileName, RequestPk, WorkerId
from pool.core.records import Claim, Org, Request, SeenWorker
from pool.core.states import CLAIMED, LIVE, RequestState, State
from pool.store import rows
from pool.store.engine import Tx
from pool.store.schema import claims as C
from pool.store.schema import journal as J
from pool.store.schema import orgs as O
from pool.store.schema import requests as R
from pool.store.schema import suspects as X
from pool.store.schema import workers as W
from pool.store.sql import minutes_ago, now, plus, word
from pool.store.suspects import PROBE_FAILURES, SuspectKind

_UNUSED = frozenset(LIVE - CLAIMED)


@dataclass(frozen=True, slots=True)
class Cell:
    """The fields of a worker that the board's picture of the fleet needs."""

    id: str
    profile: str
    state: str
    org: str | None
    leaving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFilter:
    """Which rows to list. An empty field matches all."""

    profile: str = ""
    org: str = ""
    node: str = ""
    states: Collection[State] = LIVE
    limit: int = 500


@dataclass(frozen=True, slots=True)
class Moves:
    """The number of workers of a profile that moved from one state to another in one minute."""

    minutes_ago: int
    profile: str
    frm: str | None
    to: str
    count: int


@dataclass(frozen=True, slots=True)
class Unused:
    """The resources that the unclaimed workers of one profile and state reserve."""

    profile: str
    state: str
    workers: int
    cpu_millicores: int
    memory_mib: int


def cells(tx: Tx, ids: Collection[str] | None = None) -> list[Cell]:
    """Return every live worker; or the workers with these ids, in whatever state."""
    statement = select(W.c.id, W.c.profile, W.c.state, W.c.org, W.c.leaving_since.is_not(None))
    if ids is None:
        found = statement.where(W.c.state.in_(sorted(LIVE))).order_by(W.c.created_at, W.c.id)
    else:
        found = statement.where(W.c.id.in_(list(ids))).order_by(W.c.created_at, W.c.id)
    return [Cell(i, p, s, o, bool(leaving)) for i, p, s, o, leaving in tx.execute(found)]


def last_entry(tx: Tx) -> int:
    """Return the newest id in the journal."""
    return int(tx.execute(select(func.coalesce(func.max(J.c.id), 0))).scalar_one())


def moved_since(tx: Tx, entry: int, *, limit: int) -> list[tuple[int, WorkerId]]:
    """Return journal id and worker of the entries after this one, in ascending order."""
    statement = select(J.c.id, J.c.worker_id).where(J.c.id > entry).order_by(J.c.id).limit(limit)
    return [(i, WorkerId(w)) for i, w in tx.execute(statement)]


def workers(tx: Tx, wanted: ListFilter) -> list[SeenWorker]:
    """Return at most `limit` workers, oldest first."""
    statement = select(W).where(W.c.state.in_(sorted(wanted.states)))
    named = ((W.c.profile, wanted.profile), (W.c.org, wanted.org), (W.c.node, wanted.node))
    for column, value in named:
        if value:
            statement = statement.where(column == value)
    return [rows.seen(r) for r in tx.execute(statement.order_by(W.c.created_at, W.c.id).limit(wanted.limit))]


def named_like(tx: Tx, start: str, *, limit: int = 10) -> list[WorkerId]:
    """Return workers whose id starts with `start`.

    The condition is a range, so that an index serves it.
    """
    statement = select(W.c.id).where(W.c.id >= start, W.c.id < start + "~").order_by(W.c.id).limit(limit)
    return [WorkerId(i) for (i,) in tx.execute(statement)]


def live_claims(tx: Tx, *, org: str = "", limit: int = 500) -> list[Claim]:
    """Return live claims, those that expire first at the start."""
    statement = select(C).where(C.c.ended_at.is_(None))
    if org:
        statement = statement.where(C.c.org == org)
    return [rows.claim(r) for r in tx.execute(statement.order_by(C.c.lease_expires_at, C.c.id).limit(limit))]


def origins(tx: Tx, pks: Collection[RequestPk]) -> dict[RequestPk, str]:
    """Return the programs that sent these requests, as far as they named themselves."""
    if not pks:
        return {}
    found = _requests(tx, select(R).where(R.c.pk.in_(list(pks))))
    return {r.pk: r.origin for r in found if r.origin}


def claims_of(tx: Tx, journalled: Collection[str]) -> list[tuple[Claim, Request | None]]:
    """Return these claims with their requests, oldest first."""
    if not journalled:
        return []
    statement = select(C).where(C.c.id.in_(list(journalled))).order_by(C.c.epoch)
    found = [rows.claim(r) for r in tx.execute(statement)]
    asked = {r.pk: r for r in _requests(tx, select(R).where(R.c.pk.in_([c.request_pk for c in found])))}
    return [(c, asked.get(c.request_pk)) for c in found]


def open_requests(tx: Tx, *, org: str = "", limit: int = 500) -> list[Request]:
    """Return requests without an answer, oldest first: those that wait, and those whose worker is
    being bound. Ended requests are many; neither query reads them.
    """
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
    """Find requests by key, or by the caller's request id, which several orgs may have used.

    Without an org, a search by request id reads every row.
    """
    if name.startswith("r-") and (found := _requests(tx, select(R).where(R.c.pk == name))):
        return found
    statement = select(R).where(R.c.request_id == name)
    return _requests(tx, (statement.where(R.c.org == org) if org else statement).limit(10))


def ahead_of(tx: Tx, request: Request) -> int:
    """Count the requests of the same profile that have waited longer."""
    older = (R.c.profile == request.profile, R.c.state == RequestState.WAITING, R.c.deadline_at > now())
    statement = select(func.count()).where(*older, R.c.created_at < request.created_at)
    return int(tx.execute(statement).scalar_one())


def refusals(tx: Tx, *, within_s: float) -> dict[str, int]:
    """Count the refusals of the last `within_s` seconds by reason."""
    statement = (
        select(R.c.reason, func.count())
        .where(R.c.decided_at > plus(now(), -within_s), R.c.state == word(RequestState.REFUSED))
        .group_by(R.c.reason)
    )
    return {str(reason): n for reason, n in tx.execute(statement)}


def busiest_orgs(
    tx: Tx, held: dict[OrgId, int], *, also: Collection[OrgId], limit: int
) -> tuple[list[Org], int]:
    """Return the orgs that hold the most workers and those in `also`, then others that have parked
    workers or a cap; and the number of all orgs.
    """
    top = [*sorted(held, key=lambda o: (-held[o], o))[:limit], *also]
    found = [rows.org(r) for r in tx.execute(select(O).where(O.c.id.in_(top)))]
    if len(found) < limit:
        others = select(O).where(O.c.id.not_in(top), or_(O.c.parked > 0, O.c.cap > 0)).order_by(O.c.id)
        found += [rows.org(r) for r in tx.execute(others.limit(limit - len(found)))]
    found.sort(key=lambda o: (-held.get(o.id, 0), o.id))
    return found, int(tx.execute(select(func.count()).select_from(O)).scalar_one())


def parked_by_org(tx: Tx) -> dict[OrgId, int]:
    """Count the parked workers of each org.

    The org's own counter is kept only if it has a floor or a hot-idle cap.
    """
    statement = select(W.c.org, func.count()).where(W.c.state == State.HOT_IDLE).group_by(W.c.org)
    return {OrgId(o): n for o, n in tx.execute(statement)}


def unused(tx: Tx) -> list[Unused]:
    """Return the resources that unclaimed workers reserve."""
    statement = (
        select(W.c.profile, W.c.state, func.count(), func.sum(W.c.cpu_millicores), func.sum(W.c.memory_mib))
        .where(W.c.state.in_(sorted(_UNUSED)))
        .group_by(W.c.profile, W.c.state)
    )
    return [Unused(p, s, n, int(cpu), int(mib)) for p, s, n, cpu, mib in tx.execute(statement)]


def overdue(tx: Tx, profile: ProfileName, *, idle_s: float) -> int:
    """Count the workers of a profile that have been idle for at least `idle_s` seconds."""
    statement = select(func.count()).where(
        W.c.state == State.IDLE, W.c.profile == profile, W.c.ready_at <= plus(now(), -idle_s)
    )
    return int(tx.execute(statement).scalar_one())


def parked_overdue(tx: Tx, *, for_s: float) -> int:
    """Count the parked workers whose TTL ended at least `for_s` seconds ago."""
    statement = select(func.count()).where(
        W.c.state == State.HOT_IDLE, W.c.hot_idle_until <= plus(now(), -for_s)
    )
    return int(tx.execute(statement).scalar_one())


def leaving_busy(tx: Tx, *, limit: int = 50) -> list[SeenWorker]:
    """Return busy workers that are marked as leaving."""
    statement = select(W).where(W.c.leaving_since.is_not(None), W.c.state.in_(sorted(CLAIMED)))
    return [rows.seen(r) for r in tx.execute(statement.order_by(W.c.id).limit(limit))]


def unhealthy_busy(tx: Tx, *, limit: int = 50) -> list[tuple[SeenWorker, int]]:
    """Return workers in use that fail their probe, and the number of consecutive failures."""
    statement = (
        select(W, X.c.runs)
        .join(X, X.c.subject == W.c.id)
        .where(
            X.c.kind == word(SuspectKind.PROBE), X.c.runs >= PROBE_FAILURES, W.c.state.in_(sorted(CLAIMED))
        )
    )
    return [(rows.seen(r), r.runs) for r in tx.execute(statement.order_by(W.c.id).limit(limit))]


def moves_by_minute(tx: Tx, *, minutes: int, newest: int) -> list[Moves]:
    """Count the moves of the last minutes.

    Reads only the `newest` entries of the journal, which bounds the cost in a busy pool.
    """
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
