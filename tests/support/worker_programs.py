"""Programs for the tests of workers: `python -m tests.support.worker_programs KIND`."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from pool.client.worker import Receive, Scope, Send, StartResponse, WorkerMiddleware, WsgiWorkerMiddleware
from pool.core.worker_state import Holder, WorkerState

PORT = int(os.environ.get("PORT", "0"))
HOST = "127.0.0.1"


async def asgi_app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        for _ in range(2):
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
        return
    body = scope["warmpool"].claim_id.encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def wsgi_app(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield environ["warmpool"].claim_id.encode()


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def asgi() -> None:
    import uvicorn

    uvicorn.run(WorkerMiddleware(asgi_app), host=HOST, port=PORT, log_level="warning")


def wsgi() -> None:
    app = WsgiWorkerMiddleware(wsgi_app)
    with make_server(HOST, PORT, app, server_class=_Threads, handler_class=_Quiet) as server:
        server.serve_forever()


def _of_any_length(self: WorkerState, claim_id: str, epoch: str, token: str) -> Holder | None:
    from pool.core import tokens

    if not (self._key and claim_id and epoch.isascii() and epoch.isdigit()):
        return None
    return Holder(claim_id, int(epoch)) if tokens.verify(self._key, claim_id, int(epoch), token) else None


def faulty(fault: str) -> None:  # noqa: C901 - one branch per fault
    """A worker that breaks one rule of the contract."""
    never: Any = lambda *_: None  # noqa: E731
    if fault == "any_token":
        WorkerState._presented = lambda self, claim, epoch, token: Holder(claim or "c", int(epoch or 1))  # type: ignore[method-assign,assignment]
    elif fault == "any_claim":
        from pool.core import tokens

        tokens.verify = lambda key, claim, epoch, presented: len(presented) == 64  # type: ignore[assignment]
    elif fault == "any_epoch":
        WorkerState._fence = never  # type: ignore[method-assign]
    elif fault == "long_epoch":
        WorkerState._presented = _of_any_length  # type: ignore[method-assign]
    elif fault == "kept_session":
        fence = WorkerState._fence

        def keep(self: WorkerState, holder: Holder) -> Any:
            was_open, refusal = self._session_open, fence(self, holder)
            self._session_open = was_open
            return refusal

        WorkerState._fence = keep  # type: ignore[method-assign]
    elif fault == "uncounted":
        WorkerState.self_report = lambda self: {"open": 0}  # type: ignore[method-assign]
    elif fault == "leaky":
        WorkerState.leave = never  # type: ignore[method-assign]
    elif fault == "impatient":
        WorkerState.wait_unused = lambda self, within_s: True  # type: ignore[method-assign]
    elif fault == "stays":
        WorkerState.wait_unused = lambda self, within_s: threading.Event().wait()  # type: ignore[method-assign]
    elif fault == "ready_for_ever":
        WorkerState.draining = False  # type: ignore[method-assign,assignment]
    wsgi()


class PlainHandler(BaseHTTPRequestHandler):
    """An unmodified HTTP program: it knows nothing about claims."""

    protocol_version = "HTTP/1.1"
    proceed = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/upgrade":
            self._upgrade()
        elif self.path == "/stream":
            self._stream()
        elif self.path == "/proceed":
            self.proceed.set()
            self._answer(b"ok")
        elif self.path == "/exit":
            os._exit(7)
        else:
            self._answer(repr(sorted(k.lower() for k in self.headers)).encode())

    def do_POST(self) -> None:
        """Answer the length and the hash of the body, which is never held whole."""
        digest, size = hashlib.sha256(), 0
        for piece in self._pieces():
            digest.update(piece)
            size += len(piece)
        self._answer(f"{size} {digest.hexdigest()}".encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def _pieces(self) -> Iterable[bytes]:
        if "Content-Length" in self.headers:
            left = int(self.headers["Content-Length"])
            while left > 0 and (piece := self.rfile.read(min(left, 65_536))):
                left -= len(piece)
                yield piece
        else:
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n")
        self.proceed.wait(20)
        self.wfile.write(b"6\r\nsecond\r\n0\r\n\r\n")

    def _upgrade(self) -> None:
        key = self.headers["Sec-WebSocket-Key"]
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        self.close_connection = True
        while piece := self.connection.recv(1024):
            self.connection.sendall(piece.upper())


def plain() -> None:
    ThreadingHTTPServer((HOST, PORT), PlainHandler).serve_forever()


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    kinds: dict[str, Any] = {"asgi": asgi, "wsgi": wsgi, "plain": plain, "faulty": faulty}
    kinds[kind](*rest)
