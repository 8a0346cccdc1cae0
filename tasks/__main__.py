"""`python -m tasks worker ROLE | beat | flower ADDRESS PORT [look-only]`: Celery as the process itself, so that it gets the signals."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

import structlog

from pool.config import logs
from pool.core.errors import PoolError
from pool.core.names import ACQUIRE, ENV_ROLE

if TYPE_CHECKING:
    from tasks.app import WarmpoolApp

log = structlog.get_logger(__name__)


def main(arguments: list[str]) -> None:
    """Run one component; ends with Celery's exit code. What is imported stays for good: it is not searched for garbage, neither now nor later, when
    that would hold up callers."""
    gc.disable()
    what, *rest = arguments
    if what == "worker":
        os.environ[ENV_ROLE] = rest[0]
    from tasks.app import app

    if what == "worker":
        _prepare(app, rest[0])
        _work(app, rest[0])
    elif what == "beat":
        logs.set_up()
        from tasks.worker.beating import NamingBeat

        _prepare_beat(app)
        _keep_what_is_here()
        NamingBeat(app=app, loglevel="INFO", quiet=True, schedule="").run()
    elif what == "flower":
        from tasks.flower import display

        if "look-only" in rest:
            app.control_cls = "tasks.flower.readonly:LookingControl"
        display.prepare(app)
        _keep_what_is_here()
        app.start(display.arguments(rest[0], int(rest[1])))
    else:
        sys.exit(f"unknown component {what!r}")


def _prepare(app: WarmpoolApp, role: str) -> None:
    """A worker that could not do its work does not start. Left to a signal handler, Celery would log the error and go on. TaskEvent to end meanwhile, it ends:
    as the first process of a container it would not hear it otherwise."""
    logs.set_up()
    signal.signal(signal.SIGTERM, lambda *_: _told_to_end(role))
    try:
        if role != ACQUIRE:  # which never speaks to the cluster, nor loads what does
            from pool.ops.doctor import starting

            starting.assert_rights(app.settings)
        app.deps  # noqa: B018 - made here
        app.serve_metrics(app.deps.metrics)
    except PoolError as exc:
        sys.exit("\n".join(f"warmpool: {line}" for line in str(exc).splitlines()))


def _told_to_end(role: str) -> NoReturn:
    log.info("worker_stopping", role=role, signal="SIGTERM", how="before it began", exit_code=0)
    sys.exit(0)


def _prepare_beat(app: WarmpoolApp) -> None:
    try:
        app.serve_metrics(app.beat_metrics)
    except PoolError as exc:
        sys.exit(f"warmpool: {exc}")


def _work(app: WarmpoolApp, role: str) -> NoReturn:
    """Celery's worker, without its command line: that loads every command and plugin there is before it starts one."""
    from tasks.options import consumed

    worker = app.Worker(
        hostname=f"{role}@{socket.gethostname()}",
        queues=consumed(role),
        pool_cls="threads",
        concurrency=app.threads,
        loglevel="INFO",
        task_events=app.settings.pool.events,
        without_gossip=True,
        without_mingle=True,
    )
    if role == ACQUIRE:
        import tasks.worker.building  # noqa: F401 - with the rest
    _keep_what_is_here()
    worker.start()
    sys.exit(worker.exitcode)


def _keep_what_is_here() -> None:
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    main(sys.argv[1:])
