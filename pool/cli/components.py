"""`warmpool worker`, `beat`, `flower`, `migrate`: the parts that `up`, compose and the chart run, one process each."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

from pool.cli.app import config_path, new_app, settings_of

worker_app = new_app("Run one Celery worker of the pool.")
beat_app = new_app("Run beat: it sends the passes their ticks. Two side by side are harmless.")
flower_app = new_app("Run Flower on loopback.")
migrate_app = new_app("Bring the database to the newest schema; repeating it does nothing.")


class Role(StrEnum):
    """The queues; each has workers of its own."""

    ACQUIRE = "acquire"
    FLEET = "fleet"
    BIND = "bind"
    PASSES = "passes"


@worker_app.command()
def worker(
    context: typer.Context, role: Annotated[Role, typer.Argument(help="Which queue it serves.")]
) -> None:
    """Run one Celery worker of the pool, in the foreground.

    acquire: what services call. fleet: makes and deletes pods, and follows the cluster. bind: activates and stamps.
    passes: the singletons that beat schedules. SIGTERM finishes what it holds and exits 0.
    """
    _become(context, "worker", str(role))


@beat_app.command()
def beat(context: typer.Context) -> None:
    """Run beat, in the foreground. Every pass is guarded by a lock, so high availability is: run two."""
    _become(context, "beat")


@flower_app.command()
def flower(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Where it listens, on loopback.")] = 5555,
) -> None:
    """Run Flower, which shows workers, queues and tasks."""
    _become(context, "flower", str(port))


@migrate_app.command()
def migrate(context: typer.Context) -> None:
    """Bring the database to the newest schema, and seed the orgs that the configuration names."""
    from pool import wiring
    from pool.store import migrations

    settings = settings_of(context)
    store = wiring.open_store(settings)
    try:
        before = migrations.current(store)
        head = migrations.upgrade(store)
        wiring.seed(settings, store)
    finally:
        store.close()
    print(f"schema at {head}" if before == head else f"schema brought from {before or 'nothing'} to {head}")


def _become(context: typer.Context, *arguments: str) -> NoReturn:
    """Celery takes this process over: it gets the signals, and its exit code is ours."""
    settings_of(context)  # a wrong configuration is told here, in sentences
    path = config_path(context)
    env = os.environ | ({"WARMPOOL_CONFIG": str(path.absolute())} if path else {})
    flags = ["-P"] if sys.flags.safe_path else []
    os.execve(sys.executable, [sys.executable, *flags, "-m", "tasks", *arguments], env)  # noqa: S606
