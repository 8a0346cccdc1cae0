"""`warmpool passes` and `warmpool pass`: the singletons that keep the pool healthy."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import typer

from pool.cli.app import new_app, settings_of
from pool.cli.printing import JsonOption, Output, OutputOption, as_json, chosen, emit
from pool.cli.working import operator, working
from pool.errors import PoolError
from pool.periods import PERIODS_S, lock_ttl_s

list_app = new_app("The passes with their age, holder and last result.")
app = new_app("Run, pause or resume one pass.")

pause_app = new_app("Stop handing out workers.")
resume_app = new_app("Hand out workers again.")

Name = Annotated[str, typer.Argument(help=f"One of: {', '.join(PERIODS_S)}.")]


@list_app.command()
def list_passes(
    context: typer.Context, output: OutputOption = Output.TABLE, json: JsonOption = False
) -> None:
    """All passes: period, age of the last success, result, who ran it last, what it did. Exit code 1 if one is dark."""
    from pool import reporting, wiring
    from pool.cli.status import pass_table

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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would do; change nothing.")] = False,
) -> None:
    """Run one pass now, here, under its lock, whenever it ran last. Exits with 1 if it did not go through, or is paused."""
    _must_be_known(name)
    from pool.passes import PASSES, run_once

    with working(settings_of(context)) as made:
        # A command may be run with another configuration than the pool's: it never rules over the pool's own processes.
        deps = replace(made, started_at=datetime(2000, 1, 1, tzinfo=UTC))
        deps.driver.list()  # the view of the cluster that the pass will judge by
        # Beat's own run, if there is one at this moment, is over soon; or its lock is.
        until = deps.clock.monotonic() + lock_ttl_s(name)
        report = run_once(deps, PASSES[name], dry_run=dry_run, by_hand=True)
        while report["outcome"] == "held_elsewhere" and deps.clock.monotonic() < until:
            deps.clock.wait(threading.Event(), 0.2)
            report = run_once(deps, PASSES[name], dry_run=dry_run, by_hand=True)
    as_json(report)
    if report["outcome"] == "paused":
        typer.echo(f"warmpool: {name} is paused; warmpool pass resume {name} lets it run", err=True)
    raise typer.Exit(0 if report["outcome"] == "ok" else 1)


@app.command()
def pause(context: typer.Context, name: Name) -> None:
    """Stop a pass, and its fallback, until it is resumed."""
    _set_paused(context, name, paused=True)


@app.command()
def resume(context: typer.Context, name: Name) -> None:
    """Let a paused pass run again."""
    _set_paused(context, name, paused=False)


@pause_app.command()
def pause_pool(context: typer.Context) -> None:
    """Stop handing out workers: acquires are refused with `paused`. Claims that live go on, and so do the passes."""
    _set_pool_paused(context, paused=True)


@resume_app.command()
def resume_pool(context: typer.Context) -> None:
    """Hand out workers again."""
    _set_pool_paused(context, paused=False)


def _set_pool_paused(context: typer.Context, *, paused: bool) -> None:
    from pool import operating, wiring

    store = wiring.open_store(settings_of(context))
    operating.set_pool_paused(store, paused=paused, operator=operator())
    store.close()
    print(f"the pool is {'paused' if paused else 'handing out workers'}")


def _set_paused(context: typer.Context, name: str, *, paused: bool) -> None:
    from pool import operating, wiring

    _must_be_known(name)
    store = wiring.open_store(settings_of(context))
    operating.set_pass_paused(store, name, paused=paused, operator=operator())
    store.close()
    print(f"{name} {'paused' if paused else 'resumed'}")


def _must_be_known(name: str) -> None:
    if name not in PERIODS_S:
        raise PoolError(f"no pass {name!r}: one of {', '.join(PERIODS_S)}")
