"""`warmpool get` and `warmpool explain`: list rows, and explain one worker or request."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from pool.core.states import LIVE, State
from pool.ops.cli.app import new_app, settings_of
from pool.ops.cli.printing import (
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

get_app = new_app("List workers, claims, requests, orgs, profiles or passes.")
explain_app = new_app("Explain one worker or one request.")


class Listable(StrEnum):
    """What can be listed."""

    WORKERS = "workers"
    CLAIMS = "claims"
    REQUESTS = "requests"
    ORGS = "orgs"
    PROFILES = "profiles"
    PASSES = "passes"


# Columns of each kind. Those after the bar are shown with -o wide only.
COLUMNS: dict[Listable, str] = {
    Listable.WORKERS: "id profile state org in_state_s age_s node | epoch claim_id endpoint "
    "revision leaving_reason",
    Listable.CLAIMS: "id org worker_id profile source lease_left_s origin | epoch lease_s ttl_s request_pk",
    Listable.REQUESTS: "org request_id profile state waited_s wait_s | pk attempts claim_id deadline_at",
    Listable.ORGS: "id in_use cap parked weight | hot_idle_floor hot_idle_cap hot_idle_ttl_s",
    Listable.PROFILES: "name target idle hot hot_idle spawning trouble | image cpu_millicores "
    "memory_mib revision configured_target",
    Listable.PASSES: "name period_s age_s result holder detail | failures duration_s "
    "last_attempt_at paused_by",
}


@get_app.command()
def get(
    context: typer.Context,
    kind: Annotated[Listable, typer.Argument(help="What to list.")],
    org: Annotated[str, typer.Option(help="Only rows of this org.")] = "",
    profile: Annotated[str, typer.Option(help="Only workers of this profile, or only this profile.")] = "",
    node: Annotated[str, typer.Option(help="Only workers on this node.")] = "",
    state: Annotated[
        list[State] | None,
        typer.Option(
            metavar="STATE",
            help=f"Only workers in this state, repeatable. States: {', '.join(State)}. Default: "
            "all live states.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 500,
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    json: JsonOption = False,
) -> None:
    """List workers, claims, requests, orgs, profiles or passes.

    Lists live workers (unless --state is given), live claims, and open requests (waiting or binding).
    """
    from pool import wiring
    from pool.ops import reporting
    from pool.store.operator_queries import ListFilter

    settings, how = settings_of(context), chosen(output, json=json)
    wanted = ListFilter(org=org, profile=profile, node=node, states=frozenset(state or LIVE), limit=limit)
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
            metavar="WORKER|REQUEST",
            help="Worker id (a unique beginning of it is enough), pod name, or request id.",
        ),
    ],
    org: Annotated[
        str, typer.Option(help="Org of the request; needed if several orgs used this request id.")
    ] = "",
    output: OutputOption = Output.TABLE,
    json: JsonOption = False,
) -> None:
    """Explain one worker or one request.

    For a worker: its state, why it ended, whether it can be claimed, its history from the journal,
    its claims. For a request: why it waits, or its answer.

    Exit code: 1 if there is no worker and no request with this id.
    """
    from pool import wiring
    from pool.ops import reporting
    from pool.ops.reporting.explaining import Ambiguous, NotFound

    settings, how = settings_of(context), chosen(output, json=json)
    store = wiring.open_store(settings)
    try:
        try:
            report = reporting.explain_worker(store, settings, name)
            emit(report, how, lambda: worker_text(report))
        except NotFound:
            if name.startswith("w-"):
                raise
            try:
                request = reporting.explain_request(store, settings, name, org=org)
            except Ambiguous:
                raise
            except NotFound as exc:
                raise NotFound(f"there is no worker and no request {name!r}") from exc
            emit(request, how, lambda: _request_text(request))
    finally:
        store.close()


def listing(kind: Listable, rows: list[dict[str, Any]], *, wide: bool, limit: int) -> str:
    """Return the rows as a table, with ages in readable units."""
    first, _, more = COLUMNS[kind].partition("|")
    keys = first.split() + (more.split() if wide else [])
    header = [key.removesuffix("_s").replace("_", " ").upper() for key in keys]
    shown = table(header, [[_cell(row, key) for key in keys] for row in rows])
    cut = f"\nonly the first {limit} rows are shown; raise --limit to see more" if len(rows) == limit else ""
    return shown + cut if rows else f"no {kind} found"


def _cell(row: dict[str, Any], key: str) -> Any:
    if key == "result":
        return "paused" if row["paused"] else "DARK" if row["dark"] else row["outcome"]
    value = row.get("states", {}).get(key) if key not in row else row[key]
    if value is None or (key == "cap" and not value):
        return "-"
    if key.endswith("_s") and isinstance(value, float):
        return ago(value)
    return value


def worker_text(report: dict[str, Any]) -> str:
    """Return the explanation of a worker as text for the terminal."""
    can = report["claimable"]
    head = [f"{report['id']}  {report['state']}", ""]
    head += [report["cause"]] if report["cause"] else []
    head += [report["now"]] if report["worker"] and report["state"] not in {"retired", "lost"} else []
    head += [f"Claimable {can['why']}." if can["can"] else f"Not claimable: {can['why']}."]
    lines = [f"  {line['at'][11:23]}  {line['text']}  [{line['who']}]" for line in report["story"]]
    lines += [f"  {d['at'][11:23]}  {d['what']}: {d['why']}  [{d['who']}]" for d in report["deeds"]]
    tasks = [
        f"  {c['id']}  {c['org']}  {c['ended_why'] or 'live'}  of {c['origin'] or 'an unknown program'}  "
        f"tasks {', '.join(c['request']['task_ids'])}"
        for c in report["claims"]
        if c["request"]
    ]
    day = [f"History (UTC, from {report['story'][0]['at'][:10]}):"] if report["story"] else []
    return "\n".join([*head, "", *day, *lines, *(["", "Claims:", *tasks] if tasks else [])])


def _request_text(request: dict[str, Any]) -> str:
    facts = (
        "org",
        "profile",
        "state",
        "created_at",
        "deadline_at",
        "wait_s",
        "attempts",
        "claim_id",
        "origin",
        "traceparent",
    )
    rows = "\n".join(f"  {k:<12} {request[k]}" for k in facts if request[k] is not None)
    tasks = f"\n  {'tasks':<12} {', '.join(request['task_ids'])}"
    return f"{request['request_id']}  ({request['pk']})\n\n{request['why']}\n\n{rows}{tasks}"
