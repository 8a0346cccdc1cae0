"""HTTP to workers, which run untrusted code. The only module that opens connections to workers.

Each call has a deadline and a limit of bytes. It follows no redirects, decompresses nothing and
looks up no names.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from pool.core.clock import Clock
from pool.core.errors import Transient

# The most bytes to read of one answer: status line, headers and body framing; then the body.
MAX_HEAD_BYTES = 16_384
MAX_BODY_BYTES = 65_536
MAX_DEPTH = 32
MAX_DIGITS = 18
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """One request to a worker."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer of a worker. The body is cut at `MAX_BODY_BYTES` and is never decompressed."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


def status(call: HttpCall, *, timeout_s: float, clock: Clock) -> int:
    """Return the status of a call without reading the body."""
    with _Connection(call.url, ends_at=clock.monotonic() + timeout_s, clock=clock) as connection:
        return connection.send(call).status


def fetch(call: HttpCall, *, timeout_s: float, clock: Clock) -> Reply:
    """Return the status and the body of a call. Raise `Transient` if it is late or is not HTTP."""
    with _Connection(call.url, ends_at=clock.monotonic() + timeout_s, clock=clock) as connection:
        response = connection.send(call)
        return Reply(status=response.status, body=response.read(MAX_BODY_BYTES))


def parsed(body: bytes) -> Any:
    """Return the parsed JSON of a worker.

    Raise `ValueError` if it is not JSON, is nested too deeply, or contains a number that is too
    long.
    """
    text = body.decode()
    if _depth(text) > MAX_DEPTH:
        raise ValueError(f"JSON nested deeper than {MAX_DEPTH} levels")
    return json.loads(text, parse_int=_number, parse_constant=_not_a_number)


class _Connection:
    """The connection of one call.

    Each read and write gets the remaining time of the call as its timeout, so that a slow answer
    fails in the same way as a missing one.
    """

    def __init__(self, url: str, *, ends_at: float, clock: Clock) -> None:
        self._url = url
        self._ends_at = ends_at
        self._clock = clock
        self._socket: socket.socket | None = None

    def __enter__(self) -> _Connection:
        self._open()
        return self

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        self.close()
        if isinstance(exc, OSError | http.client.HTTPException | ValueError):
            raise Transient(f"the worker at {self._url} did not answer: {_one_line(exc)}") from exc

    def send(self, call: HttpCall) -> http.client.HTTPResponse:
        """Send the request and read the head of the answer."""
        parts = urlsplit(call.url)
        connection = http.client.HTTPConnection(parts.netloc)
        connection.sock = self
        target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        headers = {"Connection": "close", "Accept-Encoding": "identity", **call.headers}
        connection.request(call.method, target, body=call.body, headers=headers)
        response = http.client.HTTPResponse(self, method=call.method)  # type: ignore[arg-type]
        response.begin()
        return response

    def sendall(self, data: bytes) -> None:
        self._timed().sendall(data)

    def makefile(self, mode: str) -> BinaryIO:  # noqa: ARG002 - the signature of socket.makefile
        return io.BufferedReader(_Incoming(self))

    def receive_into(self, buffer: memoryview) -> int:
        return self._timed().recv_into(buffer)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _open(self) -> None:
        try:
            self._socket = socket.create_connection(_address(self._url), timeout=self._left_s())
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError) as exc:
            raise Transient(f"the worker at {self._url} cannot be reached: {_one_line(exc)}") from exc

    def _timed(self) -> socket.socket:
        if self._socket is None:
            raise OSError("not connected")
        self._socket.settimeout(self._left_s())
        return self._socket

    def _left_s(self) -> float:
        left_s = self._ends_at - self._clock.monotonic()
        if left_s <= 0:
            raise TimeoutError("the call timed out")
        return left_s


class _Incoming(io.RawIOBase):
    """The received bytes, up to the limit."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__()
        self._connection = connection
        self._left = MAX_HEAD_BYTES + MAX_BODY_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            raise ValueError(f"it sent more than {MAX_HEAD_BYTES + MAX_BODY_BYTES} bytes")
        got = self._connection.receive_into(memoryview(buffer)[: self._left])
        self._left -= got
        return got


def _address(url: str) -> tuple[str, int]:
    """Return the address and port of a URL. It must be an IP address, as observed by the driver;
    names are not looked up.
    """
    parts = urlsplit(url)
    if parts.scheme != "http":
        raise ValueError("not an http address")
    return str(ipaddress.ip_address(parts.hostname or "")), parts.port or 80


def _one_line(exc: BaseException) -> str:
    """Return an exception as one short line. Its text may come from the worker."""
    return repr(str(exc) or type(exc).__name__)[1:-1][:200]


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in _STRING.sub("", text):
        if char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


def _number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of more than {MAX_DIGITS} digits")
    return int(digits)


def _not_a_number(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
