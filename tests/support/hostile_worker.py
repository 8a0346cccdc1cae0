"""Workers that behave as no honest worker does, on real sockets."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import cache

_SLICE = 65_536
_PIECE_S = 0.05


class Habit(StrEnum):
    """What a worker does with its callers."""

    HONEST = "honest"
    DRIPS = "drips"
    DRIPS_BODY = "drips_body"
    NEVER_ENDS = "never_ends"
    SILENT = "silent"
    REDIRECTS = "redirects"
    HUGE = "huge"
    GZIP_BOMB = "gzip_bomb"
    GARBAGE = "garbage"
    HUGE_HEADERS = "huge_headers"
    ENDLESS_CONTINUE = "endless_continue"
    DEEP = "deep"
    LONG_NUMBER = "long_number"


class HostileWorker:
    """One worker with one habit; counts its callers and the bytes that it could send."""

    def __init__(self, habit: Habit, *, elsewhere: str = "http://127.0.0.1:9") -> None:
        self.habit = habit
        if habit is Habit.GZIP_BOMB:
            _compressed()  # longer than the timeout of the call
        self.asked = 0
        self.sent = 0
        self._elsewhere = elsewhere
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._stop.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                asker, _ = self._listener.accept()
                self.asked += 1
                thread = threading.Thread(target=self._serve, args=(asker,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, asker: socket.socket) -> None:
        with asker, contextlib.suppress(OSError):
            asker.settimeout(0.2)
            asker.recv(_SLICE)
            for piece in _ANSWERS[self.habit](self):
                self._send(asker, piece)
                if self._stop.is_set():
                    return

    def _send(self, asker: socket.socket, piece: bytes) -> None:
        left = memoryview(piece)
        while left and not self._stop.is_set():
            try:
                sent = asker.send(left)
            except TimeoutError:
                continue
            self.sent += sent
            left = left[sent:]

    def pause(self) -> None:
        self._stop.wait(_PIECE_S)

    @property
    def elsewhere(self) -> str:
        return self._elsewhere


def _ok(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def _drip(worker: HostileWorker) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nX: "
    while True:
        worker.pause()
        yield b"x"


def _drip_body(worker: HostileWorker) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"
    while True:
        worker.pause()
        yield b" "


def _never_end(worker: HostileWorker) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"10000\r\n" + b" " * _SLICE + b"\r\n"


def _be_silent(worker: HostileWorker) -> Iterator[bytes]:
    while True:
        worker.pause()
        yield b""


def _redirect(worker: HostileWorker) -> Iterator[bytes]:
    head = f"HTTP/1.1 302 Found\r\nLocation: {worker.elsewhere}/\r\nContent-Length: 0\r\n\r\n"
    yield head.encode()


def _be_huge(worker: HostileWorker) -> Iterator[bytes]:
    length = 300 * 1024 * 1024
    yield f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode()
    for _ in range(length // _SLICE):
        yield b"\0" * _SLICE


@cache
def _compressed() -> bytes:
    return gzip.compress(b'{"open":0}' + b" " * 20_000_000)


def _bomb(worker: HostileWorker) -> Iterator[bytes]:
    yield _ok(_compressed(), "Content-Encoding: gzip")


def _garbage(worker: HostileWorker) -> Iterator[bytes]:
    yield b"\xff\x00 200 what\r\n\r\n" + b"\0" * 1000


def _huge_headers(worker: HostileWorker) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X: " + b"x" * 60_000 + b"\r\n"


def _continue(worker: HostileWorker) -> Iterator[bytes]:
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n"


_ANSWERS: dict[Habit, Callable[[HostileWorker], Iterator[bytes]]] = {
    Habit.HONEST: lambda worker: iter([_ok(b'{"open":0}')]),
    Habit.DRIPS: _drip,
    Habit.DRIPS_BODY: _drip_body,
    Habit.NEVER_ENDS: _never_end,
    Habit.SILENT: _be_silent,
    Habit.REDIRECTS: _redirect,
    Habit.HUGE: _be_huge,
    Habit.GZIP_BOMB: _bomb,
    Habit.GARBAGE: _garbage,
    Habit.HUGE_HEADERS: _huge_headers,
    Habit.ENDLESS_CONTINUE: _continue,
    Habit.DEEP: lambda worker: iter([_ok(b'{"open":' + b"[" * 60_000)]),
    Habit.LONG_NUMBER: lambda worker: iter([_ok(b'{"open":' + b"9" * 5_000 + b"}")]),
}


@contextmanager
def hostile(habit: Habit, *, elsewhere: str = "http://127.0.0.1:9") -> Iterator[HostileWorker]:
    """Run a worker with this habit until the block ends."""
    worker = HostileWorker(habit, elsewhere=elsewhere)
    try:
        yield worker
    finally:
        worker.close()
