"""A TCP proxy on the loopback that can be cut: openly (connections are refused and ended), or
silently, like a network that loses every packet.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

PIECE = 65_536


class TcpProxy:
    """Passes bytes to a port, both ways, until it is cut. One thread for any number of connections."""

    def __init__(self, to_port: int) -> None:
        self.port = 0
        self._to_port = to_port
        self._through = asyncio.Event()
        self._ending = asyncio.Event()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"proxy to {to_port}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(10)

    @contextmanager
    def cut(self, *, silently: bool) -> Iterator[None]:
        """Pass nothing on while the block runs."""
        self.begin_cut(silently=silently)
        try:
            yield
        finally:
            self.end_cut()

    def lead_to(self, port: int) -> None:
        """Pass new connections to another port. Open ones stay."""
        self._to_port = port

    def begin_cut(self, *, silently: bool) -> None:
        self._loop.call_soon_threadsafe(self._through.clear)
        if not silently:
            self._refuses = True
            self._loop.call_soon_threadsafe(self._end_connections)

    def end_cut(self) -> None:
        """End connections that were silent, as when the other side no longer has them."""
        self._refuses = False
        self._loop.call_soon_threadsafe(self._end_connections)
        self._loop.call_soon_threadsafe(self._through.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._through.set()
            self._started.set()
            await self._ending.wait()
        self._refuses = True
        self._through.set()
        self._end_connections()
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left, timeout=5)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.close()
            return
        self._writers.add(writer)
        try:
            await self._through.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.close()
            self._writers.discard(writer)
            return
        self._writers.add(back)
        await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))
        self._writers -= {writer, back}

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(PIECE):
                await self._through.wait()
                writer.write(piece)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    def _end_connections(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()
