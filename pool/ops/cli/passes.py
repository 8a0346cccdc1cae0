"""`warmpool passes`, `pass`, `pause` and `resume`: list and control the passes, pause the pool."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Annotated

import typer

from pool.core.errors import PoolError
from pool.core.periods import PERIODS_S, lock_ttl_s
from pool.ops.cli.app import new_app, settings_of
from pool.ops.cli.pool_access import operator, pool_deps
from pool.ops.cli.printing import JsonOption, Output, OutputOption, as_json, chosen, emit

list_app = new_app("List the passes with age, holder and last result.")
app = new_app("Run, pause or resume one pass.")

pause_app = new_app("Pause the pool: refuse every acquire.")
resume_app = new_app("Resume the pool: grant acquires again.")

Name = Annotated[str, typer.Argument(help=f"Name of the pass, one of: {', '.join(PERIODS_S)}.")]


@list_app.command()
def list_passes(
    context: typer.Context, output: OutputOption = Output.TABLE, json: JsonOption = False
) -> None:
    """List all passes: period, age of the last success, result, the process that ran it last, what it did.

    Exit code: 1 if a pass is dark (no success for three periods), else 0.
    """
    from pool import wiring
    from pool.ops import reporting
    from pool.ops.cli.status import pass_table

    settings = settings_of(context)
    store = wiring.open_store(settings)
    seen = reporting.status(store, settings)
    store.close()
    emit(seen["passes"], chosen(output, json=json), lambda: pass_table(seen))
    raise typer.Exit(1 if any(p["dark"] for p in seen["passes"].values()) else 0)


@app.command()
def run(
    context: typer.Context,
    name: Name,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what it would do; change nothing.")
    ] = False,
) -> None:
    """Run one pass now, in this process, under its lock.

    Exit code: 1 if the pass failed, is paused, or another process held its lock for too long.
    """
    _must_be_known(name)
    from pool.passes import PASSES, run_once

    with pool_deps(settings_of(context)) as made:
        # This command may have another configuration than the pool: its builds replace none.
        deps = replace(made, changes_builds=False)
        deps.driver.list()  # fill the driver's view of the cluster, which the pass decides by
        # A run scheduled by beat may hold the lock now: it ends soon, or its lock expires.
        until = deps.clock.monotonic() + lock_ttl_s(name)
        report = run_once(deps, PASSES[name], dry_run=dry_run, by_hand=True)
        while report["outcome"] == "held_elsewhere" and deps.clock.monotonic() < until:
            deps.clock.wait(threading.Event(), 0.2)
            report = run_once(deps, PASSES[name], dry_run=dry_run, by_hand=True)
    as_json(report)
    if report["outcome"] == "paused":
        typer.echo(f"warmpool: pass {name} is paused; to resume it: warmpool pass resume {name}", err=True)
    raise typer.Exit(0 if report["outcome"] == "ok" else 1)


@app.command()
def pause(context: typer.Context, name: Name) -> None:
    """Pause a pass and its fallback until it is resumed."""
    _set_paused(context, name, paused=True)


@app.command()
def resume(context: typer.Context, name: Name) -> None:
    """Resume a paused pass."""
    _set_paused(context, name, paused=False)


@pause_app.command()
def pause_pool(context: typer.Context) -> None:
    """Pause the pool: acquires are refused with the reason `paused`. Live claims and the passes continue."""
    _set_pool_paused(context, paused=True)


@resume_app.command()
def resume_pool(context: typer.Context) -> None:
    """Resume the pool: grant acquires again."""
    _set_pool_paused(context, paused=False)


def _set_pool_paused(context: typer.Context, *, paused: bool) -> None:
    from pool import wiring
    from pool.ops import operating

    store = wiring.open_store(settings_of(context))
    operating.set_pool_paused(store, paused=paused, operator=operator())
    store.close()
    print(
        "the pool is paused: acquires are refused" if paused else "the pool is resumed: acquires are granted"
    )


def _set_paused(context: typer.Context, name: str, *, paused: bool) -> None:
    from pool import wiring
    from pool.ops import operating

    _must_be_known(name)
    store = wiring.open_store(settings_of(context))
    operating.set_pass_paused(store, name, paused=paused, operator=operator())
    store.close()
    print(f"pass {name} is {'paused' if paused else 'resumed'}")


def _must_be_known(name: str) -> None:
    if name not in PERIODS_S:
        raise PoolError(f"unknown pass {name!r}; the passes are: {', '.join(PERIODS_S)}")
