"""What a task of the contract asks for, and the general way to carry it out: the same for Celery's tasks and for the lane."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pool import claiming
from pool.backoff import Backoff, retrying
from pool.batching import Asking
from pool.contract import Acquire, Cancel, Granted, Pending, RefusedAnswer, Release, Renew, bound
from pool.ids import OrgId
from pool.periods import PERIODS_S
from pool.records import ReplyTo
from pool.store.lane import canary_answered
from tasks.proving import ForeignOrg
from tasks.replies import Answered

if TYPE_CHECKING:
    from tasks.app import WarmpoolApp

# An outage is waited out for a moment before the caller hears of it.
_PATIENCE = Backoff(first_s=0.05, factor=2.0, limit_s=1.0, tries=10)


@dataclass(frozen=True, slots=True)
class Canary:
    """Shows that what callers send is served: leases run only while this comes through."""


Call = Asking | Release | Renew | Cancel | Canary


def parsed(
    task: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    reply: ReplyTo,
    *,
    ttl_max_s: int,
    org: OrgId | None = None,
) -> Call:
    """Checked arguments; `InvalidInput` names the field. `org` is the one that has signed, if requests are signed: it stands for the argument."""
    match task:
        case "pool.acquire":
            given = _of(
                org, bound(("org", "profile", "request_id", "lease_s", "ttl_s", "wait_s"), args, kwargs)
            )
            return Asking(asked=Acquire.parse(given, task_id=reply.task_id, ttl_max_s=ttl_max_s), reply=reply)
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


def patiently(app: WarmpoolApp, call: Callable[[], Any]) -> Any:
    """`Transient` only if it lasts."""
    return retrying(call, policy=_PATIENCE, clock=app.deps.clock, stop=app.stopping)


def carried_out(app: WarmpoolApp, call: Call) -> Answered | None:
    """The answer, or None: somebody will decide it later. It is not known to be of the common case."""
    deps = app.deps
    match call:
        case Asking():
            return told(app, claiming.acquire_at_length(deps, call.asked, call.reply))
        case Renew():
            return Answered(claiming.renew(deps, call))
        case Release():
            return Answered(claiming.release_at_length(deps, call))
        case Cancel():
            return Answered(claiming.cancel(deps, call))
        case Canary():
            with deps.store.write() as tx:
                canary_answered(tx, gap_s=2 * PERIODS_S["reap"])
            return Answered({})


def told(app: WarmpoolApp, answer: Granted | RefusedAnswer | Pending | dict[str, Any]) -> Answered | None:
    """An answer on its way, or None if there is none yet; then a timer ends the wait."""
    if isinstance(answer, Pending):
        pk = answer.request_pk
        app.waits.add(pk, answer.until_s + 0.05)
        return None
    return Answered(answer) if isinstance(answer, dict) else Answered(answer.as_dict(), answer.pk)
