"""Operator actions on the board. Each asks for confirmation, checks the session's form token, and
records the user in the journal. The board writes the decision to the database and the passes carry
it out, so that the board needs neither the master key nor the broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from urllib.parse import quote, urlsplit

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pool.core.clock import wall_s
from pool.core.errors import PoolError, Transient
from pool.core.ids import WorkerId
from pool.core.periods import PERIODS_S
from pool.lifecycle.deps import Deps
from pool.ops import operating
from pool.ops.board.gate import COOKIE, SESSION_S
from pool.ops.board.inputs import Rejected, form_of
from pool.ops.board.pages import Board, board_of
from pool.ops.board.users import User
from pool.ops.operating import Operator
from pool.ops.reporting.explaining import NotFound
from pool.passes.reap import DELETE_GRACE_S
from pool.store import workers

log = structlog.get_logger(__name__)

_DELETED = f"The pass reap deletes its pod about {DELETE_GRACE_S + PERIODS_S['reap']:g} s later."


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An operator action on one worker or pass: its warning, and the function that does it."""

    verb: str
    warning: Callable[[Board, str], str]
    do: Callable[[Deps, str, Operator], str]
    back: Callable[[str], str]


def _about_drain(board: Board, name: str) -> str:
    return (
        f"{_holder(board, name)} It drains now if it has no claim, else when its claim ends. No "
        f"claim ends early. {_DELETED}"
    )


def _about_retire(board: Board, name: str) -> str:
    return (
        f"{_holder(board, name)} It is retired now: a claim on it ENDS, and the holder's work "
        f"is lost. {_DELETED}"
    )


def _holder(board: Board, name: str) -> str:
    with board.store.read() as tx:
        row = workers.get(tx, WorkerId(name))
    if row is None:
        raise NotFound(f"there is no worker {name}")
    return f"{row.org} is using it." if row.claim_id else f"It is {row.state}."


def _drain(deps: Deps, name: str, operator: Operator) -> str:
    done = operating.drain(deps, [WorkerId(name)], operator)
    why_not = next(iter(done.left_alone.values()), "")
    if why_not:
        return f"{name} {why_not}: not drained"
    return f"{name} leaves when its claim ends" if done.leaving else f"{name} drained"


def _about_pass(board: Board, name: str) -> str:  # noqa: ARG001
    if name not in PERIODS_S:
        raise NotFound(f"there is no pass {name}")
    return (
        f"{name} runs every {PERIODS_S[name]:g} s. While it is paused, its work is not done, "
        "and its fallback does not run."
    )


def _pause(deps: Deps, name: str, operator: Operator) -> str:
    operating.set_pass_paused(deps.store, name, paused=True, operator=operator)
    return f"{name} paused"


def _resume(deps: Deps, name: str, operator: Operator) -> str:
    operating.set_pass_paused(deps.store, name, paused=False, operator=operator)
    return f"{name} resumed"


def _to_worker(name: str) -> str:
    return f"/workers/{quote(name)}"


ACTIONS = {
    ("workers", "drain"): Action(verb="Drain", warning=_about_drain, do=_drain, back=_to_worker),
    ("workers", "retire"): Action(
        verb="Retire", warning=_about_retire, back=_to_worker,
        do=lambda deps, name, operator: operating.retire(deps, WorkerId(name), operator),
    ),
    ("passes", "pause"): Action(verb="Pause", warning=_about_pass, do=_pause, back=lambda _: "/#passes"),
    ("passes", "resume"): Action(verb="Resume", warning=_about_pass, do=_resume, back=lambda _: "/#passes"),
}  # fmt: skip


async def action(request: Request) -> Response:
    """Show the confirmation page (GET), or carry out an action (POST)."""
    board, params = board_of(request), request.path_params
    found = ACTIONS.get((params["kind"], params["verb"]))
    if found is None:
        return board.html(request, "message", code=404, title="No such action", text=request.scope["path"])
    user = board.user(request)
    if user is None:
        return RedirectResponse(f"/sign-in?next={quote(request.scope['path'])}", status_code=303)
    if not user.can_act:
        text = f"{user.name} is a viewer. Only operators may {params['verb']}."
        return board.html(request, "message", code=403, title="Not allowed", text=text)
    name = params["name"]
    if request.method == "GET":
        warning = await run_in_threadpool(found.warning, board, name)
        return board.html(request, "confirm", action=found, name=name, warning=warning)
    form = await form_of(request)
    if not _is_ours(board, request, user, form):
        return _not_ours(board, request)
    operator = Operator(name=user.name, way=user.way, why=form.get("why", "")[:200])
    result = await run_in_threadpool(_done, found, request.app.state.deps(), name, operator)
    log.info("operator_acted", who=operator.who, verb=params["verb"], subject=name, result=result)
    return RedirectResponse(found.back(name), status_code=303)


def _done(action: Action, deps: Deps, name: str, operator: Operator) -> str:
    try:
        return action.do(deps, name, operator)
    except Transient:
        raise
    except PoolError as exc:
        raise Rejected(409, str(exc)) from exc


async def sign_in(request: Request) -> Response:
    """Sign in with a name and the password; the journal records the name."""
    board = board_of(request)
    after = _inside(request.query_params.get("next", "/"))
    if request.method == "GET":
        return board.html(request, "sign_in", after=after, wrong="")
    form = await form_of(request)
    if not _same_origin(board, request):
        return board.html(
            request,
            "message",
            code=403,
            title="Form rejected",
            text="The form was sent from another site. Open the board and sign in there.",
        )
    address = board.proxies.address(request.scope)
    if (wait_s := ceil(board.gate.wait_s(address))) > 0:
        wrong = f"Too many wrong passwords from {address}: wait {wait_s} s."
        refused = board.html(request, "sign_in", code=429, after=after, wrong=wrong)
        refused.headers["Retry-After"] = str(wait_s)
        return refused
    name = form.get("name", "").strip()
    cookie = board.gate.sign_in(name, form.get("password", ""), address=address, now_s=wall_s())
    if cookie is None:
        log.warning("sign_in_refused", address=address)
        wrong = "The name or the password is wrong."
        return board.html(request, "sign_in", code=403, after=after, wrong=wrong)
    answer = RedirectResponse(_inside(form.get("next", "/")), status_code=303)
    answer.set_cookie(
        COOKIE, cookie, max_age=SESSION_S, httponly=True, samesite="strict", secure=board.is_secure(request)
    )
    return answer


async def sign_out(request: Request) -> Response:
    """End this browser's session."""
    board = board_of(request)
    user, form = board.user(request), await form_of(request)
    if user is None or not _is_ours(board, request, user, form):
        return _not_ours(board, request)
    answer = RedirectResponse("/", status_code=303)
    answer.delete_cookie(COOKIE)
    return answer


def _is_ours(board: Board, request: Request, user: User, form: dict[str, str]) -> bool:
    return _same_origin(board, request) and board.gate.is_form_token(form.get("token", ""), user.session)


def _not_ours(board: Board, request: Request) -> Response:
    text = "The form does not belong to your session. Reload the page and try again."
    return board.html(request, "message", code=403, title="Form rejected", text=text)


def _same_origin(board: Board, request: Request) -> bool:
    origin = request.headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc in board.proxies.hosts(request.scope)
    except ValueError:
        return False


def _inside(path: str) -> str:
    """Return the path if it is one of this board, else `/`: never redirect to another site."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
