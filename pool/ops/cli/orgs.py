"""`warmpool org`: change orgs while the pool runs. The configuration file only seeds new orgs; the database
is what counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pool.core.contract import org_id
from pool.core.errors import PoolError
from pool.core.ids import ProfileName
from pool.core.settings import OrgDefaults, Settings
from pool.ops.cli import orgkeys
from pool.ops.cli.app import new_app, settings_of
from pool.ops.cli.pool_access import operator, pool_deps
from pool.ops.cli.printing import JsonOption, as_json, table

app = new_app("List orgs, and change their caps, weights, floors, TTLs and keys while the pool runs.")
orgkeys.add_to(app)


@app.command("list")
def list_orgs(context: typer.Context, json: JsonOption = False) -> None:
    """List all orgs with their settings and their usage."""
    from pool import wiring
    from pool.store import orgs

    store = wiring.open_store(settings_of(context))
    with store.read() as tx:
        found, held = orgs.every(tx), orgs.live_claims(tx)
    store.close()
    if json:
        as_json([asdict(o) | {"in_use": held.get(o.id, 0)} for o in found])
        return
    header = ["ORG", "IN USE", "CAP", "WEIGHT", "FLOOR", "PARK CAP", "TTL S", "PARKED"]
    rows = [
        [o.id, held.get(o.id, 0), o.cap or "-", f"{o.weight:g}", o.hot_idle_floor, o.hot_idle_cap or "-",
         "-" if o.hot_idle_ttl_s is None else o.hot_idle_ttl_s, o.parked]
        for o in found
    ]  # fmt: skip
    print(table(header, rows))


@app.command("set")
def set_org(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the org; it is created if it does not exist.")],
    cap: Annotated[
        int | None, typer.Option(min=0, help="Maximum number of live claims; 0 means no cap.")
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Share of the org when several orgs wait for workers: weight 2 gets twice as many as weight 1.",
        ),
    ] = None,
    floor: Annotated[
        int | None, typer.Option(min=0, help="Number of parked workers to keep after their TTL.")
    ] = None,
    park_cap: Annotated[
        int | None,
        typer.Option(min=0, help="Maximum number of parked workers; 0 means no cap. Overrides the floor."),
    ] = None,
    ttl: Annotated[
        int | None,
        typer.Option(min=0, metavar="S", help="Time a released worker stays parked, in seconds."),
    ] = None,
    why: Annotated[str, typer.Option("--why", help="Reason to record in the audit entry.")] = "",
) -> None:
    """Create an org, or change some of its settings; options that are not given stay unchanged.

    Takes effect at once, also for waiting requests.
    """
    from pool import wiring
    from pool.ops import operating
    from pool.store import requests

    org = org_id(name)
    settings = settings_of(context)
    if ttl is not None and ttl > settings.pool.hot_idle_ttl_max_s:
        raise PoolError(
            f"--ttl {ttl} is above the maximum of {settings.pool.hot_idle_ttl_max_s} (hot_idle_ttl_max_s)"
        )
    given: dict[str, Any] = {
        "cap": cap,
        "weight": weight,
        "hot_idle_floor": floor,
        "hot_idle_cap": park_cap,
        "hot_idle_ttl_s": ttl,
    }
    changes = {k: v for k, v in given.items() if v is not None}
    store = wiring.open_store(settings)
    now = operating.set_org(store, org, settings.orgs.get(org, OrgDefaults()), changes, operator(why))
    with store.read() as tx:
        # Read after the change: a request that begins to wait later sees the new cap.
        waited_for = requests.profiles_waited_for(tx, org) if "cap" in changes else []
    store.close()
    if waited_for:
        _ask_to_match(settings, waited_for)
    shown = "" if now is None else ", ".join(f"{k} {v}" for k, v in asdict(now).items() if k in given)
    print(f"{org}: {shown}")


def _ask_to_match(settings: Settings, profiles: Sequence[ProfileName]) -> None:
    """Ask the pass workers to match waiting requests, which may fit below the new cap.

    Without a broker the next `reconcile_warm` matches them.
    """
    with pool_deps(settings) as deps:
        for profile in profiles:
            deps.broker.send("pool.refill", profile=profile)
