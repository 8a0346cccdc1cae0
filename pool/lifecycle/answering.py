"""Build answers from decisions.

No secret is stored: the token is derived each time, and is always the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pool.core import tokens
from pool.core.contract import Granted, RefusedAnswer
from pool.core.errors import BrokenPromise
from pool.core.ids import ClaimId, ProfileName, RequestPk, WorkerId
from pool.core.records import ReplyTo, Request
from pool.core.states import Reason, RequestState, Source
from pool.lifecycle.deps import Deps
from pool.store import Tx, claims, workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decided request whose answer must be delivered.

    `waited_s` is None if the answer was already counted.
    """

    pk: RequestPk
    profile: ProfileName
    event: Mapping[str, Any]
    waited_s: float | None

    @property
    def replies(self) -> tuple[ReplyTo, ...]:
        """Return the reply addresses.

        An unreadable row raises here, so that other answers are not affected.
        """
        found = (ReplyTo.of(*each) for each in json.loads(self.event["replies"]))
        # A task id is answered once, although its message may have been sent twice.
        once = {(to.task_id, to.address): to for to in found}
        return tuple(replace(to, took_s=self.waited_s or 0.0) for to in once.values())

    def answer(self, deps: Deps) -> Granted | RefusedAnswer:
        return of_event(deps, self.event)


def decision(event: Mapping[str, Any]) -> Decision:
    """Return the decision in a rule's event about a request that waited."""
    return Decision(
        pk=RequestPk(event["pk"]),
        profile=ProfileName(event["profile"]),
        event=event,
        waited_s=event["waited_s"],
    )


def of_event(deps: Deps, event: Mapping[str, Any]) -> Granted | RefusedAnswer:
    """Return the answer in a rule's event."""
    if event["outcome"] == "refused":
        return RefusedAnswer(
            reason=Reason(event["reason"]),
            detail=_detail(event),
            retry_after_s=event.get("retry_after_s"),
            pk=event.get("pk", ""),
        )
    if event["until"] is None or event["endpoint"] is None:
        raise BrokenPromise(f"claim {event['claim_id']} was granted before its worker was hot")
    claim_id, worker_id = ClaimId(event["claim_id"]), WorkerId(event["worker_id"])
    until = event["until"]
    return Granted(
        claim_id=claim_id,
        worker_id=worker_id,
        epoch=event["epoch"],
        pod=worker_id,
        endpoint=event["endpoint"],
        token=tokens.token(deps.worker_key(worker_id), claim_id, event["epoch"]),
        lease_expires_at=instant_of(until) if isinstance(until, str) else until,
        source=Source(event["source"]),
        ttl_s=_clamped(event["ttl_s"], deps.settings.pool.hot_idle_ttl_max_s),
        pk=event["pk"],
    )


def _clamped(ttl_s: int | None, most_s: int) -> int | None:
    """Return the TTL in force, or None if it is the requested one or none was requested."""
    return most_s if ttl_s is not None and ttl_s > most_s else None


def instant_of(text: str) -> datetime:
    """Parse a time in a rule's result."""
    return datetime.fromisoformat(text).astimezone(UTC)


def of_row(tx: Tx, request: Request) -> Decision | None:
    """Return the decision in a request's row; None while it is open."""
    event: dict[str, Any] = {"pk": request.pk, "outcome": "refused", "retry_after_s": request.retry_after_s}
    event["replies"] = json.dumps([to.stored() for to in request.replies])
    match request.state:
        case RequestState.WAITING | RequestState.BINDING:
            return None
        case RequestState.REFUSED:
            event |= {"reason": request.reason, "detail": request.detail}
        case _:
            claim = claims.get(tx, request.claim_id or ClaimId(""))
            worker = None if claim is None else workers.get(tx, claim.worker_id)
            if claim is not None and worker is not None and claim.ended_at is None:
                held = {"claim_id": claim.id, "worker_id": claim.worker_id, "epoch": claim.epoch}
                lease = {
                    "until": claim.lease_expires_at,
                    "endpoint": worker.endpoint,
                    "source": claim.source,
                    "ttl_s": claim.ttl_s,
                }
                event |= {"outcome": "granted", **held, **lease}
            else:
                event |= {"reason": Reason.REQUEST_SPENT, "detail": None, "request_id": request.request_id}
    waited_s = None
    if request.replied_at is None and request.decided_at is not None:
        waited_s = (request.decided_at - request.created_at).total_seconds()
    return Decision(pk=request.pk, profile=request.profile, event=event, waited_s=waited_s)


def _detail(event: Mapping[str, Any]) -> str:
    """Return the detail of a refusal. That of a spent request is not stored."""
    if event["reason"] == Reason.REQUEST_SPENT:
        return (
            f"request_id {event['request_id']!r} was already granted and its claim has ended; use a new one"
        )
    return event["detail"] or ""
