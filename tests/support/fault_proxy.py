"""A proxy in front of an API server that fails on demand: it answers 429 or 500, loses a reply, is
unreachable, or hangs.

with FaultProxy(cluster.access) as proxy:
    proxy.fault = lambda method, path: ProxyFault(status=429) if method == "POST" else None
    with proxy.away(): ...
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.kube_api import ApiAccess

_PASSED_ON = ("Accept", "Authorization", "Content-Type")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFault:
    """What happens to a call instead of its answer. Status 0: it is carried out and its reply is
    lost.
    """

    status: int
    retry_after: str = ""
    body: bytes = b'{"kind":"Status","message":"told to fail"}'


Rule = Callable[[str, str], ProxyFault | None]


class FaultProxy:
    """Listens on a free port of the loopback, without TLS; callers are identified by their bearer
    tokens.
    """

    def __init__(self, access: ApiAccess) -> None:
        self._upstream = urlsplit(access.server)
        self._context = ssl.create_default_context(cadata=access.authority or None)
        self._server = ProxyServer(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.calls: list[tuple[str, str]] = []
        self.fault: Rule = lambda method, path: None
        self.is_away = False
        self.flowing = threading.Event()
        self.flowing.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def away(self) -> Iterator[None]:
        """Cut every connection, old and new, while the block runs."""
        self.is_away = True
        self.cut()
        try:
            yield
        finally:
            self.is_away = False

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Accept connections and pass nothing on, neither responses nor watch events, while the
        block runs.
        """
        self.flowing.clear()
        try:
            yield
        finally:
            self.flowing.set()

    def cut(self) -> None:
        """End all open connections."""
        for connection in tuple(self._server.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def upstream(self) -> http.client.HTTPSConnection:
        assert self._upstream.hostname is not None
        return http.client.HTTPSConnection(
            self._upstream.hostname, self._upstream.port, context=self._context, timeout=120
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_away = True
        self.flowing.set()
        self.cut()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class ProxyServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    proxy: FaultProxy

    def __init__(self, *arguments: Any) -> None:
        self.connections: set[socket.socket] = set()
        super().__init__(*arguments)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections: tests break them on purpose."""


class _Handler(BaseHTTPRequestHandler):
    server: ProxyServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._connection: http.client.HTTPSConnection | None = None
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        if self._connection is not None:
            self._connection.close()
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing."""

    def _serve(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        proxy.flowing.wait()
        if proxy.is_away:
            self.close_connection = True
            return
        proxy.calls.append((self.command, self.path))
        fault = proxy.fault(self.command, self.path)
        if fault is not None and fault.status:
            headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            self._answer(fault.status, headers, fault.body)
            return
        self._connection = proxy.upstream()
        headers = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
        self._connection.request(self.command, self.path, body=body or None, headers=headers)
        response = self._connection.getresponse()
        if fault is not None:
            response.read()
            self.close_connection = True
        elif "watch=true" in self.path and response.status == 200:
            self._pass_on(response)
        else:
            kept = {k: v for k, v in response.getheaders() if k in ("Date", "Retry-After", "Content-Type")}
            self._answer(response.status, kept, response.read())
        self._connection.close()

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _serve  # noqa: N815

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _pass_on(self, response: http.client.HTTPResponse) -> None:
        """Pass a watch on, chunk by chunk."""
        self.send_response_only(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := response.read1(65_536):
            self.server.proxy.flowing.wait()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
