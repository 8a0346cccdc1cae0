"""`python -m tasks worker ROLE | beat | flower PORT`: Celery as the process itself, so that it gets the signals."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pool import logs
from pool.errors import PoolError

if TYPE_CHECKING:
    from tasks.app import WarmpoolApp


def main(arguments: list[str]) -> None:
    """Run one component; ends with Celery's exit code."""
    what, *rest = arguments
    if what == "worker":
        os.environ["WARMPOOL_RUN_ROLE"] = rest[0]
    from tasks.app import app

    if what == "worker":
        _prepare(app)
        _celery(_worker(rest[0], threads=app.threads, events=app.settings.pool.events))
    elif what == "beat":
        logs.set_up()
        from tasks.beating import NamingBeat

        NamingBeat(app=app, loglevel="INFO", quiet=True, schedule="").run()
    elif what == "flower":
        app.start(_flower(int(rest[0])))
    else:
        sys.exit(f"unknown component {what!r}")


def _prepare(app: WarmpoolApp) -> None:
    """A worker that could not do its work does not start. Left to a signal handler, Celery would log the error and go on."""
    try:
        app.deps  # noqa: B018 - made here
    except PoolError as exc:
        sys.exit("\n".join(f"warmpool: {line}" for line in str(exc).splitlines()))


def _celery(arguments: list[str]) -> None:
    """Celery's own command line. Unlike `app.worker_main`, which always ends as a success, it exits with the worker's exit code."""
    from celery.bin.celery import celery

    celery.main(args=["--app=tasks.app", *arguments], prog_name="celery")


def _worker(role: str, *, threads: int, events: bool) -> list[str]:
    options = ["-Q", role, "-P", "threads", "-c", str(threads), "-n", f"{role}@%h", "-l", "INFO"]
    return ["worker", *options, "--without-gossip", "--without-mingle", *(["-E"] if events else [])]


def _flower(port: int) -> list[str]:
    limits = ["--max_tasks=10000", "--purge_offline_workers=60", "--persistent=False"]
    return ["flower", "--address=127.0.0.1", f"--port={port}", *limits]


if __name__ == "__main__":
    main(sys.argv[1:])
