"""`warmpool top`: live workers in a terminal. Sort, filter, explain one worker."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from pool.core.errors import PoolError
from pool.ops.cli.app import new_app, settings_of

app = new_app("Show live workers in the terminal.")

MOST_ROWS = 2000


@app.command()
def top(
    context: typer.Context,
    every: Annotated[
        float, typer.Option("--every", metavar="S", min=0.2, help="Refresh interval, in seconds.")
    ] = 1.0,
) -> None:
    """Show live workers in the terminal.

    Keys: s sort by the next column, r reverse the order, / filter, Enter explain the selected worker, q quit.
    """
    from pool import wiring
    from pool.ops import reporting
    from pool.ops.cli.fleetview import Top
    from pool.ops.cli.getting import worker_text
    from pool.store.operator_queries import ListFilter

    if not sys.stdout.isatty():
        raise PoolError("the output is not a terminal: use `warmpool get workers --watch -o json` instead")
    settings = settings_of(context)
    store = wiring.open_store(settings)

    def read() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        status = reporting.status(store, settings)
        return status, reporting.table(store, settings, "workers", ListFilter(limit=MOST_ROWS))

    def explain(name: str) -> str:
        return worker_text(reporting.explain_worker(store, settings, name))

    try:
        Top(read, explain, every_s=every).run()
    finally:
        store.close()
