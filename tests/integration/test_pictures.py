"""Code that draws pictures: `warmpool simulate --plot`, and the page of measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import documenting
from bench.measuring import BenchReport, Figure, Measured
from pool.ops.cli import app as cli


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["simulate", *words])
    return int(ended.value.code or 0)


def test_a_picture_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "day.png"
    assert run("--burst", "5", "--hours", "0.5", "--plot", str(file), "--json") == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert run("--burst", "5", "--hours", "0.1", "--plot", str(tmp_path / "no" / "day.png")) == 1
    assert "cannot write the plot" in capsys.readouterr().err


def test_tables_are_written_between_their_marks_and_nothing_else_is_touched(tmp_path: Path) -> None:
    marked = "before\n<!-- measured: some-bench -->\nold\n<!-- end: some-bench -->\nafter\n"
    (tmp_path / "img").mkdir()
    (tmp_path / "performance.md").write_text(marked)
    figure = Figure(name="f", ratio=1.3, lowest=1.3, highest=1.3, most=1.2, gate=None)
    measured = Measured(rounds={"a": [[0.001, 0.002]]})
    documenting.write([BenchReport(bench="some-bench", figures=(figure,), measured=measured)], tmp_path)
    text = (tmp_path / "performance.md").read_text()
    assert text.startswith("before\n<!-- measured: some-bench -->\n")
    assert text.endswith("\n<!-- end: some-bench -->\nafter\n")
    assert "| f | 1.30 | 1.30 | 1.30 | 1.30 | MISSED (<= 1.2) |" in text
    assert "old" not in text
    assert json.loads((tmp_path / "performance.json").read_text())["some-bench"]["missed"] is True
    assert (tmp_path / "img" / "some-bench.png").stat().st_size > 1000
