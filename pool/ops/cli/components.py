"""`warmpool worker`, `beat`, `flower`, `migrate`: the components that `up`, compose and the chart run, one
process each."""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
from typing import Annotated, NoReturn

import typer

from pool.core import names
from pool.core.clock import SystemClock
from pool.core.errors import PoolError
from pool.ops.cli import own_worker
from pool.ops.cli.app import config_path, new_app, settings_of
from pool.ops.interpreter import interpreter

_FLOWER_LOGINS = (names.ENV_FLOWER_PASSWORD, "FLOWER_BASIC_AUTH", "FLOWER_AUTH_PROVIDER")
_ASK_AGAIN_S = 2.0

worker_app = new_app("Run one Celery worker of the pool; check a worker of your own.")
beat_app = new_app("Run beat, the scheduler of the passes. Running two is safe.")
flower_app = new_app("Run Flower.")
migrate_app = new_app("Upgrade the schema of the database; repeating it does nothing.")


_ROLES = {
    names.ACQUIRE: "Serve acquire, renew and release.",
    names.FLEET: "Create and delete pods, and watch the cluster.",
    names.BIND: "Activate workers and write pod labels.",
    names.PASSES: "Run the passes that beat schedules.",
}
_HOW = "Runs one Celery worker in the foreground. On SIGTERM it finishes its current tasks and exits with 0."


def _add_role(role: str, summary: str) -> None:
    @worker_app.command(role, help=f"{summary}\n\n{_HOW}")
    def worker(context: typer.Context) -> None:
        _become(context, "worker", role)


for _role, _summary in _ROLES.items():
    _add_role(_role, _summary)
# Words after --command are the program's own, options too.
worker_app.command(
    "check", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)(own_worker.check)


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
        bool,
        typer.Option(
            "--look-only", help="Use only the events that Celery workers send, and send them no messages."
        ),
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
            f"Flower on {host} can be reached from other machines, so it needs a login: set {' or '.join(_FLOWER_LOGINS)}"
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
    finish: Annotated[
        bool,
        typer.Option(
            "--finish",
            help="Also apply what the release before this one cannot work with. Refused while its "
            "processes are connected; afterwards a rollback to it is not possible.",
        ),
    ] = False,
) -> None:
    """Upgrade the schema as far as the running release can work with it, and create the configured
    orgs. The pool may be in use meanwhile.

    What the running release cannot work with is applied with --finish, or by the next upgrade.
    """
    if wait:
        _await_schema(context, wait)
        return
    from pool import wiring
    from pool.store import migrations

    settings = settings_of(context)
    store = wiring.open_store(settings)
    try:
        before = migrations.current(store)
        now = migrations.upgrade(store, _progress)
        wiring.seed(settings, store)
        if finish:
            now = migrations.finish(store, _progress)
        left = migrations.pending(store)
    finally:
        store.close()
    upgraded = f"schema upgraded from {before or 'an empty database'} to {now}"
    print(f"schema is already at {now}" if before == now else upgraded)
    if left:
        print(f"left for `warmpool migrate --finish`, or for the next upgrade: {', '.join(left)}")


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


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
