"""Explain one worker: its history and why it ended. Explain one request: why it waits or was refused."""

from __future__ import annotations

from typing import Any

from pool.core.contract import instant
from pool.core.errors import PoolError
from pool.core.ids import WorkerId
from pool.core.records import Request, SeenWorker
from pool.core.settings import Settings
from pool.core.states import RequestState, State
from pool.ops.reporting import stories
from pool.ops.reporting.claimable import ClaimableContext, claimable
from pool.ops.reporting.shapes import claim as claim_shape
from pool.ops.reporting.shapes import deed as deed_shape
from pool.ops.reporting.shapes import request as request_shape
from pool.ops.reporting.shapes import worker as worker_shape
from pool.ops.reporting.status import supply_stopped
from pool.ops.reporting.waiting import Around, why_it_waits
from pool.store import Store, Tx, audit, breakers, journal, now, operator_queries, orgs, passes, workers
from pool.store.journal import Entry

# A worker that is parked and claimed all day has a long journal; the newest entries matter most.
ENTRIES_SHOWN = 500


class NotFound(PoolError):
    """No worker or request has this name."""


class Ambiguous(NotFound):
    """Several workers or requests match this name."""


def worker(store: Store, settings: Settings, name: str) -> dict[str, Any]:
    """Return a worker's row, why it ended, whether it can be claimed, its history in sentences, and
    its claims.

    `name` is the worker id (the same as the pod's name) or a unique beginning of it.
    """
    with store.snapshot() as tx:
        worker_id = _the_one(tx, name)
        at = now(tx)
        row, entries = workers.get(tx, worker_id), journal.of(tx, worker_id, newest=ENTRIES_SHOWN)
        done = audit.of(tx, worker_id)
        held = operator_queries.claims_of(tx, [c for c in dict.fromkeys(e.claim_id for e in entries) if c])
        can = None if row is None else claimable(row, _surroundings(tx, settings, row))
    if not entries and not done and row is None:
        raise NotFound(f"there is no worker {name!r}, neither live nor in the journal")
    return {
        "id": worker_id,
        "worker": None if row is None else worker_shape(row, at),
        "state": str(row.state if row else entries[-1].to_state if entries else "unknown"),
        "cause": stories.cause(entries, done),
        "now": "" if row is None else _now(row, at),
        "claimable": can or {"can": False, "why": "its row has been deleted"},
        "story": [_line(e, text) for e, text in stories.sentences(entries)],
        "claims": [
            {
                **claim_shape(c, at, None if r is None else r.origin),
                "request": None if r is None else request_shape(r, at),
            }
            for c, r in held
        ],
        "deeds": [deed_shape(d) for d in done],
    }


def request(store: Store, settings: Settings, name: str, *, org: str = "") -> dict[str, Any]:
    """Return a request's row, and why it waits or what its answer was."""
    with store.snapshot() as tx:
        found = operator_queries.requests_called(tx, name, org=org)
        if not found:
            raise NotFound(f"there is no request {name!r}{f' of org {org}' if org else ''}")
        if len(found) > 1:
            orgs_of = ", ".join(sorted(r.org for r in found))
            raise Ambiguous(f"several orgs have a request {name!r}: choose one with --org: {orgs_of}")
        row, at = found[0], now(tx)
        reason, why, ahead = _answer(tx, settings, row)
    return {**request_shape(row, at), "waits_because": reason, "why": why, "ahead": ahead}


def _the_one(tx: Tx, name: str) -> WorkerId:
    start = name if name.startswith("w-") else f"w-{name}"
    if workers.get(tx, WorkerId(start)) is not None or journal.of(tx, WorkerId(start), newest=1):
        return WorkerId(start)
    if audit.of(tx, name, limit=1):
        return WorkerId(name)
    found = operator_queries.named_like(tx, start)
    if len(found) > 1:
        raise Ambiguous(f"{name!r} matches several workers: {', '.join(found)}; give more of the id")
    return found[0] if found else WorkerId(start)


def _surroundings(tx: Tx, settings: Settings, row: SeenWorker) -> ClaimableContext:
    org = orgs.get(tx, row.org) if row.org else None
    return ClaimableContext(
        paused=orgs.pool_row(tx).paused,
        configured=row.profile in settings.profiles,
        org=org,
        in_use=org.in_use if org else 0,
    )


def _answer(tx: Tx, settings: Settings, r: Request) -> tuple[str, str, int]:
    match r.state:
        case RequestState.WAITING:
            reason, why = why_it_waits(_around(tx, settings, r))
            ahead = operator_queries.ahead_of(tx, r)
            line = f"; requests for {r.profile} that have waited longer: {ahead}" if ahead else ""
            return str(reason), f"The request is waiting: {why}{line}.", ahead
        case RequestState.BINDING:
            return "binding", f"The request has a worker, which is being activated (claim {r.claim_id}).", 0
        case RequestState.GRANTED:
            return "", f"The request was granted, and its claim {r.claim_id} is live.", 0
        case RequestState.SPENT:
            return "", f"The request was granted, and its claim {r.claim_id} has ended.", 0
    return "", f"The request was refused ({r.reason}): {r.detail}.", 0


def _around(tx: Tx, settings: Settings, r: Request) -> Around:
    org, pool = orgs.get(tx, r.org), orgs.pool_row(tx)
    broken = breakers.every(tx).get(r.profile)
    return Around(
        org=r.org,
        profile=r.profile,
        org_cap=org.cap if org else 0,
        org_in_use=org.in_use if org else 0,
        pool_cap=settings.pool.max_workers,
        pool_live=pool.live,
        idle=workers.count(tx, r.profile, State.IDLE),
        spawning=workers.count(tx, r.profile, State.SPAWNING),
        trouble=broken.why if broken is not None and broken.open_until is not None else "",
        supply_stopped=supply_stopped(passes.get(tx, "reconcile_warm"), now(tx), pool.began_at),
    )


def _now(row: SeenWorker, at: Any) -> str:
    for_ = stories.duration((at - row.state_since).total_seconds())
    whose = f" of {row.org}" if row.org else ""
    reason = row.leaving_reason
    leaving = f", marked as leaving: {stories.because(reason, row.leaving_detail)}" if reason else ""
    return f"A {row.profile} worker{whose}, {row.state} for {for_}, epoch {row.epoch}{leaving}."


def _line(e: Entry, text: str) -> dict[str, Any]:
    return {
        "at": instant(e.at),
        "from": None if e.from_state is None else str(e.from_state),
        "to": str(e.to_state),
        "epoch": e.epoch,
        "org": e.org,
        "claim_id": e.claim_id,
        "text": text,
        "who": e.who,
        "reason": str(e.reason),
        "detail": e.detail,
    }
