"""What services call, as ordinary Celery tasks. The lane (`tasks.lane`) carries out most of it before Celery gets to see it; what it leaves,
and everything where it is switched off, comes here. Bad input is answered, never raised; an outage is raised once it outlasts a
short patience."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery import Task
from celery.exceptions import Ignore
from redis import Redis
from redis.exceptions import RedisError

from pool import claiming
from pool.batching import Asking
from pool.contract import RefusedAnswer, Release, Renew
from pool.errors import InvalidInput, Transient
from pool.records import ReplyTo
from pool.signing import HEADER, Asked, Proof, Trouble
from pool.states import Reason
from tasks.app import app
from tasks.calls import Call, carried_out, parsed, patiently, told
from tasks.options import CALLER_FACING, INTERNAL
from tasks.proving import ANSWERED, OPEN, ForeignOrg, Nonce, Proven, Unproven, nonce_key
from tasks.replies import REPLY_PREFIX, Answered


class CallerTask(Task[Any, Any]):
    """A task whose answer is marked as delivered once it is."""

    abstract = True

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if isinstance(retval, Answered):
            if retval.pk:
                app.delivered.add(retval.pk)
            if retval.nonce:
                _spend(retval.nonce, ANSWERED)


def _answer(task: CallerTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answered:
    """Wrong arguments are an answer that names the field; an open request leaves the result open."""
    address = task.request.reply_to or ""
    reply = ReplyTo(
        task_id=task.request.id or "", address=address if address.startswith(REPLY_PREFIX) else ""
    )
    asked = Asked(task=task.name, task_id=reply.task_id, address=reply.address, args=args, kwargs=kwargs)
    proven = _proven(task, asked)
    if isinstance(proven, Unproven):
        return _refused(proven)
    answer: Answered | None
    try:
        most = app.settings.pool.hot_idle_ttl_max_s
        call = parsed(task.name, args, kwargs, reply, ttl_max_s=most, org=proven.org)
        answer = patiently(app, lambda: _carried_out(call))
    except ForeignOrg as exc:
        return _refused(app.prover.foreign(exc, asked, _headers(task), proven))
    except InvalidInput as exc:
        answer = Answered(RefusedAnswer(reason=Reason.INVALID, detail=exc.detail).as_dict())
    if answer is None:
        if proven.nonce:
            _spend(proven.nonce, OPEN)
        raise Ignore
    answer.nonce = proven.nonce
    return answer


def _proven(task: CallerTask, asked: Asked) -> Proven | Unproven:
    """Asks the broker for its time and its memory, in one round trip."""
    request, headers = task.request, _headers(task)
    if request.callbacks or request.errbacks or request.chain or request.chord:
        # They would be sent with the rights of this process, to queues that the caller may have no right to.
        request.callbacks = request.errbacks = request.chain = request.chord = None
        return app.prover.refusal(Trouble.FOLLOWED, asked, headers)
    if not app.prover.is_on:
        return Proven()
    return patiently(app, lambda: _looked_up(asked, headers))  # type: ignore[no-any-return]


def _looked_up(asked: Asked, headers: dict[str, Any]) -> Proven | Unproven:
    app.tenants.read_if_old()
    try:
        with _redis().pipeline(transaction=False) as pipe:
            pipe.time()
            proof = Proof.parse(headers.get(HEADER))
            pipe.get("" if proof is None else nonce_key(proof))
            (seconds, microseconds), said = pipe.execute()
    except (RedisError, OSError) as exc:
        raise Transient(f"redis: {exc}") from exc
    proven = app.prover.prove(asked, headers, seconds + microseconds / 1e6)
    if isinstance(proven, Proven) and proven.nonce and said is not None:
        return app.prover.replayed(asked, headers, proven, said.decode())
    return proven


def _headers(task: CallerTask) -> dict[str, Any]:
    given = task.request.headers
    return {**(given if isinstance(given, dict) else {}), "origin": task.request.origin}


def _refused(unproven: Unproven) -> Answered:
    app.prover.write_down(unproven)
    if not unproven.told:
        raise Ignore
    return Answered(unproven.answer.as_dict())


def _redis() -> Redis:
    return app.backend.client  # type: ignore[attr-defined,no-any-return]


def _spend(nonce: Nonce, said: str) -> None:
    """Lost with a broker that is away, it lets one more copy be served, which changes nothing: every call may be repeated."""
    with suppress(RedisError, OSError):
        _redis().set(nonce.key, said, ex=nonce.keep_s)


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
