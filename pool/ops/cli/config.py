"""`warmpool config`: check the configuration, show the effective settings, print an example."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pool import config
from pool.config.example import as_toml, example, in_force
from pool.core import connections
from pool.core.errors import ConfigInvalid
from pool.ops.cli.app import config_path, new_app, settings_of

app = new_app("Check the configuration, show the effective settings, print an example.")


@app.command("check")
def check(context: typer.Context) -> None:
    """Check the configuration file and the environment, and print all errors and warnings.

    Exit code: 2 if there is an error.
    """
    path = config_path(context)
    report = config.examine(path)
    for warning in report.warnings:
        print(warning)
    if report.problems:
        raise ConfigInvalid(report.problems)
    print(f"{config.source_name(path)}: no problems, {len(report.warnings)} warnings")


@app.command("show")
def show(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of TOML.")] = False,
) -> None:
    """Print the effective settings, with defaults and without secrets."""
    settings = settings_of(context)
    data, budget = in_force(settings), connections.most(settings.pool)
    if as_json:
        print(json.dumps({**data, "connections": budget}, indent=2))
        return
    print("\n".join(as_toml(data)).strip())
    each = ", ".join(f"{role} {most}" for role, most in budget.items())
    print(f"\n# Database connections of one process, at most: {each}")


@app.command("example")
def print_example() -> None:
    """Print an example configuration file with every setting, its description and its default."""
    print(example(), end="")
