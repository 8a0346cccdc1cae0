"""`warmpool org`: tenants, changed while the pool runs. The file seeds, the table rules."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from pool.cli.app import new_app, settings_of
from pool.cli.printing import JsonOption, as_json, table
from pool.contract import org_id
from pool.errors import PoolError
from pool.settings import OrgDefaults

app = new_app("Orgs: caps, weights, floors and TTLs, changed while the pool runs.")


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
) -> None:
    """Make an org or change some of its settings; what is not named stays. Takes effect at once."""
    from pool import wiring
    from pool.store import orgs

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
    with store.write() as tx:
        orgs.seed(tx, org, settings.orgs.get(org, OrgDefaults()))
        if changes:
            orgs.change(tx, org, changes)
        now = orgs.get(tx, org)
    store.close()
    shown = "" if now is None else ", ".join(f"{k} {v}" for k, v in asdict(now).items() if k in given)
    print(f"{org}: {shown}")
