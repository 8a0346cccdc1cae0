"""Detect figures that grow. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The first part is the warm-up: caches fill, pools open connections, the first rows are written.
WARM_UP = 0.4
# A trend counts if it changes the figure by more than this share of itself, and by more than its
# slack, over the measured time.
SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One figure over time, after the warm-up."""

    name: str
    first: float
    last: float
    mean: float
    # How much a straight line through all samples rises from the first to the last.
    growth: float
    allowed: float

    @property
    def flat(self) -> bool:
        return self.growth <= self.allowed


Sample = tuple[float, Mapping[str, float]]


def trends(samples: Sequence[Sample], slack: Mapping[str, float]) -> list[Trend]:
    """Return each figure's trend. `slack` is the allowed gain of a kind of figure (the part of its
    name before the first space).
    """
    warm = samples[int(len(samples) * WARM_UP) :]
    names = sorted({name for _, figures in warm for name in figures})
    return [_trend(name, [(t, f[name]) for t, f in warm if name in f], slack) for name in names]


def _trend(name: str, points: Sequence[tuple[float, float]], slack: Mapping[str, float]) -> Trend:
    mean = sum(v for _, v in points) / len(points)
    growth = slope(points) * (points[-1][0] - points[0][0])
    allowed = max(SHARE * mean, slack.get(name.split(" ", maxsplit=1)[0], 0.0))
    return Trend(name=name, first=points[0][1], last=points[-1][1], mean=mean, growth=growth, allowed=allowed)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line; 0 for fewer than two points."""
    n = len(points)
    mean_t, mean_v = sum(t for t, _ in points) / n, sum(v for _, v in points) / n
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    return sum((t - mean_t) * (v - mean_v) for t, v in points) / spread if spread else 0.0
