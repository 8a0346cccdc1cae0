"""`warmpool orphan`: list orphaned pods that are kept, and release one that does not answer."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from pool.ops.cli.app import new_app, settings_of
from pool.ops.cli.pool_access import confirm, operator
from pool.ops.cli.printing import JsonOption, Output, OutputOption, chosen, emit, table

app = new_app("List orphaned pods that are kept, and delete one that does not answer.")


@app.command("list")
def list_orphans(
    context: typer.Context, output: OutputOption = Output.TABLE, json: JsonOption = False
) -> None:
    """List the orphaned pods that are kept, and why."""
    from pool import wiring
    from pool.store import suspects
    from pool.store.suspects import SuspectKind

    with closing(wiring.open_store(settings_of(context))) as store, store.read() as tx:
        found = [
            {"name": subject.partition("/")[0], "kind": str(kind), "runs": runs, "detail": detail}
            for kind in (SuspectKind.HELD_POD, SuspectKind.SILENT_POD)
            for _, subject, runs, detail in suspects.every(tx, kind)
        ]
    rows = [[o["name"], o["runs"], o["detail"]] for o in found]
    emit(found, chosen(output, json=json), lambda: table(["POD", "RUNS", "WHY"], rows))


@app.command()
def delete(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Full name of the pod.")],
    why: Annotated[str, typer.Option("--why", help="Reason to record in the audit entry.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete an orphaned pod that is kept because it does not answer.

    If a session is open on it, the session ENDS. Refused for a pod with a live row, a pod that
    reports an open session, and a pod that is not kept.
    """
    from pool import wiring
    from pool.ops import operating

    with closing(wiring.open_store(settings_of(context))) as store:
        confirm(f"delete {name}, and end any session that is open on it?", yes=yes)
        operating.release_orphan(store, name, operator(why))
    print(f"{name} is released: the next run of sweep_orphans deletes it, unless it reports an open session")
