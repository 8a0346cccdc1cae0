"""Demand: when who asks for what and for how long holds it. Read from CSV, or made up: steady (Poisson), in bursts, or by the hour of the day."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pool.errors import PoolError

COLUMNS = ("time", "org", "profile", "hold_s")
_DAY_S = 86_400.0


class TraceInvalid(PoolError):
    """A line of a trace that says nothing we understand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in the order of their times, which count from the first one's beginning. Column by column: a million rows are cheap that way."""

    at_s: Sequence[float]
    org: Sequence[str]
    profile: Sequence[str]
    hold_s: Sequence[float]

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def span_s(self) -> float:
        return self.at_s[-1] if self.at_s else 0.0

    @classmethod
    def of(cls, rows: Iterable[tuple[float, str, str, float]]) -> Trace:
        """From rows in any order."""
        ordered = sorted(rows)
        start = 0.0 if not ordered or ordered[0][0] >= 0 else ordered[0][0]
        return cls(
            at_s=[r[0] - start for r in ordered],
            org=[r[1] for r in ordered],
            profile=[r[2] for r in ordered],
            hold_s=[r[3] for r in ordered],
        )


def read(lines: Iterable[str]) -> Trace:
    """From CSV with the header `time,org,profile,hold_s`. Times are seconds, or instants as ISO 8601 writes them; then the first one is zero."""
    reader = csv.DictReader(lines)
    missing = [c for c in ("time", "hold_s") if c not in (reader.fieldnames or [])]
    if missing:
        raise TraceInvalid(
            f"line 1: the header must name {', '.join(COLUMNS)} (org and profile may be left out); it lacks {', '.join(missing)}"
        )
    rows = [_row(row, reader.line_num) for row in reader]
    if rows and rows[0][0] > 1e8:  # instants: only their distances matter
        first = min(r[0] for r in rows)
        rows = [(at - first, org, profile, hold) for at, org, profile, hold in rows]
    return Trace.of(rows)


def _row(row: dict[str, str | None], line: int) -> tuple[float, str, str, float]:
    at = _instant(row.get("time") or "", line)
    try:
        hold = float(row.get("hold_s") or "")
    except ValueError:
        raise TraceInvalid(f"line {line}: hold_s is {row.get('hold_s')!r}, and takes seconds") from None
    if not (math.isfinite(at) and math.isfinite(hold) and hold >= 0):
        raise TraceInvalid(f"line {line}: time and hold_s take finite numbers, hold_s not less than 0")
    return at, row.get("org") or "default", row.get("profile") or "default", hold


def _instant(text: str, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise TraceInvalid(
            f"line {line}: time is {text!r}, and takes seconds or an instant like 2026-11-16T03:41:29Z"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Who asks in a made-up trace: so many orgs, of which the first asks most (each next one a little less), holding for an exponential time."""

    orgs: int = 10
    profile: str = "default"
    hold_s: float = 60.0
    seed: int = 1

    def asks_at(self, times: Iterable[float], dice: random.Random) -> Trace:
        names = [f"org-{n + 1}" for n in range(self.orgs)]
        shares = [1 / (n + 1) for n in range(self.orgs)]
        at = list(times)
        return Trace(
            at_s=at,
            org=dice.choices(names, shares, k=len(at)),
            profile=[self.profile] * len(at),
            hold_s=[dice.expovariate(1 / self.hold_s) if self.hold_s else 0.0 for _ in at],
        )


def poisson(crowd: Crowd, *, per_s: float, span_s: float) -> Trace:
    """Steady demand: requests come independently, so many a second on average."""
    dice = random.Random(crowd.seed)  # noqa: S311 - not for secrets
    return crowd.asks_at(_arrivals(dice, lambda _: per_s, per_s, span_s), dice)


def bursts(crowd: Crowd, *, size: int, every_s: float, span_s: float) -> Trace:
    """So many requests within a second, again and again."""
    dice = random.Random(crowd.seed)  # noqa: S311
    starts = [n * every_s for n in range(math.ceil(span_s / every_s))]
    return crowd.asks_at(sorted(start + dice.random() for start in starts for _ in range(size)), dice)


def diurnal(crowd: Crowd, *, peak_per_s: float, span_s: float) -> Trace:
    """A day's wave: a tenth of the peak at night, the peak at noon; it begins at midnight."""
    dice = random.Random(crowd.seed)  # noqa: S311

    def per_s(at: float) -> float:
        return peak_per_s * (0.55 - 0.45 * math.cos(2 * math.pi * at / _DAY_S))

    return crowd.asks_at(_arrivals(dice, per_s, peak_per_s, span_s), dice)


def _arrivals(
    dice: random.Random, per_s: Callable[[float], float], most: float, span_s: float
) -> Iterator[float]:
    """A Poisson process by thinning: candidates at the highest rate, kept with the chance of the rate of their moment."""
    at = 0.0
    while most > 0:
        at += dice.expovariate(most)
        if at > span_s:
            return
        if dice.random() * most <= per_s(at):
            yield at
