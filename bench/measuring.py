"""Measure in comparison with a peer: every figure is a ratio within one run, so that a slow or busy
machine affects both sides. The subjects take turns call by call; a ratio is computed per round, and
a goal applies to its median over the rounds.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

QUANTILES = (10, 50, 90, 99)


class Subject(Protocol):
    """Something that is measured."""

    def once(self) -> None:
        """Run the timed part once."""

    def after(self) -> None:
        """Reset what each call leaves; not timed."""

    def between(self) -> None:
        """Prepare the next round; not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured."""

    rounds: int
    calls: int
    warm_up: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A ratio, its spread over the rounds, and its goal, if any. `gate` is the limit of a quick run
    on a shared machine: wider than the goal, so that only a real regression fails.
    """

    name: str
    ratio: float
    lowest: float
    highest: float
    most: float | None = None
    least: float | None = None
    gate: float | None = None
    rounds: Sequence[float] = ()

    @property
    def missed(self) -> bool:
        """A figure that is not a number meets no goal."""
        too_much = self.most is not None and not self.ratio <= self.most
        too_little = self.least is not None and not self.ratio >= self.least
        return too_much or too_little

    @property
    def shut(self) -> bool:
        """Return whether it is beyond its gate; without a gate, beyond twice its goal."""
        if self.gate is not None:
            return not self.ratio <= self.gate
        too_much = self.most is not None and not self.ratio <= 2 * self.most
        return too_much or (self.least is not None and not 2 * self.ratio >= self.least)

    @property
    def verdict(self) -> str:
        goals = [
            f"{sign} {goal:g}" for sign, goal in (("<=", self.most), (">=", self.least)) if goal is not None
        ]
        if self.gate is not None:
            goals.append(f"gate {self.gate:g}")
        return f"{'MISSED' if self.missed else 'met'} ({', '.join(goals)})" if goals else ""

    def quantiles(self) -> dict[int, float]:
        """Over the rounds."""
        return {q: percentile(self.rounds or (self.ratio,), q) for q in QUANTILES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of every call, by subject and round."""

    rounds: Mapping[str, Sequence[Sequence[float]]]

    def ratio(
        self,
        name: str,
        of: str,
        to: str,
        *,
        q: float = 50,
        most: float | None = None,
        gate: float | None = None,
    ) -> Figure:
        """Return the median (or another quantile) of one subject relative to that of another, round
        by round.
        """
        pairs = zip(self.rounds[of], self.rounds[to], strict=True)
        ratios = [percentile(a, q) / percentile(b, q) for a, b in pairs]
        middle = statistics.median(ratios)
        ends = min(ratios), max(ratios)
        return Figure(
            name=name, ratio=middle, lowest=ends[0], highest=ends[1], most=most, gate=gate, rounds=ratios
        )

    def rate(self, name: str, of: str, to: str, *, least: float | None = None) -> Figure:
        """Return calls per second of one subject relative to another, round by round: the inverse
        ratio of the medians.
        """
        pairs = zip(self.rounds[of], self.rounds[to], strict=True)
        ratios = [percentile(b, 50) / percentile(a, 50) for a, b in pairs]
        middle = statistics.median(ratios)
        return Figure(
            name=name, ratio=middle, lowest=min(ratios), highest=max(ratios), least=least, rounds=ratios
        )

    def quantiles(self, name: str) -> dict[int, float]:
        """Over all rounds, in seconds."""
        every = [seconds for calls in self.rounds[name] for seconds in calls]
        return {q: percentile(every, q) for q in QUANTILES}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """The results of one bench."""

    bench: str
    figures: Sequence[Figure]
    measured: Measured

    @property
    def missed(self) -> bool:
        return any(f.missed for f in self.figures)

    @property
    def shut(self) -> bool:
        return any(f.shut for f in self.figures)

    def as_dict(self) -> dict[str, object]:
        figures = [
            {
                "name": f.name,
                "ratio": f.ratio,
                "lowest": f.lowest,
                "highest": f.highest,
                **{f"p{q}": ratio for q, ratio in f.quantiles().items()},
                "most": f.most,
                "least": f.least,
                "gate": f.gate,
            }
            for f in self.figures
        ]
        scale = {
            name: {f"p{q}_ms": s * 1000 for q, s in self.measured.quantiles(name).items()}
            for name in self.measured.rounds
        }
        return {"bench": self.bench, "missed": self.missed, "figures": figures, "scale": scale}


def percentile(values: Sequence[float], q: float) -> float:
    """Interpolate linearly between the two nearest values."""
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def count(name: str, counted: float, against: float, *, most: float | None = None) -> Figure:
    """A ratio of two counts, which has no spread."""
    ratio = counted / against
    return Figure(name=name, ratio=ratio, lowest=ratio, highest=ratio, most=most)


def interleaved(subjects: Mapping[str, Subject], effort: Effort) -> Measured:
    """Run all subjects in turn, in a new order each time so that none always follows the same one.
    The warm-up is a round that is dropped: plans, caches and connections are created in it.
    """
    order, shuffled = list(subjects), random.Random(1)
    kept: dict[str, list[list[float]]] = {name: [] for name in subjects}
    for number in range(effort.rounds + 1):
        calls: dict[str, list[float]] = {name: [] for name in subjects}
        for _ in range(effort.calls if number else effort.warm_up):
            shuffled.shuffle(order)
            for name in order:
                calls[name].append(_timed(subjects[name]))
        for name, subject in subjects.items():
            subject.between()
            if number:
                kept[name].append(calls[name])
    return Measured(rounds=kept)


def lines(report: BenchReport) -> list[str]:
    """Return the report as two small tables: ratios over the rounds, then absolute times for scale."""
    width = max(len(n) for n in (*report.measured.rounds, *(f.name for f in report.figures)))
    head = "".join(f"{f'p{q}':>8}" for q in QUANTILES)
    found = [f"{report.bench}", "", f"  {'ratio, over the rounds':<{width}} {head}   goal"]
    for f in report.figures:
        cells = "".join(f"{ratio:8.2f}" for ratio in f.quantiles().values())
        found.append(f"  {f.name:<{width}} {cells}   {f.verdict}".rstrip())
    found += ["", f"  {'ms a call, for scale':<{width}} {head}"]
    for name in report.measured.rounds:
        cells = "".join(f"{s * 1000:8.2f}" for s in report.measured.quantiles(name).values())
        found.append(f"  {name:<{width}} {cells}")
    return found


def _timed(subject: Subject) -> float:
    begun = perf_counter()
    subject.once()
    taken = perf_counter() - begun
    subject.after()
    return taken
