"""The pages and the JSON under them. Reading: the same values that the CLI prints with `-o json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse

from pool import reporting
from pool.board.feed import Feed
from pool.board.gate import COOKIE, Gate
from pool.board.inputs import Rejected
from pool.board.proxies import Proxies
from pool.board.rendering import Templates
from pool.board.users import SignOn, User
from pool.clock import wall_s
from pool.reporting.explaining import NotFound
from pool.settings import Settings
from pool.states import LIVE, State
from pool.store import Store
from pool.store.looking import Wanted

MOST_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class Board:
    """What the handlers work with."""

    store: Store
    settings: Settings
    feed: Feed
    gate: Gate
    templates: Templates
    proxies: Proxies
    sign_on: SignOn
    # Whether cookies are for TLS only, however a request came.
    always_secure: bool

    def is_secure(self, request: Request) -> bool:
        """Whether the caller may be given a cookie that it sends over TLS only."""
        return self.always_secure or self.proxies.is_tls(request.scope)

    def user(self, request: Request) -> User | None:
        """The user of this request: whom a trusted proxy names, else who signed in with the password."""
        return self.sign_on.user(self.proxies, request.scope) or self.gate.user(
            request.cookies.get(COOKIE, ""), now_s=wall_s()
        )

    def html(self, request: Request, template: str, *, code: int = 200, **given: Any) -> HTMLResponse:
        """A page, with what all pages show."""
        user = self.user(request)
        common = {
            "user": user,
            "can_act": user is not None and user.can_act,
            "can_sign_in": self.gate.has_password,
            "form_token": self.gate.form_token(user.session) if user else "",
            "path": request.scope["path"],
        }
        return HTMLResponse(self.templates.page(template, **common, **given), status_code=code)


def board_of(request: Request) -> Board:
    board: Board = request.app.state.board
    return board


async def home(request: Request) -> Response:
    """The one page."""
    board = board_of(request)
    seen = await board.feed.fresh()
    return board.html(request, "home", panels=board.feed.panels, status=seen.status)


async def events(request: Request) -> Response:
    """Live updates (server-sent events)."""
    feed = board_of(request).feed
    feed.must_have_room()
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(feed.listen(), media_type="text/event-stream", headers=headers)


async def worker(request: Request) -> Response:
    """One worker's whole life."""
    board = board_of(request)
    told = await run_in_threadpool(
        reporting.explain_worker, board.store, board.settings, request.path_params["name"]
    )
    return board.html(request, "worker", told=told, driver=board.settings.pool.driver)


async def at_place(request: Request) -> Response:
    """Who stands at a place of the picture: its story for the hover, its page for the click."""
    board = board_of(request)
    cell = board.feed.fleet.at(int(request.path_params["place"]))
    if cell is None:
        return JSONResponse({"error": "nobody stands there any more"}, status_code=404)
    told = await run_in_threadpool(reporting.explain_worker, board.store, board.settings, cell.id)
    return JSONResponse({**told, "story": told["story"][-4:], "claims": [], "page": f"/workers/{cell.id}"})


async def orgs_like(request: Request) -> Response:
    """Which orgs of the picture are meant by a part of a name."""
    return JSONResponse(board_of(request).feed.fleet.orgs_like(request.query_params.get("part", "")))


async def api_status(request: Request) -> Response:
    """`warmpool status -o json`, from the shared reading."""
    return JSONResponse((await board_of(request).feed.fresh()).status)


async def api_get(request: Request) -> Response:
    """`warmpool get KIND -o json`."""
    board, kind = board_of(request), request.path_params["kind"]
    if kind not in reporting.KINDS:
        return JSONResponse({"error": f"no {kind!r}: one of {', '.join(reporting.KINDS)}"}, status_code=404)
    asked = request.query_params
    try:
        states = frozenset(State(s) for s in asked.getlist("state")) or LIVE
        limit = min(MOST_ROWS, max(1, int(asked.get("limit", "500"))))
    except ValueError as exc:
        return JSONResponse({"error": str(exc)}, status_code=400)
    wanted = Wanted(
        org=asked.get("org", ""), profile=asked.get("profile", ""), node=asked.get("node", ""), states=states, limit=limit
    )  # fmt: skip
    return JSONResponse(await run_in_threadpool(reporting.table, board.store, board.settings, kind, wanted))


async def api_worker(request: Request) -> Response:
    """`warmpool explain WORKER -o json`."""
    board, name = board_of(request), request.path_params["name"]
    return JSONResponse(await run_in_threadpool(reporting.explain_worker, board.store, board.settings, name))


async def api_request(request: Request) -> Response:
    """`warmpool explain REQUEST --org ORG -o json`; the org is asked for, since only with it a request is found by an index."""
    board, params = board_of(request), request.path_params

    def told() -> dict[str, Any]:
        return reporting.explain_request(board.store, board.settings, params["name"], org=params["org"])

    return JSONResponse(await run_in_threadpool(told))


async def healthy(request: Request) -> Response:  # noqa: ARG001
    """The process serves; whether the pool is well is on the page."""
    return PlainTextResponse("ok\n")


async def failed(request: Request, exc: Exception) -> Response:
    """What the pool can not do, as a page or as JSON."""
    board = board_of(request)
    code = _code(exc)
    if request.scope["path"].startswith(("/api/", "/fleet/")):
        return JSONResponse({"error": str(exc)}, status_code=code)
    return board.html(request, "said", code=code, title="That did not work", text=str(exc))


def _code(exc: Exception) -> int:
    if isinstance(exc, Rejected):
        return exc.code
    return 404 if isinstance(exc, NotFound) else 503
