"""`warmpool doctor`: check the installation for problems, and repair those that are safe to repair."""

from __future__ import annotations

from typing import Annotated

import typer

from pool.ops.cli.app import new_app, settings_of
from pool.ops.cli.printing import JsonOption, Output, OutputOption, chosen, emit

_MARKS = {"ok": "ok", "unchecked": "??", "warn": "! ", "bad": "!!"}

app = new_app("Check the installation for problems, and repair them.")


@app.command()
def doctor(
    context: typer.Context,
    fix: Annotated[bool, typer.Option("--fix", help="Run the repairs that are safe at any time.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Also show checks that found no problem.")] = False,
    output: OutputOption = Output.TABLE,
    json: JsonOption = False,
) -> None:
    """Check the database, Redis, clocks, time budgets, beat and the passes. With the kubernetes
    driver, also check permissions, PriorityClasses, the PodDisruptionBudget for busy workers, and
    how long nodes wait for them.

    Each finding has an id, the evidence and the fix. Checks that could not run are listed.

    Exit codes: 0 no error, 1 an error was found (with --fix: remains), 2 invalid configuration.
    Warnings (!) and checks that did not run (??) do not change the exit code.
    """
    from pool.ops.doctor import Installation, Level, examine

    installation = Installation(settings_of(context))
    try:
        found = examine(installation)
        repaired = [f"{f.id}: {f.repair()}" for f in found if fix and f.repair is not None]
        if repaired:
            found = examine(installation)
    finally:
        installation.close()
    report = {"mended": repaired, "findings": [f.as_dict() for f in found]}

    def text() -> str:
        lines = [f"repaired {repair}" for repair in repaired]
        for f in found:
            if f.level is Level.OK and not every:
                continue
            lines.append(f"{_MARKS[f.level]} {f.id}: {f.evidence}")
            lines += [f"   fix: {f.fix}" + (" (--fix does this)" if f.repair else "")] if f.fix else []
        passed, left = (sum(f.level is level for f in found) for level in (Level.OK, Level.UNCHECKED))
        not_checked = f", {left} not checked" if left else ""
        return "\n".join([*lines, f"{len(found) - left} findings, {passed} ok{not_checked}"])

    emit(report, chosen(output, json=json), text)
    raise typer.Exit(1 if any(f.level is Level.BAD for f in found) else 0)
