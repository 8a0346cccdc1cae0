"""A proxy that makes any HTTP program a worker: `warmpool worker-proxy -- CMD`.

It starts the program on a port of the loopback interface, and passes on the requests of the current
holder only. Bodies are streamed in both directions; WebSockets and other upgrades become tunnels. A
newer holder ends the connections of the one before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from pool.client import worker_relay
from pool.client.worker import HEALTH_PATH, SESSIONS_PATH, OwnAnswer, own_answer
from pool.client.worker_child import HOST, Child
from pool.client.worker_relay import MOST_HEAD_BYTES, BadHead, Head
from pool.client.worker_settings import WorkerSettings
from pool.core import tokens
from pool.core.clock import SystemClock
from pool.core.errors import PoolError
from pool.core.worker_state import Denial, Holder, WorkerState

log = logging.getLogger("warmpool.worker")

CONNECTIONS = 256
# Connections beyond those, for probes and self-reports.
_SPARE = 64
_HEAD_S = 30.0
_CONNECT_S = 5.0
_ANSWER_S = 10.0
_LINGER_S = 2.0
_LOOK_EVERY_S = 0.1
_STOP_CHILD_S = 10.0
_ENDINGS = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    """What to run. `port` is the program's own, 0 for any free one, which it finds in PORT."""

    command: Sequence[str]
    port: int = 0
    connections: int = CONNECTIONS


class NotListening(PoolError):
    """The port of the worker cannot be opened."""


class WorkerProxy:
    """The proxy of one program."""

    def __init__(self, settings: WorkerSettings, child: Child, connections: int = CONNECTIONS) -> None:
        self.settings = settings
        self.state = WorkerState(settings.key, SystemClock().monotonic)
        self._child = child
        self._connections = connections
        self._open = 0
        self._is_ready = False
        self._current: Holder | None = None
        self._tasks: dict[asyncio.Task[None], Holder] = {}

    async def run(self, asked: asyncio.Event) -> int:
        """Serve until `asked` is set, or until the program ends. Return the exit code."""
        host, port = self.settings.host, self.settings.port
        try:
            server = await asyncio.start_server(
                self._connected, host, port, limit=MOST_HEAD_BYTES, backlog=128
            )
        except OSError as exc:
            raise NotListening(f"cannot listen on port {port} of {host}: {exc.strerror or exc}") from exc
        port = int(server.sockets[0].getsockname()[1])
        ended = asyncio.ensure_future(self._child.wait())
        for number in _PASSED_ON:
            asyncio.get_running_loop().add_signal_handler(number, self._child.send, number)
        ready = asyncio.ensure_future(self._announce(port))
        stop = asyncio.ensure_future(asked.wait())
        await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        try:
            if ended.done():
                log.error("program_ended code=%d", ended.result())
                return ended.result() or 1  # a worker does not end by itself
            return await self._drain(port, ended)
        finally:
            stop.cancel()
            server.close()
            await self._child.end(_STOP_CHILD_S)

    async def _announce(self, port: int) -> None:
        """Report readiness as soon as the program listens."""
        while not await self._child.accepts():
            await asyncio.sleep(_LOOK_EVERY_S)
        self._is_ready = True
        self.settings.write_status(port, ready=True)
        log.info("ready port=%d", port)

    async def _drain(self, port: int, ended: asyncio.Future[int]) -> int:
        self.state.drain()
        with contextlib.suppress(OSError):  # the directory of the pod may be gone already
            self.settings.write_status(port, ready=False)
        try:
            async with asyncio.timeout(self.settings.grace_s):
                while not (self.state.wait_unused(0) or ended.done()):
                    await asyncio.sleep(_LOOK_EVERY_S / 2)
        except TimeoutError:
            log.warning("grace_period_ended: sessions are still open after %.0f s", self.settings.grace_s)
            return 1
        return 0

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > self._connections + _SPARE:
                return
            async with asyncio.timeout(_HEAD_S):
                head = await worker_relay.read_head(reader)
            if head is not None:
                # Only now: connections that send nothing must not delay the exit.
                with self.state.answering():
                    await self._serve(head, reader, writer)
                await _linger(reader, writer)
        except BadHead as exc:
            with contextlib.suppress(OSError):
                await _respond(writer, (400, {"error": str(exc)}))
        except asyncio.CancelledError:
            writer.transport.abort()  # a newer holder has come; the older one may never read the rest
        except (OSError, TimeoutError):
            pass  # the client or the program has gone
        except Exception:
            log.exception("request_failed")
        finally:
            self._open -= 1
            writer.close()

    async def _serve(self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, _, rest = head.first.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if answer := self._open_answer(method, path):
            await _respond(writer, answer, method)
            return
        entered = self._enter(head)
        if isinstance(entered, Denial):
            await _respond(writer, own_answer(entered), method)
            return
        try:
            if path == SESSIONS_PATH:
                await _respond(writer, self._session_answer(entered, method), method)
            else:
                await self._pass_on(entered, head, reader, writer)
        finally:
            self.state.leave()

    def _open_answer(self, method: str, path: str) -> OwnAnswer | None:
        if method in ("GET", "HEAD") and path == SESSIONS_PATH:
            return 200, self.state.self_report()
        if method in ("GET", "HEAD") and path == HEALTH_PATH:
            serves = self._is_ready and not self.state.draining
            return 200 if serves else 503, {"ready": self._is_ready, "draining": self.state.draining}
        return None

    def _enter(self, head: Head) -> Holder | Denial:
        scheme, _, token = head.get("authorization").partition(" ")
        claim, epoch = (head.get(h.lower()) for h in (tokens.HEADER_CLAIM, tokens.HEADER_EPOCH))
        entered = self.state.enter(claim, epoch, token if scheme == "Bearer" else "")
        if isinstance(entered, Holder) and entered != self._current:
            self._current = entered
            for task, holder in self._tasks.items():
                if holder != entered:
                    task.cancel()
        return entered

    def _session_answer(self, holder: Holder, method: str) -> OwnAnswer:
        if method not in ("POST", "DELETE"):
            return 405, {"error": "no such method"}
        change = self.state.open_session if method == "POST" else self.state.close_session
        return own_answer(change(holder))

    async def _pass_on(
        self, holder: Holder, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        length = worker_relay.body_length(head)
        if len(self._tasks) >= self._connections:
            await _respond(writer, (503, {"error": f"{self._connections} requests are open already"}))
            return
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        # Before the program accepts the connection: a newer holder may come while it waits.
        self._tasks[task] = holder
        try:
            async with asyncio.timeout(_CONNECT_S):
                source, target = await asyncio.open_connection(HOST, self._child.port, limit=MOST_HEAD_BYTES)
        except (OSError, TimeoutError):
            await _respond(writer, (502, {"error": "the program does not accept connections"}))
        else:
            await _exchange(head, length, (reader, writer), (source, target))
        finally:
            self._tasks.pop(task, None)


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _exchange(head: Head, length: int | None, client: _Streams, program: _Streams) -> None:
    """Pass on one request and its response, until the response has ended or the client has left."""
    switched: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    up = asyncio.ensure_future(_upward(head, length, (client[0], program[1]), switched))
    try:
        await _downward(program[0], client[1], switched)
    finally:
        up.cancel()
        program[1].close()
        await asyncio.wait({up})  # it may read from the client until it has ended


async def _upward(
    head: Head,
    length: int | None,
    streams: _Streams,
    switched: asyncio.Future[bool],
) -> None:
    """Pass on the request. What follows it is passed on only if the program has switched protocols: it
    could be a second request, which was not checked.
    """
    reader, target = streams
    try:
        target.write(head.encoded())
        await worker_relay.pass_body(length, reader, target)
        piece = await reader.read(1024)
        if head.upgrades and (piece or switched.done()) and await switched:
            target.write(piece)
            await worker_relay.pass_all(reader, target)
            target.write_eof()
            return
        # A client that leaves ends its request.
        while piece:
            piece = await reader.read(1024)
        target.close()
    except (OSError, BadHead):
        target.close()


async def _downward(
    source: asyncio.StreamReader, writer: asyncio.StreamWriter, switched: asyncio.Future[bool]
) -> None:
    """Pass on the response: interim heads, the head, then all that follows."""
    while True:
        try:
            head = await worker_relay.read_head(source)
        except BadHead as exc:
            await _respond(writer, (502, {"error": f"the program's response: {exc}"}))
            return
        if head is None:
            await _respond(writer, (502, {"error": "the program closed the connection without a response"}))
            return
        code = head.first.split(" ", 2)[1] if head.first.count(" ") else ""
        interim = code.startswith("1") and code != "101"
        writer.write(worker_relay.encoded(head.first, head.headers) if interim else head.encoded())
        await writer.drain()
        if not interim:
            switched.set_result(code == "101")
            break
    await worker_relay.pass_all(source, writer)


async def _respond(writer: asyncio.StreamWriter, answer: OwnAnswer, method: str = "GET") -> None:
    status, content = answer
    body = json.dumps(content).encode()
    head = worker_relay.encoded(
        f"HTTP/1.1 {status} Proxy",
        [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")],
    )
    writer.write(head if method == "HEAD" else head + body)
    async with asyncio.timeout(_ANSWER_S):
        await writer.drain()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read the rest of a body that was not needed: closing before would reset the connection, and the
    client would lose the answer.
    """
    if writer.can_write_eof() and not writer.is_closing():
        writer.write_eof()
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(MOST_HEAD_BYTES):
                pass


def run(options: ProxyOptions) -> int:
    """Run the program and its proxy until a signal. Return the exit code."""

    async def serve() -> int:
        settings, asked = WorkerSettings.from_environ(), asyncio.Event()
        # Before the program starts: process 1 of a container never gets a signal that it does not handle.
        for number in _ENDINGS:
            asyncio.get_running_loop().add_signal_handler(number, asked.set)
        child = await Child.start(options.command, options.port, os.environ)
        try:
            return await WorkerProxy(settings, child, options.connections).run(asked)
        finally:
            child.send(signal.SIGKILL)

    return asyncio.run(serve())
