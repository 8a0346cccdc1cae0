"""One HTTP request through the proxy: heads are read whole and bounded, bodies are passed on as they come.

Each connection carries one request. So a body is never taken for a second request, and the end of a
response without a length is the end of its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from pool.core import tokens
from pool.core.errors import PoolError

MOST_HEAD_BYTES = 65_536
_PIECE_BYTES = 65_536
_MOST_CHUNK_LINE_BYTES = 1_024
# Of one connection; and the credentials of the pool, which the program does not need.
_NOT_PASSED_ON = frozenset({"connection", "keep-alive", "proxy-connection", "authorization", "te"})
_OF_THE_POOL = frozenset(name.lower() for name in (tokens.HEADER_CLAIM, tokens.HEADER_EPOCH))


class BadHead(PoolError):
    """A request or a response is not HTTP/1.1, or is larger than allowed."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of a message and its headers, in order."""

    first: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, raw: bytes) -> Head:
        first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        # Many servers end a line at a bare CR or LF too: the rest would be a header that was not checked.
        if any(char in line for line in (first, *lines) for char in "\r\n\0"):
            raise BadHead("a line of the head contains CR, LF or NUL")
        headers = []
        for line in lines:
            name, colon, value = line.partition(":")
            # A space before the colon, or a folded line, is read differently by different servers.
            if not colon or not name or name.strip() != name:
                raise BadHead("a header line is malformed")
            headers.append((name, value.strip()))
        return cls(first, tuple(headers))

    def get(self, name: str) -> str:
        """Return the value of a header; "" if it is missing. Raise if it is there twice."""
        found = [value for each, value in self.headers if each.lower() == name]
        if len(found) > 1:
            raise BadHead(f"the header {name} is there {len(found)} times")
        return found[0] if found else ""

    def has(self, name: str) -> bool:
        return any(each.lower() == name for each, _ in self.headers)

    @property
    def upgrades(self) -> bool:
        words = {
            w.strip().lower() for n, v in self.headers if n.lower() == "connection" for w in v.split(",")
        }
        return "upgrade" in words and self.has("upgrade")

    def encoded(self) -> bytes:
        """Return the head to pass on, for a connection that ends after this message or is upgraded."""
        upgrade = self.upgrades
        kept = [(n, v) for n, v in self.headers if n.lower() not in _NOT_PASSED_ON and not _imitates(n)]
        if not upgrade:
            kept = [(n, v) for n, v in kept if n.lower() != "upgrade"]
        return encoded(self.first, [*kept, ("Connection", "upgrade" if upgrade else "close")])


def _imitates(name: str) -> bool:
    """Return whether WSGI and CGI programs would take this name for a header of the pool."""
    return "_" in name and name.lower().replace("_", "-") in _OF_THE_POOL


def encoded(first: str, headers: Iterable[tuple[str, str]]) -> bytes:
    return "\r\n".join([first, *(f"{n}: {v}" for n, v in headers), "", ""]).encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Read a head; None if the connection ended before one began."""
    try:
        return Head.parse(await reader.readuntil(b"\r\n\r\n"))
    except asyncio.LimitOverrunError as exc:
        raise BadHead(f"the head is longer than {MOST_HEAD_BYTES} bytes") from exc
    except asyncio.IncompleteReadError as exc:
        if not exc.partial:
            return None
        raise BadHead("the connection ended inside the head") from exc


def body_length(head: Head) -> int | None:
    """Return the length of a request's body; None if it is chunked."""
    coding, length = head.get("transfer-encoding"), head.get("content-length")
    if coding:
        if coding.lower() != "chunked" or head.has("content-length"):
            raise BadHead("Transfer-Encoding must be chunked, without Content-Length")
        return None
    if not length:
        return 0
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        raise BadHead("Content-Length must be a number of bytes")
    return int(length)


async def pass_body(length: int | None, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass on the body of a request, and nothing after it."""
    if length is not None:
        await _pass_bytes(length, source, target)
        return
    while True:
        line = await _line(source)
        digits = line.partition(b";")[0].strip()
        if not digits or len(digits) > 15 or digits.strip(b"0123456789abcdefABCDEF"):
            raise BadHead("a chunk has no valid length")
        size = int(digits, 16)
        target.write(b"%x\r\n" % size)
        if size == 0:
            break
        await _pass_bytes(size, source, target)
        if await _line(source) != b"\r\n":
            raise BadHead("a chunk has more bytes than its size line announces")
        target.write(b"\r\n")
    for _ in range(100):  # trailers
        line = await _line(source)
        if line == b"\r\n":
            target.write(b"\r\n")
            await target.drain()
            return
    raise BadHead("there are too many trailers")


async def pass_all(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass on what comes until the end of the connection, as fast as the target takes it."""
    while piece := await source.read(_PIECE_BYTES):
        target.write(piece)
        await target.drain()


async def _pass_bytes(count: int, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while count > 0:
        piece = await source.read(min(count, _PIECE_BYTES))
        if not piece:
            raise BadHead("the connection closed before the whole body had arrived")
        count -= len(piece)
        target.write(piece)
        await target.drain()


async def _line(source: asyncio.StreamReader) -> bytes:
    try:
        line = await source.readuntil(b"\r\n")
    except (asyncio.LimitOverrunError, asyncio.IncompleteReadError) as exc:
        raise BadHead("the connection closed before the whole body had arrived") from exc
    if len(line) > _MOST_CHUNK_LINE_BYTES:
        raise BadHead("a line of a chunked body is too long")
    return line
