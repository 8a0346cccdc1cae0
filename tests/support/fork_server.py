"""Start `warmpool` commands for tests by forking: a process that has imported the libraries forks a
child per command.

    python -m tests.support.fork_server FD

FD is one end of a Unix socket. A request is a JSON object (`words`, `env`, `cwd`) with three file
descriptors: standard output and error of the child, and a pipe to which the server writes the
child's process id and later its wait status. The server ends when the other end of the socket is
closed. A child runs what `python -m pool.ops.cli WORDS` runs; where that would execute
`python -m tasks`, the child continues with that module instead.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

# Imported once, before the first fork. Modules that read the environment at import (`tasks.app` and
# its importers) are left to the child.
MODULES = (
    "alembic.command", "alembic.config", "beat_schedule", "billiard.dummy", "billiard.pool",
    "celery.app.amqp", "celery.app.control",
    "celery.app.events", "celery.app.log", "celery.apps.beat", "celery.apps.worker", "celery.backends.redis",
    "celery.concurrency.thread", "celery.events.state", "celery.worker.autoscale", "celery.worker.components",
    "celery.worker.consumer", "celery.worker.consumer.delayed_delivery", "celery.worker.control",
    "celery.worker.heartbeat",
    "celery.worker.state", "celery.worker.strategy", "encodings.ascii", "encodings.idna", "hiredis",
    "http.server",
    "kombu.asynchronous.timer", "kombu.compression", "kombu.transport.redis", "prometheus_client", "psycopg",
    "redis", "rich.console",
    "rich.table", "sqlalchemy.dialects.postgresql.psycopg", "structlog", "typer", "typer._adapters",
    "typer._click.decorators",
    "urllib3",
    "pool.lifecycle.activating", "pool.ops.cli.app", "pool.ops.cli.components", "pool.client", "pool.config", "pool.ops.doctor.starting", "pool.drivers.self_report",
    "pool.drivers.kubernetes.rights", "pool.drivers.local.driver", "pool.config.logs", "pool.metrics.serving", "pool.lifecycle.observing",
    "pool.passes.fallback", "pool.passes.running", "pool.ops.reporting.status", "pool.store.migrations", "pool.wiring",
    *(f"pool.passes.{name}" for name in ("collect_garbage", "guard_disruption", "reap", "reconcile_headroom", "reconcile_warm", "sweep_orphans", "sweep_stuck")),
    "tasks.background", "tasks.lane.loop", "tasks.lane.unproven", "tasks.lane.taskevents", "tasks.sending",
    "tasks.worker.probefiles", "tasks.worker.unacked",
)  # fmt: skip
REQUEST_BYTES = 200_000
REPLY = struct.Struct("=i")
"""A process id, or a wait status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """A command, its environment and its working directory."""

    words: list[str]
    env: dict[str, str]
    cwd: str


def serve(control: socket.socket) -> ForkRequest:
    """Fork a child per request and report its end. Return in the child only."""
    watched = selectors.DefaultSelector()
    watched.register(control, selectors.EVENT_READ)
    children: dict[int, tuple[int, int]] = {}
    while True:
        for key, _ in watched.select():
            if key.fileobj is not control:
                pid, reply = children.pop(key.fd)
                watched.unregister(key.fd)
                os.close(key.fd)
                _report(reply, os.waitpid(pid, 0)[1])
                os.close(reply)
                continue
            text, files, _, _ = socket.recv_fds(control, REQUEST_BYTES, 3)
            if not text:
                os._exit(0)
            assert threading.active_count() == 1, threading.enumerate()
            pid = os.fork()
            if pid == 0:
                watched.close()
                control.close()
                _detach(*files[:2])
                return ForkRequest(**json.loads(text))
            out, err, reply = files
            os.close(out)
            os.close(err)
            ended = os.pidfd_open(pid)
            watched.register(ended, selectors.EVENT_READ)
            children[ended] = (pid, reply)
            _report(reply, pid)


def _report(pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test no longer waits for it
        os.write(pipe, REPLY.pack(number))


def _detach(out: int, err: int) -> None:
    """Become an independent process with this output and no other file of the server."""
    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


class _Executed(BaseException):
    """The command has replaced itself with another program."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.argv, self.env = argv, dict(env)


def _execve(_file: object, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    raise _Executed(argv, env)


def become(request: ForkRequest) -> None:
    """Run the command in this process. A component that it would execute runs here, with everything
    already imported.
    """
    os.chdir(request.cwd)
    _set_environment(request.env)
    os.execve = _execve  # type: ignore[assignment]
    executed = None
    try:
        _run("pool.ops.cli", request.words)
    except _Executed as exc:
        executed = exc
    if executed is None:
        return
    *_, module = before = executed.argv[: executed.argv.index("-m") + 2]
    assert module == "tasks", executed.argv
    _set_environment(executed.env)
    _run(module, list(executed.argv[len(before) :]))


def _run(module: str, words: list[str]) -> None:
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _set_environment(env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)


def _prepare() -> None:
    for name in MODULES:
        importlib.import_module(name)
    assert "tasks.app" not in sys.modules, "it reads the environment, which is not yet a child's"
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _prepare()
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
