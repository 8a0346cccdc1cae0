"""The evaluation of the soak test: it finds what grows, and ignores noise."""

from __future__ import annotations

import random

from tests.soak.trend import slope, trends


def _over_time(figure: list[float]) -> list[tuple[float, dict[str, float]]]:
    return [(10.0 * i, {"MiB acquire": v}) for i, v in enumerate(figure)]


def test_a_leak_is_found_and_noise_is_not() -> None:
    chance = random.Random(1)
    noise = [100 + chance.uniform(-3, 3) for _ in range(180)]
    [flat] = trends(_over_time(noise), {"MiB": 6.0})
    assert flat.flat
    [leak] = trends(_over_time([v + 0.3 * i for i, v in enumerate(noise)]), {"MiB": 6.0})
    assert not leak.flat
    assert 0.25 * 108 < leak.growth < 0.35 * 108


def test_warming_up_is_not_a_leak() -> None:
    [trend] = trends(_over_time([min(i, 60) * 2.0 for i in range(180)]), {})
    assert (trend.flat, trend.growth) == (True, 0.0)


def test_a_shrinking_figure_is_no_leak() -> None:
    [trend] = trends(_over_time([100.0 - i * 0.5 for i in range(100)]), {})
    assert trend.flat


def test_the_slope_is_that_of_the_least_squares_line() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == 2
    assert slope([(0, 1)]) == 0
