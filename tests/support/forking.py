"""Processes of a deployment, started by the fork server of this test process
(`tests.support.fork_server`).

Starting Python and importing the libraries takes a second of CPU time; a fork takes a few
milliseconds. An environment that changes how Python itself starts (a wrong clock, threads that can
be killed) needs a new interpreter and gets one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from tests.support.fork_server import REPLY

ROOT = Path(__file__).parents[2]
COMMAND_LIMIT_S = 90.0


class ForkedProcess(Protocol):
    """The part of a process that tests use, forked or not."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Forked:
    """A child of the fork server, with the interface of `subprocess.Popen`."""

    def __init__(self, replies: int) -> None:
        self._replies = replies
        weakref.finalize(self, os.close, replies)
        self._lock = threading.Lock()
        self._code: int | None = None
        self.pid = self._read()

    def poll(self) -> int | None:
        with self._lock:
            if self._code is None and self._replied(0):
                self._code = os.waitstatus_to_exitcode(self._read())
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None and not self._replied(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def _replied(self, within_s: float | None) -> bool:
        """Return whether the pipe has data; at its end it always has."""
        watched = select.poll()
        watched.register(self._replies, select.POLLIN)
        return bool(watched.poll(None if within_s is None else within_s * 1000))

    def _read(self) -> int:
        text = os.read(self._replies, REPLY.size)
        assert text, "the fork server has ended"
        return int(REPLY.unpack(text)[0])


class ForkServer:
    """One server process; it ends with the process that started it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start(self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, out: int, err: int) -> Forked:
        """Start `warmpool WORDS`, with its output and errors in these open files."""
        ours, theirs = os.pipe()
        request = json.dumps({"words": list(words), "env": dict(env), "cwd": str(cwd)}).encode()
        try:
            socket.send_fds(self._control, [request], [out, err, theirs])
        finally:
            os.close(theirs)
        return Forked(ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._control.close()
        self._process.wait()


@cache
def _server() -> ForkServer:
    return ForkServer()


def end() -> None:
    """End the server of this process, if there is one."""
    if _server.cache_info().currsize:
        _server().close()
        _server.cache_clear()


def start(
    words: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: int, tree: Path = ROOT
) -> ForkedProcess:
    """Start `warmpool WORDS` in its own session, with its output in the open file `log`. `tree` has its
    code.
    """
    if tree == ROOT and _interpreter(env) == _interpreter(os.environ):
        return _server().start(words, env=env, cwd=cwd, out=log, err=log)
    return subprocess.Popen(
        [sys.executable, "-m", "pool.ops.cli", *words],
        cwd=tree, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip


def run(words: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `warmpool WORDS` to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = _server().start(words, env=env, cwd=cwd, out=out.fileno(), err=err.fileno())
        try:
            code = process.wait(COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(words), code, out.read().decode(), err.read().decode())


def _interpreter(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that changes how Python starts."""
    return {name: value for name, value in env.items() if name.startswith(("PYTHON", "LD_", "MALLOC_"))}
