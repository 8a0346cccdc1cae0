"""The task contract for the client: the four calls and the meaning of their answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypedDict, cast

from pool.client import tracing
from pool.core.errors import BrokenPromise, InvalidInput, Refused
from pool.core.ids import RandomIds
from pool.core.literals import CancelOutcome, ReleaseOutcome, WorkerSource
from pool.core.states import Condition

ACQUIRE = "pool.acquire"
RENEW = "pool.renew"
RELEASE = "pool.release"
CANCEL = "pool.cancel"
# Even if the caller does not wait, the server may need the whole activation budget (30 s by
# default).
ANSWER_GRACE_S = 40.0
# Ending a claim needs no activation, so these answers are fast.
BRIEF_S = 10.0
LONGEST_WAIT_S = 3600.0
LEASE_S = 30.0
# The most workers of one `acquire_many`.
MOST_TOGETHER = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """A task, its arguments, and how long to wait for the answer."""

    task: str
    kwargs: Mapping[str, object]
    patience_s: float = BRIEF_S
    traceparent: str = ""

    def request(self) -> tuple[object, object] | None:
        """Return the request that an acquire makes, or None for other calls. Two calls may make the
        same request.
        """
        return (self.kwargs["org"], self.kwargs["request_id"]) if self.task == ACQUIRE else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A claim as the server granted it."""

    claim_id: str
    worker_id: str
    epoch: int
    pod: str
    endpoint: str
    token: str = field(repr=False)
    lease_expires_at: datetime
    source: WorkerSource
    ttl_s: int | None = None

    def claim(self, *, lease_s: float) -> dict[str, object]:
        """Return the claim as JSON can carry it: the answer to its acquire, and its lease."""
        answer = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            "outcome": "granted",
            **answer,
            "lease_expires_at": self.lease_expires_at.isoformat(),
            "lease_s": lease_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """The answer to one renewal: the state of each claim."""

    renewed: Mapping[str, datetime]
    gone: Mapping[str, str]
    leaving: Mapping[str, str]
    unhealthy: Mapping[str, str]


def acquire_arguments(
    org: str, profile: str, request_id: str | None, *, wait_s: float, lease_s: float, ttl_s: float | None
) -> dict[str, object]:
    """Return the arguments of an acquire. They always have a request_id, so that sending the
    message twice acquires one worker.
    """
    return {
        "org": org,
        "profile": profile,
        "request_id": RandomIds().request() if request_id is None else request_id,
        "lease_s": lease_s,
        "ttl_s": ttl_s,
        "wait_s": wait_s,
    }


class Limits(TypedDict, total=False):
    """The arguments of `acquire` that `acquire_many` and `run` pass on."""

    wait_s: float
    lease_s: float
    ttl_s: float | None
    traceparent: str | None


def acquiring(  # noqa: PLR0913 - the arguments of the task
    org: str,
    profile: str,
    request_id: str | None = None,
    *,
    grace_s: float,
    wait_s: float = 0,
    lease_s: float = LEASE_S,
    ttl_s: float | None = None,
    traceparent: str | None = None,
) -> PendingCall:
    """Return the call for one worker, in the current trace."""
    arguments = acquire_arguments(org, profile, request_id, wait_s=wait_s, lease_s=lease_s, ttl_s=ttl_s)
    return acquire(arguments, grace_s=grace_s, traceparent=tracing.traceparent(traceparent))


def acquire(arguments: Mapping[str, object], *, grace_s: float, traceparent: str = "") -> PendingCall:
    wait_s = arguments["wait_s"]
    # The server refuses a value that is out of bounds or has the wrong type. Here it must only not
    # make the client wait forever.
    waiting = max(0.0, min(float(wait_s), LONGEST_WAIT_S)) if isinstance(wait_s, int | float) else 0.0
    return PendingCall(
        task=ACQUIRE, kwargs=dict(arguments), patience_s=waiting + grace_s, traceparent=traceparent
    )


def number_of(count: object) -> int:
    """Return the number of workers to acquire together, if it is valid."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_TOGETHER:
        raise InvalidInput("count", f"must be a whole number from 1 to {MOST_TOGETHER}, got {count!r}")
    return count


def renew(claim_ids: Iterable[str], *, patience_s: float) -> PendingCall:
    return PendingCall(task=RENEW, kwargs={"claim_ids": list(claim_ids)}, patience_s=patience_s)


def release(claim_id: str, condition: str) -> PendingCall:
    return PendingCall(task=RELEASE, kwargs={"claim_id": claim_id, "condition": str(Condition(condition))})


def cancel(org: object, request_id: object) -> PendingCall:
    return PendingCall(task=CANCEL, kwargs={"org": org, "request_id": request_id})


def granted(result: object) -> Grant:
    """Return the grant, or raise `Refused`."""
    answer = _mapping(ACQUIRE, result)
    _refuse(answer)
    try:
        return Grant(
            claim_id=str(answer["claim_id"]),
            worker_id=str(answer["worker_id"]),
            epoch=int(answer["epoch"]),
            pod=str(answer["pod"]),
            endpoint=str(answer["endpoint"]),
            token=str(answer["token"]),
            lease_expires_at=_instant(answer["lease_expires_at"]),
            source=cast("WorkerSource", str(answer["source"])),
            ttl_s=None if answer.get("ttl_s") is None else int(answer["ttl_s"]),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise BrokenPromise(f"the answer to {ACQUIRE} does not match the task contract: {exc!r}") from exc


def adopted(claim: Mapping[str, object]) -> Grant:
    """Return the grant of a claim that was passed on. Raise `Refused` if it is a refusal."""
    try:
        return granted(dict(claim))
    except BrokenPromise as exc:
        raise InvalidInput("claim", f"is not an answer to {ACQUIRE}: {exc.__cause__!r}") from exc


def lease_of(claim: Mapping[str, object], given: float | None) -> float:
    """Return the lease of a claim that was passed on, in seconds."""
    lease_s = claim.get("lease_s", LEASE_S) if given is None else given
    if isinstance(lease_s, bool) or not isinstance(lease_s, int | float) or not lease_s > 0:
        raise InvalidInput("lease_s", f"must be a number of seconds above 0, got {lease_s!r}")
    return lease_s


def renewal(result: object) -> Renewal:
    answer = _mapping(RENEW, result)
    _refuse(answer)
    try:
        renewed = {claim_id: _instant(at) for claim_id, at in answer["renewed"].items()}
        return Renewal(
            renewed=renewed,
            gone=dict(answer["gone"]),
            leaving=dict(answer.get("leaving") or {}),
            unhealthy=dict(answer.get("unhealthy") or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise BrokenPromise(f"the answer to {RENEW} does not match the task contract: {exc!r}") from exc


def released(result: object) -> ReleaseOutcome:
    """Return the outcome of a release, or raise `Refused`."""
    return cast("ReleaseOutcome", _outcome(RELEASE, result))


def cancelled(result: object) -> CancelOutcome:
    """Return the outcome of a cancel, or raise `Refused`."""
    return cast("CancelOutcome", _outcome(CANCEL, result))


def _outcome(task: str, result: object) -> str:
    answer = _mapping(task, result)
    _refuse(answer)
    return str(answer.get("outcome"))


def _mapping(what: str, result: object) -> dict[str, Any]:
    if not isinstance(result, dict):
        raise BrokenPromise(f"the answer to {what} is a {type(result).__name__}, not an object")
    return result


def _refuse(answer: Mapping[str, object]) -> None:
    if answer.get("outcome") != "refused":
        return
    after = answer.get("retry_after_s")
    raise Refused(
        str(answer.get("reason")),
        detail=str(answer.get("detail") or ""),
        retry_after_s=float(after) if isinstance(after, int | float) else None,
    )


def _instant(text: object) -> datetime:
    at = datetime.fromisoformat(str(text))
    if at.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return at
