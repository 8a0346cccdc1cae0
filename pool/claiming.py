"""Acquire, renew, release, cancel: what services ask. Each may be repeated by anybody at any time; the table decides."""

from __future__ import annotations

from typing import Any

import structlog

from pool import answering, batching, holding, matching
from pool.after import After
from pool.batching import Asking, Call, Decided
from pool.contract import Acquire, Cancel, Granted, Pending, RefusedAnswer, Release, Renew, instant
from pool.deps import Deps
from pool.errors import BrokenPromise, Transient
from pool.ids import ClaimId, OrgId, RequestPk
from pool.records import ReplyTo, Request
from pool.settings import OrgDefaults
from pool.states import CLAIMED, ClaimEnd, Condition, Reason, RequestState, State
from pool.store import (
    Tx,
    claims,
    lock_org,
    lock_profile,
    lock_profile_shared,
    orgs,
    requests,
    workers,
)

log = structlog.get_logger(__name__)

Answer = Granted | RefusedAnswer | Pending


def acquire(deps: Deps, asked: Acquire, reply: ReplyTo) -> Answer:
    """A worker, a refusal, or a wait that somebody else will end."""
    decided = _at_once(deps, Asking(asked=asked, reply=reply))
    return decided if isinstance(decided, Granted | Pending) else acquire_at_length(deps, asked, reply)


def acquire_at_length(deps: Deps, asked: Acquire, reply: ReplyTo) -> Answer:
    """The same for whoever could not be served at once: repeats, waits, caps, refusals."""
    began = deps.clock.monotonic()
    answer = _answered(deps, asked, reply)
    took_s = deps.clock.monotonic() - began
    deps.metrics.phase("claim", took_s)
    if not isinstance(answer, Pending):
        deps.metrics.answered(asked.profile, answer, took_s)
    return answer


def _answered(deps: Deps, asked: Acquire, reply: ReplyTo) -> Answer:
    if deps.profile(asked.profile) is None:
        known = ", ".join(sorted(deps.settings.profiles))
        return RefusedAnswer(
            reason=Reason.UNKNOWN_PROFILE, detail=f"profile {asked.profile!r} is none of: {known}"
        )
    after = After()
    if batching.can_serve(deps, Asking(asked=asked, reply=reply)):
        after.untaken.add(asked.profile)  # the fast path may have locked a worker before it gave up
    with deps.store.write() as tx:
        answer = _acquire(tx, deps, after, asked, reply)
    answering.carry_out(deps, after)
    return answer


def renew(deps: Deps, asked: Renew) -> dict[str, Any]:
    """Extend the leases of all that live; the cause of each end for those that do not."""
    decided = _at_once(deps, asked)
    return decided if isinstance(decided, dict) else renew_at_length(deps, asked)


def renew_at_length(deps: Deps, asked: Renew) -> dict[str, Any]:
    """The same, waiting for whoever has one of the claims in hand."""
    with deps.store.write() as tx:
        renewed = claims.renew(tx, asked.claim_ids, asked.org)
    missing = [c for c in asked.claim_ids if c not in renewed]
    with deps.store.read() as tx:
        ended = claims.get_many(tx, missing, asked.org) if missing else {}
        leaving = workers.leaving_of(tx, list(renewed))
    answer: dict[str, Any] = {
        "renewed": {c: instant(at) for c, at in renewed.items()},
        "gone": {c: (ended[c].ended_why or "not_hot") if c in ended else "unknown_claim" for c in missing},
    }
    return answer | ({"leaving": leaving} if leaving else {})


def release(deps: Deps, asked: Release) -> dict[str, Any]:
    """End a claim; repeating it is harmless."""
    try:
        decided = _at_once(deps, asked)
    except (Transient, BrokenPromise):
        decided = None
    return decided if isinstance(decided, dict) else release_at_length(deps, asked)


def release_at_length(deps: Deps, asked: Release) -> dict[str, Any]:
    """The same, statement by statement. If the worker can not be parked or drained now, the wish is kept and reap carries it out."""
    try:
        return {"outcome": finish_release(deps, asked.claim_id, asked.condition, asked.org)}
    except (Transient, BrokenPromise) as exc:
        deps.metrics.park_failures.inc()
        log.warning("release_kept_for_the_pass", claim=asked.claim_id, cause=str(exc))
        with deps.store.write() as tx:
            claims.ask_release(tx, asked.claim_id, asked.condition, asked.org)
        return {"outcome": "released"}


def _at_once(deps: Deps, call: Call) -> Decided:
    (decided,), after = batching.serve(deps, [call])
    answering.carry_out(deps, after)
    return decided


def finish_release(deps: Deps, claim_id: ClaimId, condition: Condition, org: OrgId | None = None) -> str:
    """The release itself: the worker goes to a waiter, is parked, or drains. A claim of another org than `org` is as good as unknown."""
    after = After()
    with deps.store.write() as tx:
        claim = claims.get(tx, claim_id)
        if claim is None or (org is not None and claim.org != org):
            return "unknown_claim"
        lock_profile_shared(tx, claim.profile)
        worker = workers.get_for_update(tx, claim.worker_id)
        if claim.ended_at is None and worker is not None and worker.state in CLAIMED - {State.HOT}:
            claims.abandon(tx, claim_id, condition)  # still being bound: it is given back when that is over
            return "released"
        why = ClaimEnd.RELEASED if condition is Condition.CLEAN else ClaimEnd.TAINTED
        if holding.end(tx, deps, after, claim_id, why) is None:
            return "already_released"
        matching.match(tx, deps, after, claim.profile)
    answering.carry_out(deps, after)
    return "released"


def cancel(deps: Deps, asked: Cancel) -> dict[str, Any]:
    """Withdraw a request that has no answer yet."""
    after = After()
    with deps.store.write() as tx:
        outcome = _cancel(tx, after, asked)
    answering.carry_out(deps, after)
    return {"outcome": outcome}


def time_out(deps: Deps, pk: RequestPk) -> bool:
    """Answer a waiter whose deadline is past; a waiter that is not overdue by the database's clock is left alone."""
    with deps.store.write() as tx:
        request = requests.get(tx, pk)
        if request is None or not requests.is_overdue(tx, pk):
            return False
        detail = f"nobody gave back or started a {request.profile} worker within {request.wait_s} s"
        requests.refuse(tx, pk, RefusedAnswer(reason=Reason.WAIT_TIMEOUT, detail=detail, retry_after_s=1.0))
    answering.deliver(deps, [pk])
    return True


def _acquire(tx: Tx, deps: Deps, after: After, asked: Acquire, reply: ReplyTo) -> Answer:
    if orgs.pool_row(tx).paused:
        return RefusedAnswer(
            reason=Reason.PAUSED, detail="an operator has paused the pool", retry_after_s=30.0
        )
    if not _known(tx, deps, asked.org):
        detail = f"org {asked.org!r} does not exist; make it with `warmpool org set {asked.org}`"
        return RefusedAnswer(reason=Reason.UNKNOWN_ORG, detail=detail)
    if asked.wait_s > 0:
        # Before anything is read: whoever frees a worker from here on sees this waiter, and what was freed before is seen below.
        lock_profile(tx, asked.profile)
        lock_org(tx, asked.org)
    before = None
    pk = deps.ids.request()
    if not requests.insert(tx, pk, asked, reply):
        before = requests.find(tx, asked.org, asked.request_id)
        if before is None:
            raise Transient(f"request {asked.request_id!r} was withdrawn while it was looked at")
    if before is not None:
        if before.state is not RequestState.REFUSED or _differs(before, asked):
            return _repeated(tx, deps, before, asked, reply)
        requests.reopen(tx, before, reply)
        pk = before.pk
    if asked.wait_s > 0:
        after.untaken.discard(asked.profile)  # whatever was missed before the lock was taken is matched now
    return _evaluate(tx, deps, after, pk)


def _evaluate(tx: Tx, deps: Deps, after: After, pk: RequestPk) -> Answer:
    """Those who wait already come first; then this one; then it waits or is refused."""
    request = _read(tx, pk)
    if matching.match(tx, deps, after, request.profile):
        request = _read(tx, pk)
    if (
        request.state is RequestState.WAITING
        and not _overtakes(tx, request)
        and matching.serve(tx, deps, after, request)
    ):
        request = _read(tx, pk)
    if request.state is RequestState.WAITING and request.wait_s == 0:
        requests.refuse(tx, pk, _why_not(tx, deps, request))
        request = _read(tx, pk)
    if request.state is RequestState.WAITING:
        after.waits.append(request.profile)
    if pk in after.answers:
        after.answers.remove(pk)  # the caller is still on the line
    answer = answering.answer_to(tx, deps, request)
    return Pending(pk=pk, until_s=request.wait_s) if answer is None else answer.numbered(pk)


def _overtakes(tx: Tx, request: Request) -> bool:
    """Whether taking a worker now would pass somebody who waits and could use it. To take what is parked for one's own org passes only those
    of that org; one of them may be waiting still, because the worker was freed after this transaction had looked for him."""
    if not requests.anyone_waiting(tx, request.profile):
        return False
    if requests.waits_before(tx, request):
        return True
    return workers.pick_parked(tx, request.org, request.profile) is None


def _repeated(tx: Tx, deps: Deps, before: Request, asked: Acquire, reply: ReplyTo) -> Answer:
    if _differs(before, asked):
        detail = f"request_id {asked.request_id!r} was used by {asked.org} before with other arguments"
        return RefusedAnswer(reason=Reason.INVALID, detail=detail)
    answer = answering.answer_to(tx, deps, before)
    if answer is None:
        requests.add_reply(tx, before, reply)
        return Pending(pk=before.pk, until_s=before.wait_s)
    return answer


def _differs(before: Request, asked: Acquire) -> bool:
    return (before.profile, before.lease_s, before.ttl_s, before.wait_s) != (
        asked.profile,
        asked.lease_s,
        asked.ttl_s,
        asked.wait_s,
    )


def _known(tx: Tx, deps: Deps, org: OrgId) -> bool:
    if orgs.get(tx, org) is not None:
        return True
    if not deps.settings.orgs_auto_create:
        return False
    orgs.seed(tx, org, deps.settings.orgs.get(org, OrgDefaults()))
    return True


def _why_not(tx: Tx, deps: Deps, request: Request) -> RefusedAnswer:
    org, cap = orgs.get(tx, request.org), deps.settings.pool.max_workers
    if org is not None and org.cap and org.in_use >= org.cap:
        return RefusedAnswer(
            reason=Reason.ORG_CAP,
            detail=f"org {org.id} holds {org.in_use} of its {org.cap} workers",
            retry_after_s=1.0,
        )
    if cap and orgs.pool_row(tx).live >= cap:
        return RefusedAnswer(
            reason=Reason.POOL_CAP, detail=f"the pool is at its cap of {cap} workers", retry_after_s=2.0
        )
    return RefusedAnswer(
        reason=Reason.NO_WARM_WORKER,
        detail=f"no warm {request.profile} worker; more are on their way",
        retry_after_s=1.0,
    )


def _cancel(tx: Tx, after: After, asked: Cancel) -> str:
    request = requests.find_unlocked(tx, asked.org, asked.request_id)
    if request is None:
        return "unknown_request"
    answer = RefusedAnswer(reason=Reason.CANCELLED, detail="cancelled by its caller")
    if request.state is RequestState.BINDING and request.claim_id is not None:
        claims.get_for_update(tx, request.claim_id)  # the claim before the request, as everybody does
    if not requests.refuse(tx, request.pk, answer):
        return "already_answered"
    if request.claim_id is not None:
        claims.abandon(tx, request.claim_id, Condition.CLEAN)
    after.answers.append(request.pk)
    return "cancelled"


def _read(tx: Tx, pk: RequestPk) -> Request:
    request = requests.get(tx, pk)
    if request is None:
        raise BrokenPromise(f"request {pk} vanished inside its own transaction")
    return request
