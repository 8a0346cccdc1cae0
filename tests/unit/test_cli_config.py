"""The root command, and `warmpool config`."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
import typer

from pool.core.errors import PoolError
from pool.ops.cli import app as root


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without a configuration, and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARMPOOL_CONFIG", raising=False)
    return tmp_path


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        root.main(argv)
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


@pytest.mark.parametrize("name", root.COMMANDS)
def test_every_command_of_the_table_exists_and_has_a_help_text(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, "--help") == 0
    assert f"Usage: warmpool {name}" in capsys.readouterr().out
    assert run("--help") == 0
    assert f"\n  {name} " in capsys.readouterr().out


def test_a_misspelled_command_is_a_usage_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("confg") == 2
    assert capsys.readouterr().err.startswith("warmpool: no such command: confg; did you mean config?\n")
    assert run("--verbose") == 2
    assert capsys.readouterr().err.startswith("warmpool: no such option: --verbose")
    assert run("--config") == 2
    assert "--config needs a value: the path of a configuration file" in capsys.readouterr().err
    assert run("config", "chekc") == 2
    assert "chekc" in capsys.readouterr().err


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command `probe` that does what its argument names."""
    module = types.ModuleType("probe_command")
    app = root.new_app("Probe.")

    @app.command()
    def do(context: typer.Context, what: str = "") -> None:
        """Run it."""
        if what == "interrupt":
            raise KeyboardInterrupt
        if what == "fail":
            raise PoolError("it\nfailed")
        if what == "exit":
            raise typer.Exit(5)
        if what == "disk":
            raise OSError(28, "No space left on device")
        print(f"config={root.config_path(context)}")

    module.__dict__["app"] = app
    monkeypatch.setitem(sys.modules, "probe_command", module)
    monkeypatch.setitem(root.COMMANDS, "probe", ("probe_command:app", "probe"))


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("interrupt", 130, ""),
        ("fail", 1, "warmpool: it failed\n"),
        ("exit", 5, ""),
        ("disk", 1, "warmpool: [Errno 28] No space left on device\n"),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_at_most_one_line(
    what: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("probe", "--what", what) == code
    assert capsys.readouterr().err == said


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize(
    "argv",
    [
        ["--config", "a.toml", "probe"],
        ["probe", "--config=a.toml"],
        ["probe", "--config", "a.toml", "--what", ""],
    ],
)
def test_the_configuration_may_be_named_before_or_after_the_command(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == 0
    assert capsys.readouterr().out == "config=a.toml\n"


def test_arguments_after_a_double_dash_belong_to_the_command() -> None:
    assert root.HelpLine.parse(["probe", "--", "--config", "x"]) == root.HelpLine(
        config=None, words=("probe", "--", "--config", "x")
    )


def test_a_command_whose_library_is_missing_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lacking_command.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(root.COMMANDS, "lacking", ("lacking_command:app", "lacking"))
    assert run("lacking") == 1
    assert (
        "needs the Python package no_such_library, which is not installed: pip install 'warmpool-server[embedded]'"
        in capsys.readouterr().err
    )


def test_an_interrupt_during_the_import_of_a_command_exits_like_any_interrupt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow_command.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(root.COMMANDS, "slow", ("slow_command:app", "slow"))
    assert run("slow") == 130
    assert capsys.readouterr().err == ""


def test_config_check_succeeds_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "check") == 0
    assert capsys.readouterr().out == "defaults (no warmpool.toml here): no problems, 0 warnings\n"


def test_config_check_lists_every_problem_and_exits_2(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (nowhere / "warmpool.toml").write_text(
        "[pool]\nmax_workers = -1\nevents = 3\n[profiles.x.activation_payload]\na = '{values.k}'\n"
    )
    assert run("config", "check") == 2
    said = capsys.readouterr()
    assert [line.partition(" is ")[0] for line in said.err.splitlines()] == [
        "warmpool: warmpool.toml:2: pool.max_workers",
        "warmpool: warmpool.toml:3: pool.events",
    ]
    assert "warmpool.toml:4: warning: profiles.x.activation_payload contains {values.k}" in said.out


def test_config_check_succeeds_with_only_warnings(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = nowhere / "w.toml"
    file.write_text("[profiles.x]\nactivation_payload = { a = '{values.k}' }\n")
    assert run("config", "check", "--config", str(file)) == 0
    assert capsys.readouterr().out.endswith(f"{file}: no problems, 1 warnings\n")


def test_config_show_prints_the_effective_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARMPOOL_MAX_WORKERS", "9")
    monkeypatch.setenv("WARMPOOL_MASTER_KEY", "a-secret-of-thirty-two-characters-or-more")
    assert run("config", "show") == 0
    out = capsys.readouterr().out
    assert "max_workers = 9" in out
    assert 'master_key = "***"' in out
    assert run("config", "show", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["pool"]["max_workers"] == 9
    assert data["pool"]["master_key"] == "***"
    assert data["orgs"] == {"auto_create": True}


def test_the_example_file_passes_config_check(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "example") == 0
    (nowhere / "warmpool.toml").write_text(capsys.readouterr().out)
    assert run("config", "check") == 0
    assert capsys.readouterr().out == "warmpool.toml: no problems, 0 warnings\n"
