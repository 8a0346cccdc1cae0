"""`warmpool get` and `warmpool explain`: rows, and one thing's story."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from pool.cli.app import new_app, settings_of
from pool.cli.printing import (
    JsonOption,
    Output,
    OutputOption,
    WatchOption,
    again,
    ago,
    chosen,
    emit,
    table,
)
from pool.states import LIVE, State

get_app = new_app("List workers, claims, requests, orgs, profiles or passes.")
explain_app = new_app("One worker's or request's story, in sentences.")


class Kind(StrEnum):
    """What can be listed."""

    WORKERS = "workers"
    CLAIMS = "claims"
    REQUESTS = "requests"
    ORGS = "orgs"
    PROFILES = "profiles"
    PASSES = "passes"


# Columns of each kind: name and key; those after the bar only with -o wide.
COLUMNS: dict[Kind, str] = {
    Kind.WORKERS: "id profile state org in_state_s age_s node | epoch claim_id endpoint revision leaving_why",
    Kind.CLAIMS: "id org worker_id profile source lease_left_s | epoch lease_s ttl_s request_pk",
    Kind.REQUESTS: "org request_id profile state waited_s wait_s | pk attempts claim_id deadline_at",
    Kind.ORGS: "id in_use cap parked weight | hot_idle_floor hot_idle_cap hot_idle_ttl_s",
    Kind.PROFILES: "name target idle hot hot_idle spawning trouble | image cpu_millicores memory_mib revision configured_target",
    Kind.PASSES: "name period_s age_s result holder detail | failures duration_s last_attempt_at paused_by",
}


@get_app.command()
def get(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    org: Annotated[str, typer.Option(help="Only of this org.")] = "",
    profile: Annotated[str, typer.Option(help="Only of this profile.")] = "",
    node: Annotated[str, typer.Option(help="Only on this node.")] = "",
    state: Annotated[
        list[State] | None,
        typer.Option(
            metavar="STATE", help=f"Only in this state, one of {', '.join(State)}; may be repeated."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 500,
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    json: JsonOption = False,
) -> None:
    """List what the table holds. Workers are the live ones unless --state says otherwise; requests are those without an answer."""
    from pool import reporting, wiring
    from pool.store.looking import Wanted

    settings, how = settings_of(context), chosen(output, json=json)
    wanted = Wanted(org=org, profile=profile, node=node, states=frozenset(state or LIVE), limit=limit)
    store = wiring.open_store(settings)

    def once() -> None:
        rows = reporting.table(store, settings, str(kind), wanted)
        emit(rows, how, lambda: listing(kind, rows, wide=how is Output.WIDE, limit=limit))

    try:
        again(once, watch=watch)
    finally:
        store.close()


@explain_app.command()
def explain(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="WORKER|REQUEST", help="A worker's id (its beginning is enough), or a request's."
        ),
    ],
    org: Annotated[str, typer.Option(help="Whose request, if several orgs have used that id.")] = "",
    output: OutputOption = Output.TABLE,
    json: JsonOption = False,
) -> None:
    """A worker: what became of it and why, whether it can be claimed, its life from the journal. A request: why it waits, or its answer.

    Exit code 1 if nothing of that name is known.
    """  # fmt: skip
    from pool import reporting, wiring
    from pool.reporting.explaining import NotFound

    settings, how = settings_of(context), chosen(output, json=json)
    store = wiring.open_store(settings)
    try:
        try:
            told = reporting.explain_worker(store, settings, name)
            emit(told, how, lambda: worker_text(told))
        except NotFound:
            if name.startswith("w-"):
                raise
            try:
                asked = reporting.explain_request(store, settings, name, org=org)
            except NotFound as exc:
                raise (
                    exc if "several" in str(exc) else NotFound(f"no worker and no request {name!r}")
                ) from exc
            emit(asked, how, lambda: _request_text(asked))
    finally:
        store.close()


def listing(kind: Kind, rows: list[dict[str, Any]], *, wide: bool, limit: int) -> str:
    """The rows as a table; ages as people say them."""
    first, _, more = COLUMNS[kind].partition("|")
    keys = first.split() + (more.split() if wide else [])
    header = [key.removesuffix("_s").replace("_", " ").upper() for key in keys]
    shown = table(header, [[_cell(row, key) for key in keys] for row in rows])
    cut = f"\nonly the first {limit}: see --limit" if len(rows) == limit else ""
    return shown + cut if rows else f"no {kind}"


def _cell(row: dict[str, Any], key: str) -> Any:
    if key == "result":
        return "paused" if row["paused"] else "DARK" if row["dark"] else row["outcome"]
    value = row.get("states", {}).get(key) if key not in row else row[key]
    if value is None or (key == "cap" and not value):
        return "-"
    if key.endswith("_s") and isinstance(value, float):
        return ago(value)
    return value


def worker_text(told: dict[str, Any]) -> str:
    can = told["claimable"]
    head = [f"{told['id']}  {told['state']}", ""]
    head += [told["cause"]] if told["cause"] else []
    head += [told["now"]] if told["worker"] and told["state"] not in {"retired", "lost"} else []
    head += [f"Claimable {can['why']}." if can["can"] else f"Not claimable: {can['why']}."]
    lines = [f"  {line['at'][11:23]}  {line['text']}  [{line['who']}]" for line in told["story"]]
    lines += [f"  {d['at'][11:23]}  {d['what']}: {d['why']}  [{d['who']}]" for d in told["deeds"]]
    tasks = [
        f"  {c['id']}  {c['org']}  tasks {', '.join(c['request']['task_ids'])}"
        for c in told["claims"]
        if c["request"]
    ]
    day = [f"Its life (UTC, from {told['story'][0]['at'][:10]}):"] if told["story"] else []
    return "\n".join([*head, "", *day, *lines, *(["", "Its claims:", *tasks] if tasks else [])])


def _request_text(asked: dict[str, Any]) -> str:
    facts = ("org", "profile", "state", "created_at", "deadline_at", "wait_s", "attempts", "claim_id")
    rows = "\n".join(f"  {k:<12} {asked[k]}" for k in facts if asked[k] is not None)
    tasks = f"\n  {'tasks':<12} {', '.join(asked['task_ids'])}"
    return f"{asked['request_id']}  ({asked['pk']})\n\n{asked['why']}\n\n{rows}{tasks}"
