"""The program behind the proxy: started, signalled and ended with everything that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from pool.core import names
from pool.core.errors import PoolError

HOST = "127.0.0.1"
_PR_SET_PDEATHSIG = 1
# The key is the proxy's. A program that does not have it cannot leak it.
_WITHHELD = (names.ENV_KEY_FILE, names.ENV_STATUS_FILE)


class ChildNotStarted(PoolError):
    """The command cannot be run."""


class Child:
    """A process with a process group of its own, in the session of this process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

    @classmethod
    async def start(cls, command: Sequence[str], port: int, environ: Mapping[str, str]) -> Child:
        port = port or free_port()
        env = {name: value for name, value in environ.items() if name not in _WITHHELD}
        env |= {"PORT": str(port), "HOST": HOST, names.ENV_PORT: str(port), names.ENV_HOST: HOST}
        try:
            process = await asyncio.create_subprocess_exec(
                *command, env=env, process_group=0, preexec_fn=_dies_with_parent()
            )
        except OSError as exc:
            raise ChildNotStarted(f"cannot run {command[0]}: {exc.strerror or exc}") from exc
        return cls(process, port)

    async def wait(self) -> int:
        """Return its exit code, as a shell reports it: 128 + N after signal N."""
        code = await self._process.wait()
        return 128 - code if code < 0 else code

    async def accepts(self) -> bool:
        """Return whether the program listens on its port."""
        try:
            _, writer = await asyncio.open_connection(HOST, self.port)
        except OSError:
            return False
        writer.close()
        return True

    def send(self, number: int) -> None:
        """Send a signal to the program and everything in its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def end(self, within_s: float) -> int:
        """Send SIGTERM, then SIGKILL after `within_s`. Return the exit code of the program."""
        if self._process.returncode is None:
            self.send(signal.SIGTERM)
        try:
            code = await asyncio.wait_for(self.wait(), within_s)
        except TimeoutError:
            self.send(signal.SIGKILL)
            code = await self.wait()
        self.send(signal.SIGKILL)  # what it has left behind
        return code


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _dies_with_parent() -> Callable[[], None] | None:
    """Return what the child runs first: the kernel then kills it if the proxy is killed."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return bind
