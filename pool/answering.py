"""Answers: built from the rows that decided them, delivered to everybody who asked, then marked. Nothing secret is stored: the
token is derived each time, and is the same each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import structlog

from pool import tokens
from pool.after import After, Given
from pool.contract import Granted, RefusedAnswer
from pool.deps import Deps
from pool.errors import BrokenPromise, Transient
from pool.ids import ClaimId, RequestPk
from pool.matching import match_org, recheck
from pool.records import Held, Request
from pool.states import Reason, RequestState, Source
from pool.store import Tx, claims, requests, workers

log = structlog.get_logger(__name__)


def carry_out(deps: Deps, after: After) -> None:
    """All that was to happen once the transaction had committed."""
    try:
        for org in sorted(after.freed):
            match_org(deps, after, org)
        for profile in sorted(after.untaken):
            recheck(deps, after, profile)
    except Transient as exc:
        log.warning("matching_left_to_the_pass", cause=str(exc))
    after.send(deps)
    deliver(deps, after.answers, after.given)


def deliver(deps: Deps, pks: Sequence[RequestPk], given: Mapping[RequestPk, Given] | None = None) -> int:
    """Deliver decided answers to every recorded address and mark them; those just given need not be read again. What fails is left to the
    reap. How many were."""
    done: list[RequestPk] = []
    for pk in pks:
        try:
            known = (given or {}).get(pk)
            told = _read(deps, pk) if known is None else _known(deps, known)
            if told is None:
                continue
            request, answer, decided_at = told
            for to in request.replies:
                deps.broker.reply(to, answer.as_dict())
            done.append(pk)
            if request.replied_at is None and decided_at is not None:
                took = decided_at - request.created_at
                deps.metrics.answered(request.profile, answer, took.total_seconds())
        except Transient as exc:
            log.warning("answer_left_to_the_pass", request=pk, cause=str(exc))
    if done:
        try:
            with deps.store.write() as tx:
                requests.mark_replied(tx, done)
        except Transient as exc:
            log.warning("answers_unmarked", count=len(done), cause=str(exc))
    return len(done)


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
