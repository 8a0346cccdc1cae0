"""Serve `/metrics` of this process in its own thread."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from pool.core.errors import PoolError
from pool.core.threads import Threads

Render = Callable[[], bytes]
HEALTH = "/-/healthy"


class PortTaken(PoolError):
    """Another process listens on the port."""


class MetricsServer(ThreadingHTTPServer):
    """Serves one page. The port is not shared: rates would be wrong if two processes answered alternately."""

    daemon_threads = True
    allow_reuse_address = True
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.ended = Event()

    def shutdown(self) -> None:
        self.ended.set()
        super().shutdown()


def serve(render: Render, threads: Threads, *, host: str, port: int) -> MetricsServer:
    """Start serving; raise `PortTaken` if the port is in use. Port 0 picks a free port."""
    try:
        server = MetricsServer((host, port), _handler(render))
    except OSError as exc:
        raise PortTaken(
            f"metrics cannot be served on {host}:{port} ({exc.strerror}): set metrics_port"
            " (WARMPOOL_METRICS_PORT) to a free port, or to 0 to disable them"
        ) from exc
    threads.start("metrics", server.serve_forever, stop=server.ended)
    return server


def rendering(registry: CollectorRegistry) -> Render:
    """Return a function that renders a registry as a page."""
    return lambda: generate_latest(registry)


def _handler(render: Render) -> type[BaseHTTPRequestHandler]:
    class Page(BaseHTTPRequestHandler):
        server_version = "warmpool"
        sys_version = ""
        timeout = 10

        def do_GET(self) -> None:
            if self.path.partition("?")[0] == "/metrics":
                self._answer(HTTPStatus.OK, render(), CONTENT_TYPE_LATEST)
            elif self.path == HEALTH:
                self._answer(HTTPStatus.OK, b"ok\n", "text/plain")
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"metrics are at /metrics\n", "text/plain")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Do not log scrapes."""

        def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Page
