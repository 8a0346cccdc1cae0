"""The pages and the JSON API. They only read; the JSON is the same as that of the CLI with `-o json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse

from pool.core.clock import wall_s
from pool.core.settings import Settings
from pool.core.states import LIVE, State
from pool.ops import reporting
from pool.ops.board.feed import Feed
from pool.ops.board.gate import COOKIE, Gate
from pool.ops.board.inputs import Rejected
from pool.ops.board.proxies import Proxies
from pool.ops.board.rendering import Templates
from pool.ops.board.users import SignOn, User
from pool.ops.reporting.explaining import NotFound
from pool.store import Store
from pool.store.operator_queries import ListFilter

MOST_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class Board:
    """Dependencies of the handlers."""

    store: Store
    settings: Settings
    feed: Feed
    gate: Gate
    templates: Templates
    proxies: Proxies
    sign_on: SignOn
    # Whether cookies always get the Secure flag.
    always_secure: bool

    def is_secure(self, request: Request) -> bool:
        """Return whether the session cookie gets the Secure flag."""
        return self.always_secure or self.proxies.is_tls(request.scope)

    def user(self, request: Request) -> User | None:
        """Return the user of this request: named by a trusted proxy, or signed in with the password; None if
        neither."""
        return self.sign_on.user(self.proxies, request.scope) or self.gate.user(
            request.cookies.get(COOKIE, ""), now_s=wall_s()
        )

    def html(self, request: Request, template: str, *, code: int = 200, **given: Any) -> HTMLResponse:
        """Return a rendered page."""
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
    """Serve the main page."""
    board = board_of(request)
    seen = await board.feed.fresh()
    return board.html(request, "home", panels=board.feed.panels, status=seen.status)


async def events(request: Request) -> Response:
    """Serve live updates (server-sent events)."""
    feed = board_of(request).feed
    feed.must_have_room()
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(feed.listen(), media_type="text/event-stream", headers=headers)


async def worker(request: Request) -> Response:
    """Serve the page of one worker."""
    board = board_of(request)
    report = await run_in_threadpool(
        reporting.explain_worker, board.store, board.settings, request.path_params["name"]
    )
    return board.html(request, "worker", report=report, driver=board.settings.pool.driver)


async def at_place(request: Request) -> Response:
    """Return the worker at a place of the picture: its explanation for the tooltip, its page for
    the click.
    """
    board = board_of(request)
    cell = board.feed.fleet.at(int(request.path_params["place"]))
    if cell is None:
        return JSONResponse({"error": "there is no worker at this place any more"}, status_code=404)
    report = await run_in_threadpool(reporting.explain_worker, board.store, board.settings, cell.id)
    last = {"story": report["story"][-4:], "claims": [], "page": f"/workers/{cell.id}"}
    return JSONResponse({**report, **last})


async def orgs_like(request: Request) -> Response:
    """Return the numbers of the orgs whose name contains the given part."""
    return JSONResponse(board_of(request).feed.fleet.orgs_like(request.query_params.get("part", "")))


async def api_status(request: Request) -> Response:
    """Return the JSON of `warmpool status -o json`, from the shared reading."""
    return JSONResponse((await board_of(request).feed.fresh()).status)


async def api_get(request: Request) -> Response:
    """Return the JSON of `warmpool get KIND -o json`."""
    board, kind = board_of(request), request.path_params["kind"]
    if kind not in reporting.KINDS:
        text = f"cannot list {kind!r}; the kinds are: {', '.join(reporting.KINDS)}"
        return JSONResponse({"error": text}, status_code=404)
    query = request.query_params
    try:
        states = frozenset(State(s) for s in query.getlist("state")) or LIVE
        limit = min(MOST_ROWS, max(1, int(query.get("limit", "500"))))
    except ValueError as exc:
        return JSONResponse({"error": str(exc)}, status_code=400)
    wanted = ListFilter(
        org=query.get("org", ""), profile=query.get("profile", ""), node=query.get("node", ""),
        states=states, limit=limit,
    )  # fmt: skip
    return JSONResponse(await run_in_threadpool(reporting.table, board.store, board.settings, kind, wanted))


async def api_worker(request: Request) -> Response:
    """Return the JSON of `warmpool explain WORKER -o json`."""
    board, name = board_of(request), request.path_params["name"]
    return JSONResponse(await run_in_threadpool(reporting.explain_worker, board.store, board.settings, name))


async def api_request(request: Request) -> Response:
    """Return the JSON of `warmpool explain REQUEST --org ORG -o json`. The org is required, so that an index
    finds the request."""
    board, params = board_of(request), request.path_params

    def explain() -> dict[str, Any]:
        return reporting.explain_request(board.store, board.settings, params["name"], org=params["org"])

    return JSONResponse(await run_in_threadpool(explain))


async def healthy(request: Request) -> Response:  # noqa: ARG001
    """Return ok while the process serves. The health of the pool is on the main page."""
    return PlainTextResponse("ok\n")


async def failed(request: Request, exc: Exception) -> Response:
    """Return an error as a page or as JSON."""
    board = board_of(request)
    code = _code(exc)
    if request.scope["path"].startswith(("/api/", "/fleet/")):
        return JSONResponse({"error": str(exc)}, status_code=code)
    return board.html(request, "message", code=code, title="The request failed", text=str(exc))


def _code(exc: Exception) -> int:
    if isinstance(exc, Rejected):
        return exc.code
    return 404 if isinstance(exc, NotFound) else 503
