"""What services call, as ordinary Celery tasks. The lane (`tasks.lane`) carries out most of it before Celery gets to see it; what it leaves,
and everything where it is switched off, comes here. Bad input is answered, never raised; an outage is raised once it outlasts a
short patience."""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.exceptions import Ignore

from pool import claiming
from pool.batching import Asking
from pool.contract import RefusedAnswer, Release, Renew
from pool.errors import InvalidInput
from pool.records import ReplyTo
from pool.states import Reason
from tasks.app import app
from tasks.calls import Call, carried_out, parsed, patiently, told
from tasks.options import CALLER_FACING, INTERNAL
from tasks.replies import REPLY_PREFIX, Answered


class CallerTask(Task[Any, Any]):
    """A task whose answer is marked as delivered once it is."""

    abstract = True

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if isinstance(retval, Answered) and retval.pk:
            app.delivered.add(retval.pk)


def _answer(task: CallerTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answered:
    """Wrong arguments are an answer that names the field; an open request leaves the result open."""
    address = task.request.reply_to or ""
    reply = ReplyTo(
        task_id=task.request.id or "", address=address if address.startswith(REPLY_PREFIX) else ""
    )
    try:
        call = parsed(task.name, args, kwargs, reply, ttl_max_s=app.settings.pool.hot_idle_ttl_max_s)
        answer = patiently(app, lambda: _carried_out(call))
    except InvalidInput as exc:
        return Answered(RefusedAnswer(reason=Reason.INVALID, detail=exc.detail).as_dict())
    if answer is None:
        raise Ignore
    return answer  # type: ignore[no-any-return]


def _carried_out(call: Call) -> Answered | None:
    match call:
        case Asking():
            return told(app, claiming.acquire(app.deps, call.asked, call.reply))
        case Renew():
            return Answered(claiming.renew(app.deps, call))
        case Release():
            return Answered(claiming.release(app.deps, call))
        case _:
            return carried_out(app, call)


@app.task(name="pool.acquire", base=CallerTask, bind=True, **CALLER_FACING)
def acquire(self: CallerTask, *args: Any, **kwargs: Any) -> Answered:
    """Give the caller a worker, refuse, or leave the result open until somebody decides it."""
    return _answer(self, args, kwargs)


@app.task(name="pool.renew", base=CallerTask, bind=True, **CALLER_FACING)
def renew(self: CallerTask, *args: Any, **kwargs: Any) -> Answered:
    """Extend the leases of all the claims that a client holds."""
    return _answer(self, args, kwargs)


@app.task(name="pool.release", base=CallerTask, bind=True, **CALLER_FACING)
def release(self: CallerTask, *args: Any, **kwargs: Any) -> Answered:
    """End a claim; repeating it is harmless."""
    return _answer(self, args, kwargs)


@app.task(name="pool.cancel", base=CallerTask, bind=True, **CALLER_FACING)
def cancel(self: CallerTask, *args: Any, **kwargs: Any) -> Answered:
    """Withdraw a request that has no answer yet."""
    return _answer(self, args, kwargs)


@app.task(name="pool.canary", base=CallerTask, bind=True, **INTERNAL)
def canary(self: CallerTask) -> None:
    """Show that what callers send is served."""
    _answer(self, (), {})
