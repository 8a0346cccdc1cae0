"""`warmpool doctor`: look for what is wrong with the installation, and mend what can be mended."""

from __future__ import annotations

from typing import Annotated

import typer

from pool.cli.app import new_app, settings_of
from pool.cli.printing import JsonOption, Output, OutputOption, chosen, emit

# By level.
_MARKS = {"ok": "ok", "unchecked": "??", "warn": "! ", "bad": "!!"}

app = new_app("Look for what is wrong with the installation, and mend it.")


@app.command()
def doctor(
    context: typer.Context,
    fix: Annotated[bool, typer.Option("--fix", help="Do the repairs that are safe at any time.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Show what is well, too.")] = False,
    output: OutputOption = Output.TABLE,
    json: JsonOption = False,
) -> None:
    """Check the database, Redis, clocks, time budgets, beat and the passes; in a cluster our rights, priorities, the budget for busy workers and
    how long nodes wait. Each finding has an id, the evidence and the fix; what could not be looked at is named.

    Exit codes: 0 nothing is bad, 1 something is (with --fix: still is), 2 the configuration is wrong. Warnings (!) and what was not
    checked (??) do not count.
    """
    from pool.doctor import Level, Patient, examine

    patient = Patient(settings_of(context))
    try:
        found = examine(patient)
        mended = [f"{f.id}: {f.repair()}" for f in found if fix and f.repair is not None]
        if mended:
            found = examine(patient)
    finally:
        patient.close()
    told = {"mended": mended, "findings": [f.as_dict() for f in found]}

    def text() -> str:
        lines = [f"mended {said}" for said in mended]
        for f in found:
            if f.level is Level.OK and not every:
                continue
            lines.append(f"{_MARKS[f.level]} {f.id}: {f.evidence}")
            lines += [f"   {f.fix}" + (" (--fix does it)" if f.repair else "")] if f.fix else []
        well, left = (sum(f.level is level for f in found) for level in (Level.OK, Level.UNCHECKED))
        not_checked = f", {left} not checked" if left else ""
        return "\n".join([*lines, f"{len(found) - left} findings, {well} are well{not_checked}"])

    emit(told, chosen(output, json=json), text)
    raise typer.Exit(1 if any(f.level is Level.BAD for f in found) else 0)
