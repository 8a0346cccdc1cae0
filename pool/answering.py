"""Answers: built from the rows that decided them, delivered to everybody who asked, then marked. Nothing secret is stored: the
token is derived each time, and is the same each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import structlog

from pool import sparing, tokens
from pool.after import After, Given
from pool.contract import Granted, RefusedAnswer
from pool.deps import Deps
from pool.errors import BrokenPromise, Transient
from pool.ids import ClaimId, RequestPk
from pool.matching import match_org, recheck
from pool.metrics.catalog import Item
from pool.records import Held, Request
from pool.states import Reason, RequestState, Source
from pool.store import Tx, claims, deeds, requests, workers

log = structlog.get_logger(__name__)

UNDELIVERABLE = "answer_undeliverable"


def carry_out(deps: Deps, after: After) -> None:
    """All that was to happen once the transaction had committed. What fails keeps nothing else from happening."""
    acts = [
        *((org, partial(match_org, deps, after, org)) for org in sorted(after.freed)),
        *((profile, partial(recheck, deps, after, profile)) for profile in sorted(after.untaken)),
    ]
    for name, act in acts:
        try:
            act()
        except Transient as exc:
            log.warning("matching_left_to_the_pass", cause=str(exc))
            break
        except Exception as exc:  # noqa: BLE001 - one org's trouble keeps no answer back
            sparing.left_out(deps.metrics, Item.MATCH, name, exc)
    after.send(deps)
    deliver(deps, after.answers, after.given)


@dataclass(slots=True)
class _Delivered:
    """Requests that are done with: told to everybody who can be told, and for each that could not be, why."""

    done: list[RequestPk] = field(default_factory=list)
    undeliverable: list[tuple[str, str]] = field(default_factory=list)


def deliver(deps: Deps, pks: Sequence[RequestPk], given: Mapping[RequestPk, Given] | None = None) -> int:
    """Deliver decided answers to every recorded address and mark them; those just given need not be read again. What an outage keeps back is
    left to the reap; what can never be delivered is marked, too, with an audit entry. How many are done."""
    told = _Delivered()
    for pk in pks:
        try:
            _deliver(deps, told, pk, (given or {}).get(pk))
        except Transient as exc:
            log.warning("answer_left_to_the_pass", request=pk, cause=str(exc))
        except Exception as exc:  # noqa: BLE001 - no later try would do better, and the others are to be told
            told.undeliverable.append((f"request {pk}", sparing.left_out(deps.metrics, Item.ANSWER, pk, exc)))
            told.done.append(pk)
    if told.done:
        try:
            _mark(deps, told)
        except Transient as exc:
            log.warning("answers_unmarked", count=len(told.done), cause=str(exc))
    return len(told.done)


def _deliver(deps: Deps, told: _Delivered, pk: RequestPk, known: Given | None) -> None:
    found = _read(deps, pk) if known is None else _known(deps, known)
    if found is None:
        return
    request, answer, decided_at = found
    wrong: list[tuple[str, str]] = []
    for to in request.replies:
        try:
            deps.broker.reply(to, answer.as_dict())
        except Transient:
            raise
        except Exception as exc:  # noqa: BLE001 - whoever else asked is told all the same
            cause = sparing.left_out(deps.metrics, Item.ANSWER, pk, exc)
            wrong.append((f"request {pk}", f"task id {to.task_id!r}, address {to.address!r}: {cause}"))
    told.done.append(pk)
    told.undeliverable += wrong
    if request.replied_at is None and decided_at is not None:
        deps.metrics.answered(request.profile, answer, (decided_at - request.created_at).total_seconds())


def _mark(deps: Deps, told: _Delivered) -> None:
    with deps.store.write() as tx:
        requests.mark_replied(tx, told.done)
        for subject, why in told.undeliverable:
            deeds.record(tx, UNDELIVERABLE, subject, deps.by(why))


Told = tuple[Request, Granted | RefusedAnswer, datetime | None]


def _read(deps: Deps, pk: RequestPk) -> Told | None:
    with deps.store.read() as tx:
        request = requests.get(tx, pk)
        answer = None if request is None else answer_to(tx, deps, request)
    return None if request is None or answer is None else (request, answer, request.decided_at)


def _known(deps: Deps, given: Given) -> Told:
    """Whoever asked the same again meanwhile and is not in its request's replies was answered by the row."""
    claim = given.claim
    answer = granted(deps, claim.held, given.endpoint, claim.lease_expires_at, claim.source)
    return given.request, answer, claim.created_at


def answer_to(tx: Tx, deps: Deps, request: Request) -> Granted | RefusedAnswer | None:
    """What the request's row says; None while it is open."""
    if request.state is RequestState.GRANTED:
        claim = claims.get(tx, request.claim_id or ClaimId(""))
        worker = None if claim is None else workers.get(tx, claim.worker_id)
        if claim is not None and worker is not None and claim.ended_at is None:
            return granted(deps, claim.held, worker.endpoint, claim.lease_expires_at, claim.source)
        return spent(request)
    if request.state is RequestState.SPENT:
        return spent(request)
    if request.state is RequestState.REFUSED:
        return RefusedAnswer(
            reason=Reason(request.reason or Reason.INVALID),
            detail=request.detail or "",
            retry_after_s=request.retry_after_s,
        )
    return None


def granted(
    deps: Deps, held: Held, endpoint: str | None, lease_expires_at: datetime | None, source: Source
) -> Granted:
    """The answer yes, with its token."""
    if lease_expires_at is None or endpoint is None:
        raise BrokenPromise(f"claim {held.claim_id} was granted before its worker was hot")
    return Granted(
        claim_id=held.claim_id,
        worker_id=held.worker_id,
        epoch=held.epoch,
        pod=held.worker_id,
        endpoint=endpoint,
        token=tokens.token(deps.worker_key(held.worker_id), held.claim_id, held.epoch),
        lease_expires_at=lease_expires_at,
        source=source,
    )


def spent(request: Request) -> RefusedAnswer:
    """Its claim has come and gone."""
    return RefusedAnswer(
        reason=Reason.REQUEST_SPENT,
        detail=f"request_id {request.request_id!r} was granted before and its claim has ended; use a new one",
    )
