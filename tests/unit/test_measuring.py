"""Measuring: percentiles, ratios over rounds, and goals that can be missed."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import documenting
from bench.measuring import BenchReport, Effort, Figure, Measured, count, interleaved, lines, percentile


def figure(ratio: float, most: float | None = 1.2, gate: float | None = None) -> Figure:
    return Figure(name="f", ratio=ratio, lowest=ratio, highest=ratio, most=most, gate=gate)


def report(*figures: Figure) -> BenchReport:
    return BenchReport(bench="some-bench", figures=figures, measured=Measured(rounds={"a": [[0.001, 0.002]]}))


class Noted:
    """A subject that records its calls in a shared list."""

    def __init__(self, name: str, diary: list[str]) -> None:
        self.name, self.diary = name, diary

    def once(self) -> None:
        self.diary.append(f"{self.name} once")

    def after(self) -> None:
        self.diary.append(f"{self.name} after")

    def between(self) -> None:
        self.diary.append(f"{self.name} between")


@pytest.mark.parametrize(("q", "expected"), [(0, 1.0), (50, 2.5), (90, 3.7), (100, 4.0)])
def test_percentile_lies_between_the_nearest_values(q: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], q) == pytest.approx(expected)


def test_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.0], 99) == 7.0


def test_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 50)


def test_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # Per round 1.0, 2.0 and 1.1; over all rounds together it would be 11 / 10.
    measured = Measured(rounds={"a": [[10, 10], [20, 20], [11, 11]], "b": [[10, 10], [10, 10], [10, 10]]})
    found = measured.ratio("a to b", "a", "b", most=1.2)
    assert (found.ratio, found.lowest, found.highest) == pytest.approx((1.1, 1.0, 2.0))
    assert found.quantiles() == pytest.approx({10: 1.02, 50: 1.1, 90: 1.82, 99: 1.982})
    assert not found.missed


def test_rate_is_calls_a_second_of_one_to_the_other() -> None:
    # Per round twice, four times and half as fast.
    measured = Measured(rounds={"a": [[1.0], [1.0], [2.0]], "b": [[2.0], [4.0], [1.0]]})
    found = measured.rate("a to b", "a", "b", least=2.1)
    assert (found.ratio, found.lowest, found.highest) == pytest.approx((2.0, 0.5, 4.0))
    assert found.missed
    assert not measured.rate("a to b", "a", "b", least=2.0).missed


def test_rate_far_below_its_goal_fails_a_quick_run() -> None:
    measured = Measured(rounds={"a": [[1.0]], "b": [[1.0]]})
    assert not measured.rate("a to b", "a", "b", least=1.9).shut
    assert measured.rate("a to b", "a", "b", least=2.1).shut


def test_one_disturbed_round_does_not_decide() -> None:
    measured = Measured(rounds={"a": [[1], [1], [90]], "b": [[1], [1], [1]]})
    assert not measured.ratio("a to b", "a", "b", most=1.2).missed


@pytest.mark.parametrize(("ratio", "missed"), [(1.19, False), (1.2, False), (1.21, True), (math.nan, True)])
def test_goal_is_missed_above_its_limit(ratio: float, missed: bool) -> None:
    assert figure(ratio).missed is missed


def test_figure_without_a_goal_is_never_missed() -> None:
    assert not figure(99.0, most=None).missed
    assert figure(99.0, most=None).verdict == ""


def test_counted_ratio_does_not_spread() -> None:
    found = count("round trips", 3, 2, most=1.0)
    assert (found.ratio, found.lowest, found.highest, found.missed) == (1.5, 1.5, 1.5, True)


def test_report_is_missed_if_one_figure_is() -> None:
    assert report(figure(1.0), figure(1.3)).missed
    assert not report(figure(1.0), figure(9.0, most=None)).missed


def test_table_shows_ratio_goal_and_scale() -> None:
    text = "\n".join(lines(report(figure(1.3))))
    assert "1.30" in text
    assert "MISSED (<= 1.2)" in text
    assert "1.50" in text  # the median of 1 and 2 ms


@pytest.mark.parametrize(("ratio", "code"), [(1.0, 0), (1.3, 1)])
def test_command_fails_exactly_if_a_goal_is_missed(
    ratio: float, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    effort = Effort(rounds=1, calls=1, warm_up=0)
    monkeypatch.setattr(command, "BENCHES", {"some-bench": (lambda _: report(figure(ratio)), effort, effort)})
    monkeypatch.setattr("structlog.configure", lambda **_: None)
    assert command.main(["--only", "some-bench"]) == code


@pytest.mark.parametrize(("ratio", "code"), [(1.3, 0), (1.9, 0), (2.1, 1)])
def test_a_quick_run_is_judged_by_its_gates(ratio: float, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    effort = Effort(rounds=1, calls=1, warm_up=0)
    found = report(figure(ratio, gate=2.0), figure(1.0))
    monkeypatch.setattr(command, "BENCHES", {"some-bench": (lambda _: found, effort, effort)})
    monkeypatch.setattr("structlog.configure", lambda **_: None)
    assert command.main(["--quick", "--only", "some-bench"]) == code
    assert report(figure(1.3, gate=2.0)).missed


def test_a_quick_run_without_a_gate_is_judged_by_twice_the_goal() -> None:
    assert not report(figure(1.3)).shut
    assert report(figure(2.5)).shut


def test_a_page_without_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="no marks for some-bench"):
        documenting.replaced("nothing", "some-bench", "")


def test_the_docs_have_marks_for_every_bench() -> None:
    page = (Path(__file__).parents[2] / "docs" / documenting.PAGE).read_text()
    for bench in command.BENCHES:
        documenting.replaced(page, bench, "")


def test_subjects_take_turns_and_the_warm_up_is_cut() -> None:
    diary: list[str] = []
    subjects = {name: Noted(name, diary) for name in "ab"}
    measured = interleaved(subjects, Effort(rounds=2, calls=3, warm_up=4))
    assert {name: [len(calls) for calls in kept] for name, kept in measured.rounds.items()} == {
        "a": [3, 3],
        "b": [3, 3],
    }
    turns = [d[0] for d in diary if d.endswith("once")]
    assert len(turns) == 2 * (4 + 3 + 3)
    assert all({*pair} == {"a", "b"} for pair in zip(turns[::2], turns[1::2], strict=True))
    assert all(b == a.replace("once", "after") for a, b in itertools.pairwise(diary) if "once" in a)
    assert diary.count("a between") == 3
