"""`warmpool status` and `warmpool events`: the current state of the pool, and its journal."""

from __future__ import annotations

import json as jsonlib
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pool.core.clock import SystemClock
from pool.core.contract import instant
from pool.core.errors import PoolError
from pool.core.ids import WorkerId
from pool.core.records import with_detail
from pool.core.settings import UNBOUNDED
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
    show,
    table,
)
from pool.ops.reporting.problems import is_halted, rollout_text

if TYPE_CHECKING:
    from pool.store.journal import Entry

status_app = new_app("Show the current state of the pool and its problems.")
events_app = new_app("Show the journal: every state change of workers.")


@status_app.command()
def status(
    context: typer.Context,
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    json: JsonOption = False,
) -> None:
    """Show the pool on one screen: problems (worst first), workers by profile and state, waiting
    requests and why they wait, orgs and their caps, passes.

    Exit code: 1 if there is a serious problem (marked `!!`), else 0.
    """
    from pool import wiring
    from pool.ops import reporting

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
    worker: Annotated[str | None, typer.Argument(help="Only the entries of this worker (full id).")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new entries until Ctrl-C.")
    ] = False,
    last: Annotated[
        int, typer.Option("--last", "-n", min=1, help="Number of past entries to print first.")
    ] = 20,
    json: JsonOption = False,
) -> None:
    """Print journal entries: time, worker, old and new state, epoch, org, reason, and the actor.

    Exit code: 1 if the journal has no entry of the given worker.
    """
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
        raise PoolError(
            f"no journal entry for worker {worker!r}: give the full id, as `warmpool get workers` prints it"
        )


def screen(seen: dict[str, Any]) -> str:
    """Return the status as text for the terminal."""
    pool, idling = seen["pool"], seen["idling"]
    cap = f" (max_workers {pool['max_workers']})" if pool["max_workers"] else ""
    cost = f"{idling['workers']} unused ({idling['vcpu']:g} vCPU, {idling['memory_gib']:g} GiB)"
    parts = [f"warmpool  {pool['live']} live workers{cap}, {cost}  at {seen['at']}"]
    parts += [f"{'!!' if w['level'] == 'bad' else '!'} {w['text']}" for w in seen["worries"]]
    parts += [] if seen["worries"] else ["no problems found"]
    parts += [] if pool["max_workers"] else [UNBOUNDED]
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
    """Return the table of passes: period, age of the last success, result, holder, last detail."""
    rows = []
    for name, p in seen["passes"].items():
        age = "never" if p["age_s"] is None else f"{ago(p['age_s'])} ago"
        mark = "paused" if p["paused"] else "DARK" if p["dark"] else p["outcome"]
        rows.append([name, f"{p['period_s']:g} s", age, mark, p["holder"], p["detail"]])
    return table(["PASS", "PERIOD", "LAST SUCCESS", "RESULT", "HOLDER", "DID"], rows)


def _profile_table(seen: dict[str, Any]) -> str:
    states = list(next(iter(seen["profiles"].values()))["states"]) if seen["profiles"] else []
    rows = [[n, p["target"], *p["states"].values(), _headroom(p)] for n, p in seen["profiles"].items()]
    return table(["PROFILE", "TARGET", *(s.upper() for s in states), "HEADROOM"], rows)


def _headroom(profile: dict[str, Any]) -> str:
    running, wanted = profile["headroom"]["running"], profile["headroom"]["wanted"]
    return f"{running}/{wanted}" if wanted else "-"


def _org_table(seen: dict[str, Any]) -> str:
    rows = [[o, v["in_use"], v["cap"] or "-", v["parked"], v["weight"]] for o, v in seen["orgs"].items()]
    shown = table(["ORG", "IN USE", "CAP", "PARKED", "WEIGHT"], rows)
    more = seen["orgs_total"] - len(rows)
    return f"{shown}\nand {more} more: warmpool get orgs" if more > 0 else shown


def _print(entries: list[Entry], *, json: bool) -> None:
    from pool.ops import reporting

    for e in entries:
        if json:
            print(jsonlib.dumps(reporting.entry(e), default=str), flush=True)
        else:
            whose = f" {e.org}" if e.org else ""
            moved = f"{e.from_state or '-'} -> {e.to_state}"
            why = f"{'leaving: ' if e.is_mark else ''}{with_detail(e.reason, e.detail)}"
            show(f"{instant(e.at)}  {e.worker_id}  {moved:<24} epoch {e.epoch}{whose}  {why}  [{e.who}]")
