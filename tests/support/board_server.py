"""Serve the board in this process on its own port, for tests with a browser or over HTTP."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Self

import uvicorn

from pool import wiring
from pool.core.clock import SystemClock
from pool.ops.board.rendering import Links
from pool.ops.board.serving import Where, build, server_config
from tests.support.waiting import eventually
from tests.support.world import World

PASSWORD = "open sesame"


class BoardServer:
    """with BoardServer(world) as board: …; `feed` counts the reads."""

    def __init__(self, world: World, *, password: str = PASSWORD, **where: object) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        told = Where(port=self.port, password=password, **where)  # type: ignore[arg-type]
        self.app = build(
            world.store,
            world.deps.settings,
            where=told,
            links=Links(flower_url="http://127.0.0.1:5555", pod_url="https://console.test/pods/{pod}"),
            clock=SystemClock(),
            deps=lambda: wiring.build_for_operators(world.deps.settings, world.store, role="board"),
        )
        self.feed = self.app.state.board.feed
        self._server = uvicorn.Server(server_config(self.app, told))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self._server.started or not self._thread.is_alive(), within_s=30)
        assert self._server.started
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._socket.close()
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))
