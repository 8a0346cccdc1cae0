"""`warmpool status` and `warmpool events`: what the pool looks like, and what happened."""

from __future__ import annotations

import json as jsonlib
import threading
from typing import TYPE_CHECKING, Annotated, Any

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
    show,
    table,
)
from pool.clock import SystemClock
from pool.contract import instant
from pool.errors import PoolError
from pool.ids import WorkerId
from pool.reporting.worrying import is_halted, rollout_text

if TYPE_CHECKING:
    from pool.store.journal import Entry

status_app = new_app("What the pool looks like now.")
events_app = new_app("What happened to workers, from the journal.")


@status_app.command()
def status(
    context: typer.Context,
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    json: JsonOption = False,
) -> None:
    """One screen, worst first: what to worry about, workers by profile and state, who waits and why, orgs against their caps, passes.

    Exit code 1 if there is a worry marked `!!`, so that scripts can ask.
    """
    from pool import reporting, wiring

    settings, how = settings_of(context), chosen(output, json=json)
    store = wiring.open_store(settings)

    def once() -> dict[str, Any]:
        seen = reporting.status(store, settings)
        emit(seen, how, lambda: screen(seen))
        return seen

    try:
        seen = again(once, watch=watch)
    finally:
        store.close()
    raise typer.Exit(1 if any(w["level"] == "bad" for w in seen["worries"]) else 0)


@events_app.command()
def events(
    context: typer.Context,
    worker: Annotated[str | None, typer.Argument(help="Only this worker's life.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as things happen, until Ctrl-C.")
    ] = False,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="How many to begin with.")] = 20,
    json: JsonOption = False,
) -> None:
    """Every move of every worker: when, from where to where, whose it was, who moved it and why. Exit code 1 if the worker is unknown."""
    from pool import wiring
    from pool.store import journal

    store = wiring.open_store(settings_of(context))
    clock, never = SystemClock(), threading.Event()
    try:
        with store.read() as tx:
            found = journal.of(tx, WorkerId(worker)) if worker else journal.latest(tx, limit=last)
        _print(found, json=json)
        seen = found[-1].id if found else 0
        while follow:
            clock.wait(never, 0.5)
            with store.read() as tx:
                new = journal.since(tx, seen)
            _print([e for e in new if worker in (None, e.worker_id)], json=json)
            seen = new[-1].id if new else seen
    finally:
        store.close()
    if worker and not found:
        raise PoolError(f"no worker {worker!r}: the journal does not know it")


def screen(seen: dict[str, Any]) -> str:
    """The status as people read it."""
    pool, idling = seen["pool"], seen["idling"]
    cap = f" of at most {pool['max_workers']}" if pool["max_workers"] else ""
    cost = f"{idling['workers']} unused ({idling['vcpu']:g} vCPU, {idling['memory_gib']:g} GiB)"
    parts = [f"warmpool  {pool['live']} live workers{cap}, {cost}  at {seen['at']}"]
    parts += [f"{'!!' if w['level'] == 'bad' else '!'} {w['text']}" for w in seen["worries"]]
    parts += [] if seen["worries"] else ["nothing to worry about"]
    parts += [
        f"  profile {name}: {rollout_text(p)}"
        for name, p in seen["profiles"].items()
        if p["rollout"] and not is_halted(p)
    ]
    parts += ["", _profile_table(seen)]
    if seen["waiting"]:
        lines = [
            [w["org"], w["profile"], w["waiting"], ago(w["oldest_s"]), w["why"]] for w in seen["waiting"]
        ]
        parts += ["", table(["WAITING ORG", "PROFILE", "REQUESTS", "OLDEST", "WHY"], lines)]
    if seen["refused_last_minute"]:
        refused = sorted(seen["refused_last_minute"].items(), key=lambda r: -r[1])
        parts += ["", "refused in the last minute: " + ", ".join(f"{n} {reason}" for reason, n in refused)]
    if seen["orgs"]:
        parts += ["", _org_table(seen)]
    return "\n".join([*parts, "", pass_table(seen)])


def pass_table(seen: dict[str, Any]) -> str:
    """The passes with their age, holder and last result."""
    rows = []
    for name, p in seen["passes"].items():
        age = "never" if p["age_s"] is None else f"{ago(p['age_s'])} ago"
        mark = "paused" if p["paused"] else "DARK" if p["dark"] else p["outcome"]
        rows.append([name, f"{p['period_s']:g} s", age, mark, p["holder"], p["detail"]])
    return table(["PASS", "PERIOD", "LAST SUCCESS", "RESULT", "HOLDER", "DID"], rows)


def _profile_table(seen: dict[str, Any]) -> str:
    states = list(next(iter(seen["profiles"].values()))["states"]) if seen["profiles"] else []
    rows = [[name, p["target"], *p["states"].values()] for name, p in seen["profiles"].items()]
    return table(["PROFILE", "TARGET", *(s.upper() for s in states)], rows)


def _org_table(seen: dict[str, Any]) -> str:
    rows = [[o, v["in_use"], v["cap"] or "-", v["parked"], v["weight"]] for o, v in seen["orgs"].items()]
    shown = table(["ORG", "IN USE", "CAP", "PARKED", "WEIGHT"], rows)
    more = seen["orgs_total"] - len(rows)
    return f"{shown}\nand {more} more: warmpool get orgs" if more > 0 else shown


def _print(entries: list[Entry], *, json: bool) -> None:
    from pool import reporting

    for e in entries:
        if json:
            print(jsonlib.dumps(reporting.entry(e), default=str), flush=True)
        else:
            whose = f" {e.org}" if e.org else ""
            moved = f"{e.from_state or '-'} -> {e.to_state}"
            show(f"{instant(e.at)}  {e.worker_id}  {moved:<24} epoch {e.epoch}{whose}  {e.why}  [{e.who}]")
