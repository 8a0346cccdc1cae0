"""`warmpool worker`, `beat`, `flower`, `migrate`: the components that `up`, compose and the chart run, one
process each."""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

from pool.core import names
from pool.core.clock import SystemClock
from pool.core.errors import PoolError
from pool.ops.cli.app import config_path, new_app, settings_of
from pool.ops.interpreter import interpreter

_FLOWER_LOGINS = (names.ENV_FLOWER_PASSWORD, "FLOWER_BASIC_AUTH", "FLOWER_AUTH_PROVIDER")
_ASK_AGAIN_S = 2.0

worker_app = new_app("Run one Celery worker of the pool.")
beat_app = new_app("Run beat, the scheduler of the passes. Running two is safe.")
flower_app = new_app("Run Flower.")
migrate_app = new_app("Upgrade the database to the newest schema; repeating it does nothing.")


class WorkerRole(StrEnum):
    """The queues; each is served by its own Celery workers."""

    ACQUIRE = names.ACQUIRE
    FLEET = names.FLEET
    BIND = names.BIND
    PASSES = names.PASSES


@worker_app.command()
def worker(
    context: typer.Context, role: Annotated[WorkerRole, typer.Argument(help="Queue to serve.")]
) -> None:
    """Run one Celery worker of the pool, in the foreground.

    acquire: serves acquire, renew and release. fleet: creates and deletes pods, and watches the
    cluster. bind: activates workers and writes pod labels. passes: runs the passes that beat
    schedules.

    On SIGTERM it finishes its current tasks and exits with 0.
    """
    _become(context, "worker", str(role))


@beat_app.command()
def beat(context: typer.Context) -> None:
    """Run beat, the scheduler of the passes, in the foreground.

    Every pass runs under a lock, so running two beats is safe and gives high availability.
    """
    _become(context, "beat")


@flower_app.command()
def flower(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen on.")] = 5555,
    host: Annotated[
        str, typer.Option(help="Address to listen on; addresses other than loopback need a login.")
    ] = "127.0.0.1",
    look_only: Annotated[
        bool, typer.Option("--look-only", help="Use worker events only, and send no messages to workers.")
    ] = False,
) -> None:
    """Run Flower, which shows Celery workers, queues and tasks. It cannot stop a worker, send a
    task or fetch results.

    Login: set WARMPOOL_RUN_FLOWER_PASSWORD (the user is `warmpool`), or
    FLOWER_BASIC_AUTH=user:password, or FLOWER_AUTH_PROVIDER and FLOWER_AUTH as in the Flower
    documentation. Without a login it listens on loopback only. /metrics and /healthcheck need no
    login.
    """
    if not _is_loopback(host) and not any(os.environ.get(name) for name in _FLOWER_LOGINS):
        raise PoolError(
            f"Flower on {host} needs a login, because it is not loopback: set {' or '.join(_FLOWER_LOGINS)}"
        )
    _become(context, "flower", host, str(port), *(["look-only"] if look_only else []))


@migrate_app.command()
def migrate(
    context: typer.Context,
    wait: Annotated[
        int,
        typer.Option(
            "--wait",
            metavar="S",
            min=0,
            help="Do not migrate; wait up to S seconds until another process has migrated.",
        ),
    ] = 0,
) -> None:
    """Upgrade the database to the newest schema, and create the configured orgs."""
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
    upgraded = f"schema upgraded from {before or 'an empty database'} to {head}"
    print(f"schema is already at {head}" if before == head else upgraded)


def _await_schema(context: typer.Context, wait_s: int) -> None:
    """Wait until the database has the schema of this version, also while the database is not reachable."""
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
    print("the database has the schema of this version")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _become(context: typer.Context, *arguments: str) -> NoReturn:
    """Replace this process with Celery, so that it receives the signals and sets the exit code."""
    settings_of(context)  # report an invalid configuration here, before Celery starts
    path = config_path(context)
    env = os.environ | ({names.ENV_CONFIG: str(path.absolute())} if path else {})
    os.execve(sys.executable, [*interpreter(), "-m", "tasks", *arguments], env)  # noqa: S606
