"""One worker's whole story, and why one request waits or was refused."""

from __future__ import annotations

from typing import Any

from pool.contract import instant
from pool.errors import PoolError
from pool.ids import WorkerId
from pool.records import Request, Seen
from pool.reporting import stories
from pool.reporting.claimable import Surroundings, claimable
from pool.reporting.shapes import claim as claim_shape
from pool.reporting.shapes import deed as deed_shape
from pool.reporting.shapes import request as request_shape
from pool.reporting.shapes import worker as worker_shape
from pool.reporting.status import supply_stopped
from pool.reporting.waiting import Around, why_it_waits
from pool.settings import Settings
from pool.states import RequestState, State
from pool.store import Store, Tx, breakers, deeds, journal, looking, now, orgs, passes, workers
from pool.store.journal import Entry

# A worker that is parked and claimed all day long has a long life; its last part is what is asked for.
ENTRIES_SHOWN = 500


class NotFound(PoolError):
    """Nothing of that name is known, or more than one thing."""


def worker(store: Store, settings: Settings, name: str) -> dict[str, Any]:
    """Its row, the cause of its end, whether it can be claimed, its life in sentences, its claims with their tasks. The name may be cut
    short as long as it means one worker; a pod's name is its worker's id."""
    with store.snapshot() as tx:
        worker_id = _the_one(tx, name)
        at = now(tx)
        row, entries = workers.get(tx, worker_id), journal.of(tx, worker_id, newest=ENTRIES_SHOWN)
        done = deeds.of(tx, worker_id)
        held = looking.claims_of(tx, [c for c in dict.fromkeys(e.claim_id for e in entries) if c])
        can = None if row is None else claimable(row, _surroundings(tx, settings, row))
    if not entries and not done and row is None:
        raise NotFound(f"no worker {name!r}: neither the table nor the journal knows it")
    return {
        "id": worker_id,
        "worker": None if row is None else worker_shape(row, at),
        "state": str(row.state if row else entries[-1].to_state if entries else "unknown"),
        "cause": stories.cause(entries, done),
        "now": "" if row is None else _now(row, at),
        "claimable": can or {"can": False, "why": "it is no longer in the table"},
        "story": [_line(e, text) for e, text in stories.sentences(entries)],
        "claims": [
            {**claim_shape(c, at), "request": None if r is None else request_shape(r, at)} for c, r in held
        ],
        "deeds": [deed_shape(d) for d in done],
    }


def request(store: Store, settings: Settings, name: str, *, org: str = "") -> dict[str, Any]:
    """Its row and why it waits, or what its answer was."""
    with store.snapshot() as tx:
        found = looking.requests_called(tx, name, org=org)
        if not found:
            raise NotFound(f"no request {name!r}{f' of {org}' if org else ''}")
        if len(found) > 1:
            orgs_of = ", ".join(sorted(r.org for r in found))
            raise NotFound(f"request {name!r} means several: say --org, one of {orgs_of}")
        asked, at = found[0], now(tx)
        reason, why, ahead = _answer(tx, settings, asked)
    return {**request_shape(asked, at), "waits_because": reason, "why": why, "ahead": ahead}


def _the_one(tx: Tx, name: str) -> WorkerId:
    start = name if name.startswith("w-") else f"w-{name}"
    if workers.get(tx, WorkerId(start)) is not None or journal.of(tx, WorkerId(start), newest=1):
        return WorkerId(start)
    if deeds.of(tx, name, limit=1):
        return WorkerId(name)
    found = looking.named_like(tx, start)
    if len(found) > 1:
        raise NotFound(f"{name!r} means several: {', '.join(found)}")
    return found[0] if found else WorkerId(start)


def _surroundings(tx: Tx, settings: Settings, row: Seen) -> Surroundings:
    org = orgs.get(tx, row.org) if row.org else None
    return Surroundings(
        paused=orgs.pool_row(tx).paused,
        configured=row.profile in settings.profiles,
        org=org,
        in_use=org.in_use if org else 0,
    )


def _answer(tx: Tx, settings: Settings, r: Request) -> tuple[str, str, int]:
    match r.state:
        case RequestState.WAITING:
            reason, why = why_it_waits(_around(tx, settings, r))
            ahead = looking.ahead_of(tx, r)
            line = f"; {ahead} have waited longer for {r.profile}" if ahead else ""
            return str(reason), f"It waits: {why}{line}.", ahead
        case RequestState.BINDING:
            return "binding", f"It has a worker, which is being made hot (claim {r.claim_id}).", 0
        case RequestState.GRANTED:
            return "", f"It was granted: claim {r.claim_id} lives.", 0
        case RequestState.SPENT:
            return "", f"It was granted, and its claim {r.claim_id} has ended.", 0
    return "", f"It was refused, {r.reason}: {r.detail}.", 0


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


def _now(row: Seen, at: Any) -> str:
    for_ = stories.duration((at - row.state_since).total_seconds())
    whose = f" of {row.org}" if row.org else ""
    leaving = f", and must leave: {row.leaving_why}" if row.leaving_since else ""
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
        "why": e.why,
    }
