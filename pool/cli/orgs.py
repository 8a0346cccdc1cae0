"""`warmpool org`: tenants, changed while the pool runs. The file seeds, the table rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pool.cli import orgkeys
from pool.cli.app import new_app, settings_of
from pool.cli.printing import JsonOption, as_json, table
from pool.cli.working import operator, working
from pool.contract import org_id
from pool.errors import PoolError
from pool.ids import ProfileName
from pool.settings import OrgDefaults, Settings

app = new_app("Orgs: caps, weights, floors, TTLs and keys, changed while the pool runs.")
orgkeys.add_to(app)


@app.command("list")
def list_orgs(context: typer.Context, json: JsonOption = False) -> None:
    """All orgs with their settings and what they use."""
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
    name: Annotated[str, typer.Argument(help="The org; it is made if it is not there.")],
    cap: Annotated[int | None, typer.Option(min=0, help="Most live claims; 0 = no cap.")] = None,
    weight: Annotated[float | None, typer.Option(min=0.001, help="Share among waiting orgs.")] = None,
    floor: Annotated[int | None, typer.Option(min=0, help="Parked workers kept past their TTL.")] = None,
    park_cap: Annotated[
        int | None, typer.Option(min=0, help="Most parked workers; 0 = no cap; beats the floor.")
    ] = None,
    ttl: Annotated[
        int | None, typer.Option(min=0, metavar="S", help="How long its workers stay parked.")
    ] = None,
    why: Annotated[str, typer.Option("--why", help="A reason, for the record.")] = "",
) -> None:
    """Make an org or change some of its settings; what is not named stays. Takes effect at once, also for those who wait."""
    from pool import operating, wiring
    from pool.store import requests

    org = org_id(name)
    settings = settings_of(context)
    if ttl is not None and ttl > settings.pool.hot_idle_ttl_max_s:
        raise PoolError(f"--ttl must be at most hot_idle_ttl_max_s, {settings.pool.hot_idle_ttl_max_s}")
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
        # After the change: who sits down to wait from here on sees it by himself.
        waited_for = requests.profiles_waited_for(tx, org) if "cap" in changes else []
    store.close()
    if waited_for:
        _ask_to_match(settings, waited_for)
    shown = "" if now is None else ", ".join(f"{k} {v}" for k, v in asdict(now).items() if k in given)
    print(f"{org}: {shown}")


def _ask_to_match(settings: Settings, profiles: Sequence[ProfileName]) -> None:
    """Those who wait may have room now. The pass workers match them; without a broker the next `reconcile_warm` does."""
    with working(settings) as deps:
        for profile in profiles:
            deps.broker.send("pool.refill", profile=profile)
