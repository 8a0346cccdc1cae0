"""The reference worker: a small HTTP server that follows `contract`. It uses only the standard
library, so that it starts fast.

    python -m pool.drivers.local.worker

It runs as a local pod and as a container. In a container WARMPOOL_PORT is fixed, the key file is a
mounted Secret, and there is no status file, because a probe of /healthz reports readiness.

    GET    /healthz    200 while serving, 503 while draining
    GET    /sessions   {"open": n, "claim": id or null, "epoch": n, "last_used_s": s or null,
                       "draining": bool}
    POST   /sessions   opens a long session; DELETE closes it
    POST   /activate   binds {"org": …, anything}
                       for tests: {"sleep_s": 2} is slow, {"fail": true} answers 500
    any    /echo, /    worker, claim, epoch, org, activation, method, body, pid, traceparent

All but the first two need the headers of a claim (`pool.core.tokens.headers`). The answer is 401
without a valid token, 409 for an epoch below the highest one seen, and 503 while draining, unless a
session is open.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from pool.core import names, tokens, tracecontext
from pool.core.clock import SystemClock
from pool.core.worker_state import Denial, Holder, WorkerState

_LONGEST_BODY = 1 << 20
_LONGEST_SLEEP_S = 3600.0
_CHECK_EVERY_S = 5.0
_ENDINGS = {signal.SIGTERM, signal.SIGINT}

Answer = tuple[int, dict[str, Any]]


class WorkerPlace(NamedTuple):
    """The configuration of this worker, from its environment."""

    worker: str
    uid: str
    host: str
    port: int
    grace_s: float
    key: str
    status_file: Path | None

    @classmethod
    def from_environ(cls) -> WorkerPlace:
        env = os.environ
        key_file, status_file = env.get(names.ENV_KEY_FILE), env.get(names.ENV_STATUS_FILE)
        return cls(
            worker=env.get(names.ENV_WORKER, ""),
            uid=env.get(names.ENV_UID, ""),
            # In a container the worker must listen on all addresses. The local driver passes the
            # loopback address.
            host=env.get(names.ENV_HOST, "0.0.0.0"),  # noqa: S104
            port=int(env.get(names.ENV_PORT, "8080")),
            grace_s=float(env.get(names.ENV_GRACE_S, "600")),
            key=Path(key_file).read_text().strip() if key_file else "",
            status_file=Path(status_file) if status_file else None,
        )

    def write_status(self, port: int, *, ready: bool) -> None:
        """Write the status file, which the driver reads."""
        if self.status_file is not None:
            draft = self.status_file.with_name("status.new")
            draft.write_text(json.dumps({"uid": self.uid, "port": port, "ready": ready}))
            draft.replace(self.status_file)

    def is_gone(self) -> bool:
        """Return whether the directory of this pod was removed, so that no driver will ever stop
        this process.
        """
        return self.status_file is not None and not self.status_file.exists()


class WorkerServer(ThreadingHTTPServer):
    """An HTTP server with one thread per connection. It tracks which connections wait for a request."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, place: WorkerPlace, state: WorkerState) -> None:
        self.place = place
        self.state = state
        self.waiting: set[socket.socket] = set()
        super().__init__((place.host, place.port), Handler)

    def server_bind(self) -> None:
        # HTTPServer.server_bind would look up the name of this host, which may take seconds.
        socketserver.TCPServer.server_bind(self)

    def close_waiting(self) -> None:
        """Close idle connections. Requests that were already sent are still read and answered."""
        for connection in tuple(self.waiting):
            try:
                connection.shutdown(socket.SHUT_RD)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that closes its connection is not an error of this server.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: WorkerServer
    protocol_version = "HTTP/1.1"
    server_version = "warmpool-worker"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = 60

    _is_used = False

    def handle_one_request(self) -> None:
        # On a new connection the first request may be in transit, and closing it would look like a
        # failure. Later, a client expects that an idle connection is closed.
        if self._is_used:
            self.server.waiting.add(self.connection)
        try:
            super().handle_one_request()
        finally:
            self.server.waiting.discard(self.connection)
        self._is_used = True
        self.close_connection = self.close_connection or self.server.state.draining

    def parse_request(self) -> bool:
        self.server.waiting.discard(self.connection)
        return super().parse_request()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class has this name
        """Log nothing: one line per request would fill the pod's log."""

    def _serve(self) -> None:
        body = self._body()
        path = self.path.partition("?")[0]
        if body is None:
            self.close_connection = True
            self._respond((413, {"error": f"Content-Length is required, at most {_LONGEST_BODY}"}))
        elif (self.command, path) == ("GET", "/healthz"):
            self._respond(
                (503 if self.server.state.draining else 200, {"draining": self.server.state.draining})
            )
        elif (self.command, path) == ("GET", "/sessions"):
            self._respond((200, self.server.state.self_report()))
        elif path not in ("/", "/echo", "/activate", "/sessions"):
            self._respond((404, {"error": "no such path"}))
        else:
            self._serve_holder(path, body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve  # noqa: N815

    def _serve_holder(self, path: str, body: str) -> None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        claim, epoch = (self.headers.get(h, "") for h in (tokens.HEADER_CLAIM, tokens.HEADER_EPOCH))
        with self.server.state.answering():
            entered = self.server.state.enter(claim, epoch, token if scheme == "Bearer" else "")
            if isinstance(entered, Denial):
                answer = _denied(entered)
            else:
                # Leave before the answer is sent, so that `GET /sessions` is correct once the
                # client has the answer.
                try:
                    answer = self._answer(entered, path, body)
                finally:
                    self.server.state.leave()
            self._respond(answer)

    def _answer(self, holder: Holder, path: str, body: str) -> Answer:
        state = self.server.state
        match self.command, path:
            case _, "/" | "/echo":
                return 200, self._echo(holder, body)
            case "POST", "/activate":
                return _activate(state, holder, body)
            case "POST", "/sessions":
                return _denied(state.open_session(holder))
            case "DELETE", "/sessions":
                return _denied(state.close_session(holder))
        return 405, {"error": "no such method"}

    def _echo(self, holder: Holder, body: str) -> dict[str, Any]:
        who = {"worker": self.server.place.worker, "claim": holder.claim_id, "epoch": holder.epoch}
        sent = {"method": self.command, "body": body, "traceparent": self.headers.get(tracecontext.HEADER)}
        return {**who, **self.server.state.bound(), **sent, "pid": os.getpid()}

    def _body(self) -> str | None:
        """Return the request's body; None if it is too long or has no length."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            return None
        return self.rfile.read(int(length)).decode(errors="replace") if int(length) <= _LONGEST_BODY else None

    def _respond(self, answer: Answer) -> None:
        status, content = answer
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if self.close_connection or self.server.state.draining:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
        # Flush before it counts as answered, so that an exiting worker does not cut off its last
        # answer.
        self.wfile.flush()


def _activate(state: WorkerState, holder: Holder, body: str) -> Answer:
    try:
        payload = json.loads(body or "{}")
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        return 400, {"error": "the body must be a JSON object"}
    sleep_s, org = payload.get("sleep_s", 0), payload.get("org")
    if isinstance(sleep_s, int | float) and sleep_s > 0:
        threading.Event().wait(min(sleep_s, _LONGEST_SLEEP_S))
    if payload.get("fail"):
        return 500, {"error": "failed as requested"}
    return _denied(state.activate(holder, None if org is None else str(org), payload))


def _denied(denial: Denial | None) -> Answer:
    return (200, {"ok": True}) if denial is None else (denial.status, {"error": denial.detail})


def main() -> int:
    """Serve until SIGTERM or SIGINT, then let open sessions finish."""
    # Wait for signals instead of handling them: a handler could interrupt this thread while it
    # holds a lock that the handler needs.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    place = WorkerPlace.from_environ()
    state = WorkerState(place.key, SystemClock().monotonic)
    server = WorkerServer(place, state)
    port = int(server.server_address[1])
    threading.Thread(target=server.serve_forever, name="serving", daemon=True).start()
    place.write_status(port, ready=True)
    while signal.sigtimedwait(_ENDINGS, _CHECK_EVERY_S) is None:
        if place.is_gone():
            break
    state.drain()
    server.close_waiting()
    if not place.is_gone():
        place.write_status(port, ready=False)
    return 0 if state.wait_unused(place.grace_s) else 1


if __name__ == "__main__":
    code = main()
    # Do not wait for threads that still wait for a client.
    os._exit(code)
