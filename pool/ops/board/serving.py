"""The board as an ASGI app, and the process that serves it. It listens on loopback by default;
other addresses need a password, single sign-on or `--open`."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from math import ceil

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pool.core.clock import Clock
from pool.core.errors import PoolError
from pool.core.settings import Settings
from pool.lifecycle.deps import Deps
from pool.ops.board import acting, pages
from pool.ops.board.feed import Feed
from pool.ops.board.gate import Gate
from pool.ops.board.inputs import Rejected, check_target
from pool.ops.board.pages import Board
from pool.ops.board.proxies import Proxies
from pool.ops.board.rendering import HERE, Links, Templates
from pool.ops.board.users import SignOn
from pool.store import Store

_CSP = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
        "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
    )
)  # fmt: skip
HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer, browsers also hide the origin of our own forms, which we need to reject forms of other
    # sites.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PUBLIC = ("/sign-in", "/static/", "/healthz")
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the board listens and who may view it."""

    host: str = "127.0.0.1"
    port: int = 8090
    password: str = field(default="", repr=False)
    open_to_all: bool = False
    proxies: Proxies = field(default_factory=Proxies)
    sign_on: SignOn = field(default_factory=SignOn)
    secure_cookie: bool = False

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def must_be_safe(self) -> None:
        """Raise `PoolError` if the board would be open to a network without `--open`, or if settings
        contradict each other."""
        self.sign_on.must_fit(self.proxies)
        if not (self.is_loopback or self.password or self.open_to_all or self.sign_on.is_on):
            raise PoolError(
                f"the board would be visible to everyone who can reach {self.host}: set a password "
                "(WARMPOOL_RUN_BOARD_PASSWORD or --password-file), use single sign-on (--sso-user-header), "
                "or add --open if everyone may view it"
            )


def build(
    store: Store, settings: Settings, *, where: Where, links: Links, clock: Clock, deps: Callable[[], Deps]
) -> Starlette:
    """Return the app. `deps` is called at the first action."""
    where.must_be_safe()
    templates = Templates(links=links)
    feed = Feed(store, settings, clock, templates.panels)
    gate = Gate(password=where.password, clock=clock, open_to_all=where.is_loopback or where.open_to_all)

    @contextlib.asynccontextmanager
    async def reading(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(feed.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    app = Starlette(
        routes=[
            Route("/", pages.home),
            Route("/events", pages.events),
            Route("/workers/{name}", pages.worker),
            Route("/fleet/{place:int}", pages.at_place),
            Route("/fleet/orgs", pages.orgs_like),
            Route("/act/{kind}/{name}/{verb}", acting.action, methods=["GET", "POST"]),
            Route("/sign-in", acting.sign_in, methods=["GET", "POST"]),
            Route("/sign-out", acting.sign_out, methods=["POST"]),
            Route("/api/status", pages.api_status),
            Route("/api/get/{kind}", pages.api_get),
            Route("/api/explain/worker/{name}", pages.api_worker),
            Route("/api/explain/request/{org}/{name:path}", pages.api_request),
            Route("/healthz", pages.healthy),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        exception_handlers={PoolError: pages.failed, 404: _nothing_there},
        middleware=[Middleware(Guard, where=where, gate=gate)],
        lifespan=reading,
    )
    app.state.board = Board(
        store=store, settings=settings, feed=feed, gate=gate, templates=templates, proxies=where.proxies,
        sign_on=where.sign_on, always_secure=where.secure_cookie,
    )  # fmt: skip
    app.state.deps = cache(deps)
    return app


class Guard:
    """Middleware: adds security headers, rejects invalid targets and foreign host names, and
    requires a sign-in where needed. Pure ASGI, so that streams are not buffered."""

    def __init__(self, app: ASGIApp, *, where: Where, gate: Gate) -> None:
        self._app, self._where, self._gate = app, where, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refused(scope)
        await (refused or self._app)(scope, receive, with_headers)

    def _refused(self, scope: Scope) -> Response | None:
        try:
            check_target(scope)
        except Rejected as exc:
            return PlainTextResponse(f"{exc}\n", status_code=exc.code)
        # DNS rebinding: another site can make its own host name resolve to 127.0.0.1, so reject foreign host
        # names.
        host = Headers(scope=scope).get("host", "").rsplit(":", 1)[0]
        if self._where.is_loopback and host not in _LOOPBACK_NAMES:
            return PlainTextResponse(f"unknown host {host}: open this board at 127.0.0.1\n", status_code=421)
        if self._gate.open_to_all or scope["path"].startswith(_PUBLIC):
            return None
        request = Request(scope)
        if scope["app"].state.board.user(request):
            return None
        if scope["method"] == "GET" and (header := request.headers.get("authorization", "")):
            address = self._where.proxies.address(scope)
            if (wait_s := ceil(self._gate.wait_s(address))) > 0:
                text = f"too many wrong passwords from {address}: wait {wait_s} s\n"
                return PlainTextResponse(text, status_code=429, headers={"Retry-After": str(wait_s)})
            if self._gate.accepts_header(header, address=address):
                return None
        if scope["path"].startswith(("/api/", "/fleet/", "/events")):
            return PlainTextResponse(
                "sign-in required\n", status_code=401, headers={"WWW-Authenticate": "Basic"}
            )
        return RedirectResponse("/sign-in", status_code=303)


class _Server(uvicorn.Server):
    """Server that ends with exit code 0 on SIGTERM and SIGINT."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(*_: object) -> None:
            self.should_exit = True

        before = {sig: signal.signal(sig, stop) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def server_config(app: Starlette, where: Where) -> uvicorn.Config:
    """Return the configuration of the server. Open streams are closed after one second at shutdown.
    Only `Proxies` reads the headers of proxies, because uvicorn would trust every caller on
    loopback."""
    return uvicorn.Config(
        app, host=where.host, port=where.port, log_config=None, access_log=False, server_header=False,
        lifespan="on", timeout_graceful_shutdown=1, proxy_headers=False,
    )  # fmt: skip


def serve(app: Starlette, where: Where) -> None:
    """Serve until SIGTERM or SIGINT."""
    server = _Server(server_config(app, where))
    server.run()
    if not server.started:
        raise PoolError(f"cannot listen on {where.host}:{where.port}: choose another --port or --host")


async def _nothing_there(request: Request, exc: Exception) -> Response:  # noqa: ARG001
    board = pages.board_of(request)
    return board.html(
        request,
        "message",
        code=404,
        title="Page not found",
        text=f"There is no page {request.scope['path']}.",
    )
