"""Parse and check the arguments of a task of the contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pool.core import tracecontext
from pool.core.contract import Acquire, Cancel, Release, Renew, bound
from pool.core.ids import OrgId
from pool.core.records import ReplyTo
from pool.lifecycle.claiming import AcquireCall
from tasks.lane.exchange import Taken
from tasks.lane.proving import ForeignOrg


@dataclass(frozen=True, slots=True)
class Canary:
    """A check that messages of callers are served. Leases end only while canaries pass."""


LaneCall = AcquireCall | Release | Renew | Cancel | Canary


def parsed(taken: Taken) -> LaneCall:
    """Return the call. `InvalidInput` names the wrong field. If requests are signed, the org of the
    key replaces the argument.
    """
    message, org = taken.message, taken.proven.org
    args, kwargs = message.args, message.kwargs
    match message.task:
        case "pool.acquire":
            given = _of(
                org, bound(("org", "profile", "request_id", "lease_s", "ttl_s", "wait_s"), args, kwargs)
            )
            origin = message.headers.get("origin") or ""
            trace = message.headers.get(tracecontext.HEADER) or ""
            follows = message.followers.text if message.followers else ""
            reply = ReplyTo(
                task_id=message.task_id,
                address=message.address,
                origin=origin,
                traceparent=trace,
                followers=follows,
            )
            return AcquireCall(asked=Acquire.parse(given, task_id=reply.task_id), reply=reply)
        case "pool.renew":
            return Renew.parse(bound(("claim_ids",), args, kwargs).get("claim_ids"), org)
        case "pool.release":
            given = bound(("claim_id", "condition"), args, kwargs)
            return Release.parse(given.get("claim_id"), given.get("condition", "clean"), org)
        case "pool.cancel":
            given = _of(org, bound(("org", "request_id"), args, kwargs))
            return Cancel.parse(given.get("org"), given.get("request_id"))
        case _:
            return Canary()


def _of(org: OrgId | None, given: dict[str, Any]) -> dict[str, Any]:
    if org is None:
        return given
    if given.get("org") not in (None, org):
        raise ForeignOrg(org)
    return given | {"org": org}


def org_of(taken: Taken, call: LaneCall) -> str:
    """Return the org of a call if it is in the message, else a value that no other call shares."""
    if taken.proven.org is not None:
        return taken.proven.org
    match call:
        case AcquireCall(asked=asked):
            return asked.org
        case Cancel(org=org):
            return org
        case Release(claim_id=claim_id):
            return claim_id
    return taken.message.task_id
