"""What services call. Bad input is answered, never raised; an outage is raised once it outlasts a short patience."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from celery import Task
from celery.exceptions import Ignore

from pool import claiming
from pool.backoff import Backoff, retrying
from pool.contract import Acquire, Cancel, Pending, RefusedAnswer, Release, Renew, bound
from pool.errors import InvalidInput
from pool.periods import PERIODS_S
from pool.records import ReplyTo
from pool.states import Reason
from pool.store.lane import canary_answered
from tasks.app import app
from tasks.options import CALLER_FACING, INTERNAL
from tasks.replies import REPLY_PREFIX, Answered

_PATIENCE = Backoff(first_s=0.05, factor=2.0, limit_s=1.0, tries=10)


class CallerTask(Task[Any, Any]):
    """A task whose answer is marked as delivered once it is."""

    abstract = True

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if isinstance(retval, Answered) and retval.pk:
            app.delivered.add(retval.pk)


def _answering(task: Callable[..., Any]) -> Callable[..., Any]:
    """Wrong arguments are an answer that names the field; an outage is waited out for a moment."""

    @wraps(task)
    def answered(self: CallerTask, *args: Any, **kwargs: Any) -> Any:
        try:
            return retrying(
                lambda: task(self, *args, **kwargs), policy=_PATIENCE, clock=app.deps.clock, stop=app.stopping
            )
        except InvalidInput as exc:
            return RefusedAnswer(reason=Reason.INVALID, detail=exc.detail).as_dict()

    return answered


@app.task(name="pool.acquire", base=CallerTask, bind=True, **CALLER_FACING)
@_answering
def acquire(self: CallerTask, *args: Any, **kwargs: Any) -> Answered:
    """Give the caller a worker, refuse, or leave the result open until somebody decides it."""
    given = bound(("org", "profile", "request_id", "lease_s", "ttl_s", "wait_s"), args, kwargs)
    task_id = self.request.id or ""
    asked = Acquire.parse(given, task_id=task_id, ttl_max_s=app.settings.pool.hot_idle_ttl_max_s)
    address = self.request.reply_to or ""
    reply = ReplyTo(task_id=task_id, address=address if address.startswith(REPLY_PREFIX) else "")
    answer = claiming.acquire(app.deps, asked, reply)
    if isinstance(answer, Pending):
        app.timers.after(answer.until_s + 0.05, lambda: claiming.time_out(app.deps, answer.request_pk))
        raise Ignore
    return Answered(answer.as_dict(), answer.pk)


@app.task(name="pool.renew", base=CallerTask, bind=True, **CALLER_FACING)
@_answering
def renew(self: CallerTask, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG001
    """Extend the leases of all the claims that a client holds."""
    return claiming.renew(app.deps, Renew.parse(bound(("claim_ids",), args, kwargs).get("claim_ids")))


@app.task(name="pool.release", base=CallerTask, bind=True, **CALLER_FACING)
@_answering
def release(self: CallerTask, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG001
    """End a claim; repeating it is harmless."""
    given = bound(("claim_id", "condition"), args, kwargs)
    return claiming.release(app.deps, Release.parse(given.get("claim_id"), given.get("condition", "clean")))


@app.task(name="pool.cancel", base=CallerTask, bind=True, **CALLER_FACING)
@_answering
def cancel(self: CallerTask, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG001
    """Withdraw a request that has no answer yet."""
    given = bound(("org", "request_id"), args, kwargs)
    return claiming.cancel(app.deps, Cancel.parse(given.get("org"), given.get("request_id")))


@app.task(name="pool.canary", **INTERNAL)
def canary() -> None:
    """Show that what callers send is served: leases run only while this comes through."""
    with app.deps.store.write() as tx:
        canary_answered(tx, gap_s=2 * PERIODS_S["reap"])
