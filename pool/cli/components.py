"""`warmpool worker`, `beat`, `flower`, `migrate`: the parts that `up`, compose and the chart run, one process each."""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

from pool.cli.app import config_path, new_app, settings_of
from pool.clock import SystemClock
from pool.errors import PoolError

_FLOWER_LOGINS = ("WARMPOOL_RUN_FLOWER_PASSWORD", "FLOWER_BASIC_AUTH", "FLOWER_AUTH_PROVIDER")
_ASK_AGAIN_S = 2.0

worker_app = new_app("Run one Celery worker of the pool.")
beat_app = new_app("Run beat: it sends the passes their ticks. Two side by side are harmless.")
flower_app = new_app("Run Flower.")
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
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Where it listens.")] = 5555,
    host: Annotated[
        str, typer.Option(help="The address it listens on; other than loopback only with a login.")
    ] = "127.0.0.1",
    look_only: Annotated[
        bool, typer.Option("--look-only", help="Live by events alone, and send nothing to workers.")
    ] = False,
) -> None:
    """Run Flower, which shows workers, queues and tasks. It can neither stop a worker nor send a task, and fetches no results.

    WARMPOOL_RUN_FLOWER_PASSWORD is the password of its user `warmpool`; FLOWER_BASIC_AUTH=user:password, or FLOWER_AUTH_PROVIDER and
    FLOWER_AUTH, do what Flower's own manual says. Without a login it starts on loopback only. Its /metrics and /healthcheck ask for none.
    """  # fmt: skip
    if not _is_loopback(host) and not any(os.environ.get(name) for name in _FLOWER_LOGINS):
        raise PoolError(f"Flower on {host} needs a login: set {' or '.join(_FLOWER_LOGINS)}")
    _become(context, "flower", host, str(port), *(["look-only"] if look_only else []))


@migrate_app.command()
def migrate(
    context: typer.Context,
    wait: Annotated[
        int,
        typer.Option("--wait", metavar="S", min=0, help="Change nothing: wait until somebody has done it."),
    ] = 0,
) -> None:
    """Bring the database to the newest schema, and seed the orgs that the configuration names."""
    if wait:
        _await_schema(context, wait)
        return
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


def _await_schema(context: typer.Context, wait_s: int) -> None:
    """Until the schema is the one that this version works with, however long the database itself is away."""
    from pool import wiring
    from pool.store import migrations

    clock, never = SystemClock(), threading.Event()
    end = clock.monotonic() + wait_s
    store = wiring.open_store(settings_of(context))
    try:
        while True:
            try:
                migrations.assert_current(store)
            except PoolError as exc:
                if clock.monotonic() > end:
                    raise
                print(f"waiting: {exc}", file=sys.stderr, flush=True)
                clock.wait(never, _ASK_AGAIN_S)
            else:
                break
    finally:
        store.close()
    print("the schema is current")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _become(context: typer.Context, *arguments: str) -> NoReturn:
    """Celery takes this process over: it gets the signals, and its exit code is ours."""
    settings_of(context)  # a wrong configuration is told here, in sentences
    path = config_path(context)
    env = os.environ | ({"WARMPOOL_CONFIG": str(path.absolute())} if path else {})
    flags = ["-P"] if sys.flags.safe_path else []
    os.execve(sys.executable, [sys.executable, *flags, "-m", "tasks", *arguments], env)  # noqa: S606
