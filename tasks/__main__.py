"""Run Celery as the main process, so that it receives the signals.

python -m tasks worker ROLE | beat | flower ADDRESS PORT [look-only]
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

import structlog

from pool.config import logs
from pool.core.backoff import Backoff, retrying
from pool.core.clock import SystemClock
from pool.core.errors import PoolError
from pool.core.names import ACQUIRE, ENV_ROLE

if TYPE_CHECKING:
    from tasks.app import WarmpoolApp

log = structlog.get_logger(__name__)
# A process that starts during a failover of the database waits for its end, for about a minute.
_OUTAGE_AT_START = Backoff(first_s=0.2, limit_s=2.0, tries=30)


def main(arguments: list[str]) -> None:
    """Run one component and exit with Celery's exit code.

    Imported objects live forever, so they are excluded from garbage collection, which would only
    delay callers.
    """
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
        _freeze_garbage_collection()
        NamingBeat(app=app, loglevel="INFO", quiet=True, schedule="").run()
    elif what == "flower":
        from tasks.flower import display

        if "look-only" in rest:
            app.control_cls = "tasks.flower.readonly:ReadOnlyControl"
        display.prepare(app)
        _freeze_garbage_collection()
        app.start(display.arguments(rest[0], int(rest[1])))
    else:
        sys.exit(f"unknown component {what!r}")


def _prepare(app: WarmpoolApp, role: str) -> None:
    """Exit if the worker cannot do its work; in a signal handler, Celery would log the error and
    continue.

    SIGTERM meanwhile ends the process with exit code 0.
    """
    logs.set_up()
    signal.signal(signal.SIGTERM, lambda *_: _stop(role))
    try:
        if role != ACQUIRE:  # an acquire worker does not use the cluster
            from pool.ops.doctor import starting

            starting.assert_rights(app.settings)
        retrying(lambda: app.deps, policy=_OUTAGE_AT_START, clock=SystemClock())
        app.serve_metrics(app.deps.metrics)
    except PoolError as exc:
        sys.exit("\n".join(f"warmpool: {line}" for line in str(exc).splitlines()))


def _stop(role: str) -> NoReturn:
    log.info("worker_stopping", role=role, signal="SIGTERM", how="before start", exit_code=0)
    sys.exit(0)


def _prepare_beat(app: WarmpoolApp) -> None:
    try:
        app.serve_metrics(app.beat_metrics)
    except PoolError as exc:
        sys.exit(f"warmpool: {exc}")


def _work(app: WarmpoolApp, role: str) -> NoReturn:
    """Run Celery's worker without its command line, which loads every command and plugin first."""
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
        import tasks.worker.building  # noqa: F401 - import it before gc.freeze
    _freeze_garbage_collection()
    worker.start()
    sys.exit(worker.exitcode)


def _freeze_garbage_collection() -> None:
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    main(sys.argv[1:])
