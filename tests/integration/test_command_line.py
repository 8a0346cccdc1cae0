"""The command as a process: what it imports, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HEAVY = (
    "sqlalchemy",
    "celery",
    "kombu",
    "rich",
    "typer",
    "click",
    "kubernetes",
    "redis",
    "structlog",
    "pydantic",
)


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMPOOL_CONFIG", raising=False)


def imported_by(*argv: str) -> set[str]:
    """Return the modules that a command line imports, as reported by the interpreter."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pool.ops.cli", *argv],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }


@pytest.mark.parametrize("argv", [["--help"], [], ["--version"]])
def test_help_imports_no_large_library(argv: list[str]) -> None:
    imported = imported_by(*argv)
    assert "pool.ops.cli.app" in imported
    assert not {name for name in imported if name.partition(".")[0] in HEAVY}
    assert not {
        name
        for name in imported
        if name.startswith("pool.")
        and not name.startswith(("pool.ops.cli", "pool.core.errors", "pool.core.literals"))
        and name not in {"pool.ops", "pool.core"}
    }


def test_config_commands_import_no_client_library() -> None:
    imported = imported_by("config", "show")
    assert "pool.config" in imported
    assert not imported & {"sqlalchemy", "celery", "rich", "kubernetes", "redis", "structlog"}


def test_a_closed_pipe_leaves_no_traceback() -> None:
    done = subprocess.run(
        f"{sys.executable} -m pool.ops.cli --help | true",
        shell=True,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""


def test_a_module_named_tasks_in_the_working_directory_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text('import sys; sys.exit("not the tasks of the pool")')
    done = subprocess.run(
        [sys.executable, "-m", "pool.ops.cli", "worker", "acquire"],
        cwd=tmp_path,
        env=os.environ
        | {
            "PYTHONPATH": str(Path.cwd()),
            "WARMPOOL_BROKER_URL": "redis://127.0.0.1:1",
            "WARMPOOL_DATABASE_URL": "postgresql://127.0.0.1:1/none",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "warmpool: database: connection failed" in done.stderr, "it got as far as its first check"
