"""`warmpool drain`: take workers out of use without ending a claim. `warmpool profile`: list profiles, set
warm targets."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from pool.core.errors import PoolError
from pool.core.ids import ProfileName, WorkerId
from pool.ops.cli.app import new_app, settings_of
from pool.ops.cli.pool_access import confirm, operator, pool_deps
from pool.ops.cli.printing import JsonOption, Output, OutputOption, as_json, chosen, emit

app = new_app("Take workers out of use; busy workers leave when their claim ends.")
profile_app = new_app("List profiles, and set how many workers to keep warm.")


class DrainTarget(StrEnum):
    """What a drain selects workers by."""

    WORKER = "worker"
    NODE = "node"
    ORG = "org"
    PROFILE = "profile"


@app.command()
def drain(
    context: typer.Context,
    what: Annotated[
        DrainTarget, typer.Argument(help="Drain one worker, or all workers of a node, org or profile.")
    ],
    name: Annotated[str, typer.Argument(help="Full id of the worker, or name of the node, org or profile.")],
    why: Annotated[str, typer.Option("--why", help="Reason to write to the journal.")] = "",
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Retire one worker now, even if it is in use: its claim ENDS and its pod is deleted.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be drained; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: JsonOption = False,
) -> None:
    """Take workers out of use.

    Workers without a claim drain now. Busy workers are marked as leaving, their holders are
    informed with the next renewal, and they drain when their claim ends. No claim ends early,
    except with --now.

    Drained workers are replaced up to the warm target: to keep a node empty, cordon it first.

    Exit code: 1 if no live worker matches.
    """
    from pool.ops import operating

    settings = settings_of(context)
    with pool_deps(settings) as deps:
        selected = operating.chosen(deps.store, str(what), name)
        if not selected:
            hint = "; give the full worker id" if what == DrainTarget.WORKER else ""
            raise PoolError(f"no live worker matches {what} {name}{hint}")
        if now and what is not DrainTarget.WORKER:
            raise PoolError(
                f"--now ends claims, so it takes one worker, not a {what}: use `drain worker`, or omit --now"
            )
        busy = [w for w in selected if w.claim_id is not None]
        count = f"{len(selected)} workers, {len(busy)} of them in use"
        if dry_run:
            as_json([w.id for w in selected]) if json else print(f"would drain {count}")
            return
        if now:
            holder = f" and end the claim of {selected[0].org}" if busy else ""
            confirm(f"retire {name} now{holder}?", yes=yes)
            print(operating.retire(deps, WorkerId(name), operator(why)))
            return
        if len(selected) > 1:
            confirm(f"drain {count}?", yes=yes)
        done = operating.drain(deps, [w.id for w in selected], operator(why)).as_dict()
    if json:
        as_json(done)
    else:
        print(
            f"drained {len(done['drained'])}, leaving when their claim ends {len(done['leaving'])}, "
            f"skipped {len(done['left_alone'])}"
        )


@profile_app.command("list")
def list_profiles(
    context: typer.Context, output: OutputOption = Output.TABLE, json: JsonOption = False
) -> None:
    """List all profiles: warm target, workers by state, and why they fail to start."""
    from pool import wiring
    from pool.ops import reporting
    from pool.ops.cli.getting import Listable, listing
    from pool.store.operator_queries import ListFilter

    settings, how = settings_of(context), chosen(output, json=json)
    store = wiring.open_store(settings)
    rows = reporting.table(store, settings, "profiles", ListFilter())
    store.close()
    emit(rows, how, lambda: listing(Listable.PROFILES, rows, wide=how is Output.WIDE, limit=len(rows) + 1))


@profile_app.command("set-warm")
def set_warm(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the profile.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="N|configured",
            help="Number of workers to keep warm, or `configured` for the value in the configuration.",
        ),
    ],
    why: Annotated[str, typer.Option("--why", help="Reason to record in the audit entry.")] = "",
) -> None:
    """Set how many workers of a profile to keep warm.

    Takes effect with the next `reconcile_warm`, and lasts until it is set again. The configuration
    file is not changed.
    """
    from pool import wiring
    from pool.ops import operating

    settings = settings_of(context)
    if name not in settings.profiles:
        raise PoolError(f"unknown profile {name!r}; configured are: {', '.join(sorted(settings.profiles))}")
    if target != "configured" and not target.isdigit():
        raise PoolError(f"invalid target {target!r}: give a whole number, 0 or more, or `configured`")
    number = None if target == "configured" else int(target)
    store = wiring.open_store(settings)
    operating.set_warm(store, ProfileName(name), number, operator(why))
    store.close()
    configured = settings.profiles[name].warm_target
    print(
        f"{name}: "
        f"{f'{number} (configured {configured})' if number is not None else f'{configured}, as configured'}"
    )
