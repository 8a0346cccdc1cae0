"""`warmpool config`: check the configuration, show what is in force, print an example."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pool import config
from pool.cli.app import config_path, new_app, settings_of
from pool.config.example import as_toml, example, in_force
from pool.errors import ConfigInvalid

app = new_app("Check the configuration, show what is in force, print an example.")


@app.command("check")
def check(context: typer.Context) -> None:
    """Say everything that is wrong with the file and the environment; exit 2 if anything is."""
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
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Print the settings in force, defaults included, secrets left out."""
    data = in_force(settings_of(context))
    print(json.dumps(data, indent=2) if as_json else "\n".join(as_toml(data)).strip())


@app.command("example")
def print_example() -> None:
    """Print a file with every setting, its meaning and its default."""
    print(example(), end="")
