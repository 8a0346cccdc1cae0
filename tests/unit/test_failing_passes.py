"""A process gives up only when none of its passes can run."""

from __future__ import annotations

from pool.core.periods import PERIODS_S
from pool.passes.failing import FREQUENT, FailingPasses

LIMIT = 3


def none_paused() -> set[str]:
    return set()


def failing(*names: str, times: int = LIMIT) -> FailingPasses:
    """Return passes that have raised these numbers of times, in turn."""
    made = FailingPasses(LIMIT)
    for _ in range(times):
        for name in names:
            made.raised(name, f"{name} is broken")
    return made


def test_frequent_passes_are_all_but_the_hourly_one() -> None:
    assert set(PERIODS_S) - FREQUENT == {"collect_garbage"}


def test_one_failing_pass_never_ends_the_process() -> None:
    assert not failing("guard_disruption", times=1000).none_can_run(none_paused)


def test_all_but_one_failing_do_not_end_the_process() -> None:
    for able in FREQUENT:
        passes = failing(*(FREQUENT - {able}), times=100)
        assert not passes.none_can_run(none_paused), able


def test_every_pass_failing_ends_the_process_and_each_cause_is_named() -> None:
    assert failing(*FREQUENT).none_can_run(none_paused) == {name: f"{name} is broken" for name in FREQUENT}


def test_failures_below_the_limit_do_not_end_the_process() -> None:
    assert not failing(*FREQUENT, times=LIMIT - 1).none_can_run(none_paused)


def test_success_of_any_pass_starts_the_count_again() -> None:
    for able in PERIODS_S:
        passes = failing(*FREQUENT)
        passes.succeeded(able)
        assert not passes.none_can_run(none_paused), able
        for name in FREQUENT:
            passes.raised(name, "again")
        assert not passes.none_can_run(none_paused), able


def test_paused_pass_is_not_waited_for() -> None:
    passes = failing(*(FREQUENT - {"reap"}))
    assert not passes.none_can_run(none_paused)
    assert passes.none_can_run(lambda: {"reap"})


def test_pass_is_reported_once_when_it_reaches_the_limit() -> None:
    passes, reported = FailingPasses(LIMIT), []
    for run in range(1, 10):
        assert passes.raised("reap", "broken") == run
        if passes.keeps_raising("reap"):
            reported.append(run)
    assert reported == [LIMIT]
    passes.succeeded("reap")
    assert passes.raised("reap", "broken") == 1
