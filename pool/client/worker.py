"""Make an HTTP program a worker of the pool: middleware for ASGI and WSGI, with the standard library only.

    from warmpool.worker import WorkerMiddleware    # FastAPI, Starlette, Django (ASGI)
    app = WorkerMiddleware(app)

    from warmpool.worker import WsgiWorkerMiddleware    # Flask, Django (WSGI)
    app = WsgiWorkerMiddleware(app)

Each checks the token and the epoch of every request, counts open requests and sessions, answers
`/sessions` and `/healthz`, and drains on SIGTERM. The application finds its holder in
`scope["warmpool"]` or `environ["warmpool"]`. Run one process per worker, with as many threads or
tasks as you like: the epoch is in memory.

Any other program runs behind a proxy, and any program can be checked:

    python -m warmpool.worker proxy -- CMD
    python -m warmpool.worker check --command CMD
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from pool.client.worker_draining import Draining
from pool.client.worker_settings import WorkerSettings
from pool.core import tokens
from pool.core.clock import SystemClock
from pool.core.worker_state import Denial, Holder, WorkerState

__all__ = ["Holder", "WorkerMiddleware", "WorkerSettings", "WsgiWorkerMiddleware"]

HEALTH_PATH = "/healthz"
SESSIONS_PATH = "/sessions"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
StartResponse = Callable[..., Any]
WsgiApp = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]
OwnAnswer = tuple[int, dict[str, Any]]


class _Gate:
    """What both kinds of middleware share."""

    def __init__(self, settings: WorkerSettings | None, health_path: str | None) -> None:
        self.settings = WorkerSettings.from_environ() if settings is None else settings
        self.state = WorkerState(self.settings.key, SystemClock().monotonic)
        self.health_path = health_path
        self.draining = Draining(self.state, self.settings.grace_s)

    def open_answer(self, method: str, path: str) -> OwnAnswer | None:
        """Return the answer to a request that needs no token; None if the request needs one."""
        if method not in ("GET", "HEAD"):
            return None
        if path == SESSIONS_PATH:
            return 200, self.state.self_report()
        if self.health_path is not None and path == self.health_path:
            return 503 if self.state.draining else 200, {"draining": self.state.draining}
        return None

    def enter(self, headers: Mapping[str, str]) -> Holder | Denial:
        """Begin a request. `headers` have names in lower case."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        claim, epoch = (headers.get(h.lower(), "") for h in (tokens.HEADER_CLAIM, tokens.HEADER_EPOCH))
        return self.state.enter(claim, epoch, token if scheme == "Bearer" else "")

    def session_answer(self, holder: Holder, method: str, path: str) -> OwnAnswer | None:
        """Open or close the long session of a holder; None if the request is for the application."""
        if path != SESSIONS_PATH:
            return None
        if method not in ("POST", "DELETE"):
            return 405, {"error": "no such method"}
        change = self.state.open_session if method == "POST" else self.state.close_session
        return own_answer(change(holder))


def own_answer(denial: Denial | None) -> OwnAnswer:
    """Return a refusal as an answer, or the answer to a request that succeeded."""
    return (200, {"ok": True}) if denial is None else (denial.status, {"error": denial.detail})


class WorkerMiddleware:
    """ASGI middleware: an application as a worker. WebSockets are requests that last long."""

    def __init__(
        self, app: AsgiApp, *, settings: WorkerSettings | None = None, health_path: str | None = HEALTH_PATH
    ) -> None:
        """Wrap an application. With `health_path=None` the application answers its probe itself, and
        needs no token for it only if it is mounted outside this middleware.
        """
        self._app = app
        self._gate = _Gate(settings, health_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            # The server has installed its own handlers by now; ours comes first.
            self._gate.draining.install()
            await self._app(scope, receive, send)
            return
        with self._gate.state.answering():
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        gate, method, path = self._gate, scope.get("method", "WEBSOCKET"), scope["path"]
        if answer := gate.open_answer(method, path):
            await _respond(scope, send, answer)
            return
        named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        entered = gate.enter(named)
        if isinstance(entered, Denial):
            await _respond(scope, send, own_answer(entered))
            return
        try:
            if answer := gate.session_answer(entered, method, path):
                await _respond(scope, send, answer)
            else:
                await self._app({**scope, "warmpool": entered}, receive, send)
        finally:
            gate.state.leave()


class WsgiWorkerMiddleware:
    """WSGI middleware: an application as a worker. SIGTERM is handled if it is created in the main thread."""

    def __init__(
        self, app: WsgiApp, *, settings: WorkerSettings | None = None, health_path: str | None = HEALTH_PATH
    ) -> None:
        """Wrap an application. `WorkerMiddleware` describes the arguments."""
        self._app = app
        self._gate = _Gate(settings, health_path)
        self._gate.draining.install()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        gate, method = self._gate, environ["REQUEST_METHOD"]
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        if answer := gate.open_answer(method, path):
            return _started(start_response, method, answer)
        fields = ("HTTP_AUTHORIZATION", "HTTP_X_WARMPOOL_CLAIM", "HTTP_X_WARMPOOL_EPOCH")
        entered = gate.enter({f[5:].lower().replace("_", "-"): environ.get(f, "") for f in fields})
        if isinstance(entered, Denial):
            return _started(start_response, method, own_answer(entered))
        if answer := gate.session_answer(entered, method, path):
            gate.state.leave()
            return _started(start_response, method, answer)
        return _Counted(gate.state, self._app, environ | {"warmpool": entered}, start_response)


class _Counted:
    """The body of a response. Its request counts as open until the server closes it."""

    def __init__(
        self, state: WorkerState, app: WsgiApp, environ: dict[str, Any], start_response: StartResponse
    ) -> None:
        self._state = state
        self._answering = state.answering()
        self._answering.__enter__()
        self._open = True
        try:
            self._body = app(environ, start_response)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            close = getattr(getattr(self, "_body", None), "close", None)
            if close is not None:
                close()
        finally:
            self._state.leave()
            self._answering.__exit__(None, None, None)


async def _respond(scope: Scope, send: Send, answer: OwnAnswer) -> None:
    status, content = answer
    if scope["type"] == "websocket":
        # Before it is accepted, the server answers 403. HTTP has no way to say more here.
        await send({"type": "websocket.close", "code": 1008, "reason": str(content.get("error", ""))})
        return
    body = json.dumps(content).encode()
    headers = [(name.encode(), value.encode()) for name, value in _headers(body)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _started(start_response: StartResponse, method: str, answer: OwnAnswer) -> list[bytes]:
    status, content = answer
    body = json.dumps(content).encode()
    start_response(f"{status} {_PHRASES.get(status, 'Answer')}", _headers(body))
    return [] if method == "HEAD" else [body]


def _headers(body: bytes) -> list[tuple[str, str]]:
    return [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]


_PHRASES = {
    200: "OK",
    401: "Unauthorized",
    405: "Method Not Allowed",
    409: "Conflict",
    503: "Service Unavailable",
}


if __name__ == "__main__":
    import sys

    from pool.client.worker_command import main

    sys.exit(main(sys.argv[1:]))
