"""`warmpool top`: the fleet live in a terminal. Sort, filter, look into one worker."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from pool.cli.app import new_app, settings_of
from pool.errors import PoolError

app = new_app("The fleet, live.")

MOST_ROWS = 2000


@app.command()
def top(
    context: typer.Context,
    every: Annotated[float, typer.Option("--every", metavar="S", min=0.2, help="Read so often.")] = 1.0,
) -> None:
    """The fleet live: s sorts by the next column, r turns the order round, / filters, Enter shows a worker's story, q ends."""
    from pool import reporting, wiring
    from pool.cli.fleetview import Top
    from pool.cli.getting import worker_text
    from pool.store.looking import Wanted

    if not sys.stdout.isatty():
        raise PoolError("top needs a terminal; for programs there is `warmpool get workers --watch -o json`")
    settings = settings_of(context)
    store = wiring.open_store(settings)

    def read() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        status = reporting.status(store, settings)
        return status, reporting.table(store, settings, "workers", Wanted(limit=MOST_ROWS))

    def explain(name: str) -> str:
        return worker_text(reporting.explain_worker(store, settings, name))

    try:
        Top(read, explain, every_s=every).run()
    finally:
        store.close()
