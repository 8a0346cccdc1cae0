"""The hooks of `.pre-commit-config.yaml` are commands that `make venv` installs."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
REPOSITORIES: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
HOOKS: dict[str, dict[str, Any]] = {hook["id"]: hook for made in REPOSITORIES for hook in made["hooks"]}


def test_no_hook_is_downloaded() -> None:
    assert {made["repo"] for made in REPOSITORIES} == {"local"}
    assert {hook["language"] for hook in HOOKS.values()} == {"system"}


def test_hooks_check_what_make_lint_checks() -> None:
    assert HOOKS.keys() >= {"ruff-check", "ruff-format", "mypy", "import-linter", "yaml", "whitespace"}
    linted = (ROOT / "Makefile").read_text()
    for id_ in ("ruff-check", "ruff-format", "mypy", "import-linter"):
        command = " ".join(shlex.split(HOOKS[id_]["entry"])[:2]).replace(".venv/bin", "$(BIN)")
        assert command in linted, id_


@pytest.mark.parametrize("id_", HOOKS)
def test_command_of_a_hook_exists(id_: str) -> None:
    command = shlex.split(HOOKS[id_]["entry"])[0]
    # The tests may run in an environment at another path.
    here = Path(sys.executable).parent
    found = here / Path(command).name if command.startswith(".venv/bin/") else shutil.which(command)
    assert found
    assert Path(found).is_file()
