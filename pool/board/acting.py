"""What may be done from the board, by who has signed in: each asks first, carries the session's token, and names its doer in the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, urlsplit

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pool import operating
from pool.board.gate import COOKIE, SESSION_S
from pool.board.pages import Board, board_of
from pool.clock import wall_s
from pool.deps import Deps
from pool.errors import PoolError
from pool.ids import WorkerId
from pool.operating import Operator
from pool.periods import PERIODS_S
from pool.store import workers

log = structlog.get_logger(__name__)

MOST_FORM_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that can be done to one thing: how it is asked for, and how it is done."""

    verb: str
    warning: Callable[[Board, str], str]
    do: Callable[[Deps, str, Operator], str]
    back: Callable[[str], str]


def _about_drain(board: Board, name: str) -> str:
    return f"{_holder(board, name)} It leaves now if nobody uses it, else when its holder is done. Nobody's work is touched."


def _about_retire(board: Board, name: str) -> str:
    return f"{_holder(board, name)} It goes now: a claim on it ENDS, and its holder's work is lost."


def _holder(board: Board, name: str) -> str:
    with board.store.read() as tx:
        row = workers.get(tx, WorkerId(name))
    if row is None:
        raise PoolError(f"no worker {name} in the table")
    return f"{row.org} is using it." if row.claim_id else f"It is {row.state}."


def _drain(deps: Deps, name: str, operator: Operator) -> str:
    done = operating.drain(deps, [WorkerId(name)], operator)
    why_not = next(iter(done.left_alone.values()), "")
    return f"{name} {why_not}: left alone" if why_not else f"{name} drains"


def _about_pass(board: Board, name: str) -> str:  # noqa: ARG001
    if name not in PERIODS_S:
        raise PoolError(f"no pass {name}")
    return f"{name} runs every {PERIODS_S[name]:g} s. While it is paused nobody does its work, and its fallback rests too."


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
    """GET asks, POST does."""
    board, params = board_of(request), request.path_params
    found = ACTIONS.get((params["kind"], params["verb"]))
    if found is None:
        return board.html(request, "said", code=404, title="No such action", text=request.url.path)
    who = board.who(request)
    if who is None:
        return RedirectResponse(f"/sign-in?next={quote(request.url.path)}", status_code=303)
    name = params["name"]
    if request.method == "GET":
        warning = await run_in_threadpool(found.warning, board, name)
        return board.html(request, "confirm", action=found, name=name, warning=warning)
    form = await _form(request)
    if not _is_ours(board, request, form):
        return _not_ours(board, request)
    operator = Operator(name=who, way="board", why=form.get("why", "")[:200])
    said = await run_in_threadpool(found.do, request.app.state.deps(), name, operator)
    log.info("operator_acted", who=operator.who, verb=params["verb"], subject=name, said=said)
    return RedirectResponse(found.back(name), status_code=303)


async def sign_in(request: Request) -> Response:
    """A name and the password; the name is what the journal will say."""
    board = board_of(request)
    after = _inside(request.query_params.get("next", "/"))
    if request.method == "GET":
        return board.html(request, "sign_in", after=after, wrong="")
    form = await _form(request)
    if not _same_origin(request):
        return board.html(
            request, "said", code=403, title="Not from this board", text="The form came from elsewhere."
        )
    cookie = board.gate.sign_in(form.get("name", "").strip(), form.get("password", ""), now_s=wall_s())
    if cookie is None:
        closed = board.gate.is_closed()
        wrong = (
            "Too many wrong passwords: wait a minute." if closed else "That name or password is not right."
        )
        return board.html(request, "sign_in", code=429 if closed else 403, after=after, wrong=wrong)
    answer = RedirectResponse(_inside(form.get("next", "/")), status_code=303)
    answer.set_cookie(
        COOKIE, cookie, max_age=SESSION_S, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )  # fmt: skip
    return answer


async def sign_out(request: Request) -> Response:
    """Forget who this is."""
    board = board_of(request)
    if not _is_ours(board, request, await _form(request)):
        return _not_ours(board, request)
    answer = RedirectResponse("/", status_code=303)
    answer.delete_cookie(COOKIE)
    return answer


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_FORM_BYTES:
            raise PoolError("the form is too large")
    return {k: v[-1] for k, v in parse_qs(body.decode(errors="replace"), keep_blank_values=True).items()}


def _is_ours(board: Board, request: Request, form: dict[str, str]) -> bool:
    return _same_origin(request) and board.gate.is_form_token(
        form.get("token", ""), request.cookies.get(COOKIE, "")
    )


def _not_ours(board: Board, request: Request) -> Response:
    text = "The form was not one of this session."
    return board.html(request, "said", code=403, title="Not from this board", text=text)


def _same_origin(request: Request) -> bool:
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def _inside(path: str) -> str:
    """Only a path of ours; never another site."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
