"""`warmpool drain`: take workers out of use without touching anybody's work; `warmpool profile`: how many are kept warm."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from pool.cli.app import new_app, settings_of
from pool.cli.printing import JsonOption, Output, OutputOption, as_json, chosen, emit
from pool.cli.working import operator, working
from pool.errors import PoolError
from pool.ids import ProfileName, WorkerId

app = new_app("Take workers out of use; those that are busy leave when they are done.")
profile_app = new_app("Profiles: list them, and say how many workers to keep warm.")


class What(StrEnum):
    """What a drain may mean."""

    WORKER = "worker"
    NODE = "node"
    ORG = "org"
    PROFILE = "profile"


@app.command()
def drain(
    context: typer.Context,
    what: Annotated[What, typer.Argument(help="Which workers: one, or all of a node, an org or a profile.")],
    name: Annotated[str, typer.Argument(help="Its name or id.")],
    why: Annotated[str, typer.Option("--why", help="A reason, for the journal.")] = "",
    now: Annotated[
        bool,
        typer.Option(
            "--now", help="One worker, also if it is in use: its claim ENDS and its pod is deleted."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say which; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Take workers out of use. Unclaimed ones go now; busy ones are marked, their holders are told, and they go when their claim ends.

    What leaves is replaced up to the warm target: to keep a node empty, cordon it first. Exit code 1 if nothing is meant.
    """  # fmt: skip
    from pool import operating

    settings = settings_of(context)
    with working(settings) as deps:
        meant = operating.chosen(deps.store, str(what), name)
        if not meant:
            hint = " (a worker is named by its whole id)" if what == What.WORKER else ""
            raise PoolError(f"no live worker is meant by {what} {name}{hint}")
        if now and what is not What.WORKER:
            raise PoolError("--now ends claims: it takes one worker at a time")
        busy = [w for w in meant if w.claim_id is not None]
        said = f"{len(meant)} workers, {len(busy)} of them in use"
        if dry_run:
            as_json([w.id for w in meant]) if json else print(f"would drain {said}")
            return
        if now:
            holder = f"; the claim of {meant[0].org} on it ends" if busy else ""
            _confirm(f"retire {name} now{holder}?", yes=yes)
            print(operating.retire(deps, WorkerId(name), operator(why)))
            return
        if len(meant) > 1:
            _confirm(f"drain {said}?", yes=yes)
        done = operating.drain(deps, [w.id for w in meant], operator(why)).as_dict()
    if json:
        as_json(done)
    else:
        print(
            f"drained {len(done['drained'])}, leaving when done {len(done['leaving'])}, left alone {len(done['left_alone'])}"
        )


@profile_app.command("list")
def list_profiles(
    context: typer.Context, output: OutputOption = Output.TABLE, json: JsonOption = False
) -> None:
    """All profiles: target, workers by state, and what is wrong with them."""
    from pool import reporting, wiring
    from pool.cli.getting import Kind, listing
    from pool.store.looking import Wanted

    settings, how = settings_of(context), chosen(output, json=json)
    store = wiring.open_store(settings)
    rows = reporting.table(store, settings, "profiles", Wanted())
    store.close()
    emit(rows, how, lambda: listing(Kind.PROFILES, rows, wide=how is Output.WIDE, limit=len(rows) + 1))


@profile_app.command("set-warm")
def set_warm(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The profile.")],
    target: Annotated[
        str,
        typer.Argument(metavar="N|configured", help="How many to keep warm; or as the configuration says."),
    ],
    why: Annotated[str, typer.Option("--why", help="A reason, for the record.")] = "",
) -> None:
    """Keep so many workers of a profile warm, from the next reconcile on. Lasts until it is set again; the file stays as it is."""
    from pool import operating, wiring

    settings = settings_of(context)
    if name not in settings.profiles:
        raise PoolError(f"no profile {name!r}: one of {', '.join(sorted(settings.profiles))}")
    if target != "configured" and not target.isdigit():
        raise PoolError(f"the target is a number or `configured`, not {target!r}")
    number = None if target == "configured" else int(target)
    store = wiring.open_store(settings)
    operating.set_warm(store, ProfileName(name), number, operator(why))
    store.close()
    configured = settings.profiles[name].warm_target
    print(
        f"{name}: {f'{number} (configured {configured})' if number is not None else f'{configured}, as configured'}"
    )


def _confirm(question: str, *, yes: bool) -> None:
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise PoolError(f"{question} say --yes")
    typer.confirm(question, abort=True)
