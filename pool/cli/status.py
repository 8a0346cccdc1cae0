"""`warmpool status` and `warmpool events`: what the pool looks like, and what happened."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pool.cli.app import new_app, settings_of
from pool.cli.printing import JsonOption, as_json, table
from pool.clock import SystemClock
from pool.contract import instant
from pool.ids import WorkerId

if TYPE_CHECKING:
    from pool.store.journal import Entry

status_app = new_app("What the pool looks like now.")
events_app = new_app("What happened to workers, from the journal.")


@status_app.command()
def status(
    context: typer.Context,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again every second, until Ctrl-C.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """One screen: workers by profile and state, orgs, who waits, and how old the last success of each pass is.

    Exit code 1 if a pass is dark or a profile can not start workers, so that scripts can ask.
    """
    from pool import reporting, wiring

    settings = settings_of(context)
    store = wiring.open_store(settings)
    clock, never = SystemClock(), threading.Event()
    try:
        while True:
            seen = reporting.status(store, settings)
            if json:
                as_json(seen)
            else:
                print(("\033[H\033[2J" if watch and sys.stdout.isatty() else "") + screen(seen), flush=True)
            if not watch:
                break
            clock.wait(never, 1.0)
    finally:
        store.close()
    raise typer.Exit(1 if worries(seen) else 0)


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
    """Every move of every worker: when, from where to where, whose it was, who moved it and why."""
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
                new = [e for e in journal.since(tx, seen) if worker in (None, e.worker_id)]
            _print(new, json=json)
            seen = new[-1].id if new else seen
    finally:
        store.close()
    if worker and not found:
        raise typer.Exit(1)


def worries(seen: dict[str, Any]) -> list[str]:
    """What an operator should look at, worst first."""
    found = ["beat is dark: no pass has been tried lately"] if seen["beat_dark"] else []
    found += [
        f"pass {name} is dark" for name, p in seen["passes"].items() if p["dark"] and not seen["beat_dark"]
    ]
    found += [f"profile {name}: {p['trouble']}" for name, p in seen["profiles"].items() if p["trouble_until"]]
    found += [s["detail"] for s in seen["suspects"] if s["detail"].endswith(": held")]
    return found + (["the pool is paused"] if seen["pool"]["paused"] else [])


def screen(seen: dict[str, Any]) -> str:
    """The status as people read it."""
    pool = seen["pool"]
    cap = f" of at most {pool['max_workers']}" if pool["max_workers"] else ""
    parts = [f"warmpool  {pool['live']} live workers{cap}  at {seen['at']}"]
    parts += [f"! {worry}" for worry in worries(seen)]
    states = list(next(iter(seen["profiles"].values()))["states"]) if seen["profiles"] else []
    rows = [[name, p["target"], *p["states"].values()] for name, p in seen["profiles"].items()]
    parts += ["", table(["PROFILE", "TARGET", *(s.upper() for s in states)], rows)]
    if seen["orgs"]:
        orgs = [[o, v["in_use"], v["cap"] or "-", v["weight"]] for o, v in seen["orgs"].items()]
        parts += ["", table(["ORG", "IN USE", "CAP", "WEIGHT"], orgs)]
    if seen["waiting"]:
        lines = [[w["org"], w["profile"], w["waiting"], w["since"]] for w in seen["waiting"]]
        parts += ["", table(["WAITING ORG", "PROFILE", "REQUESTS", "OLDEST SINCE"], lines)]
    return "\n".join([*parts, "", pass_table(seen)])


def pass_table(seen: dict[str, Any]) -> str:
    """The passes with their age, holder and last result."""
    rows = []
    for name, p in seen["passes"].items():
        age = "never" if p["age_s"] is None else f"{p['age_s']:.1f} s ago"
        mark = "paused" if p["paused"] else "DARK" if p["dark"] else p["outcome"]
        rows.append([name, f"{p['period_s']:g} s", age, mark, p["holder"], p["detail"]])
    return table(["PASS", "PERIOD", "LAST SUCCESS", "RESULT", "HOLDER", "DID"], rows)


def _print(entries: list[Entry], *, json: bool) -> None:
    from pool import reporting

    for e in entries:
        if json:
            import json as jsonlib

            print(jsonlib.dumps(reporting.entry(e), default=str), flush=True)
        else:
            whose = f" {e.org}" if e.org else ""
            moved = f"{e.from_state or '-'} -> {e.to_state}"
            print(
                f"{instant(e.at)}  {e.worker_id}  {moved:<24} epoch {e.epoch}{whose}  {e.why}  [{e.who}]",
                flush=True,
            )
