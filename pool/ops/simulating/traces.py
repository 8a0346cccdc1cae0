"""Demand traces: time, org, profile and hold time of each request. Read from CSV, or generated:
steady (Poisson), in bursts, or as a daily wave."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pool.core.errors import PoolError

COLUMNS = ("time", "org", "profile", "hold_s")
_DAY_S = 86_400.0


class TraceInvalid(PoolError):
    """A trace has an invalid line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests ordered by time, in seconds from the start. Stored in columns, so that a million rows need
    little memory."""

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
        """Return a trace from rows in any order."""
        ordered = sorted(rows)
        start = 0.0 if not ordered or ordered[0][0] >= 0 else ordered[0][0]
        return cls(
            at_s=[r[0] - start for r in ordered],
            org=[r[1] for r in ordered],
            profile=[r[2] for r in ordered],
            hold_s=[r[3] for r in ordered],
        )


def read(lines: Iterable[str]) -> Trace:
    """Read a trace from CSV with the header `time,org,profile,hold_s`.

    Times are seconds, or ISO 8601 timestamps; then the first one becomes zero.
    """
    reader = csv.DictReader(lines)
    missing = [c for c in ("time", "hold_s") if c not in (reader.fieldnames or [])]
    if missing:
        raise TraceInvalid(
            f"line 1: the header lacks {', '.join(missing)}; it must have the columns {', '.join(COLUMNS)} "
            "(org and profile are optional)"
        )
    rows = [_row(row, reader.line_num) for row in reader]
    if rows and rows[0][0] > 1e8:  # timestamps: make them relative to the first
        first = min(r[0] for r in rows)
        rows = [(at - first, org, profile, hold) for at, org, profile, hold in rows]
    return Trace.of(rows)


def _row(row: dict[str, str | None], line: int) -> tuple[float, str, str, float]:
    at = _instant(row.get("time") or "", line)
    try:
        hold = float(row.get("hold_s") or "")
    except ValueError:
        raise TraceInvalid(
            f"line {line}: hold_s is {row.get('hold_s')!r}; it must be a number of seconds"
        ) from None
    if not (math.isfinite(at) and math.isfinite(hold) and hold >= 0):
        raise TraceInvalid(
            f"line {line}: time is {at} and hold_s is {hold}; both must be finite, and hold_s must "
            "be 0 or more"
        )
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
            f"line {line}: time is {text!r}; it must be a number of seconds, or a timestamp like "
            "2026-11-16T03:41:29Z"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The callers in a generated trace: the first org sends most requests, each next org fewer; hold times
    are exponential."""

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
    """Return steady demand: independent requests, on average `per_s` per second."""
    dice = random.Random(crowd.seed)  # noqa: S311 - not for secrets
    return crowd.asks_at(_arrivals(dice, lambda _: per_s, per_s, span_s), dice)


def bursts(crowd: Crowd, *, size: int, every_s: float, span_s: float) -> Trace:
    """Return bursts: `size` requests within one second, every `every_s` seconds."""
    dice = random.Random(crowd.seed)  # noqa: S311
    starts = [n * every_s for n in range(math.ceil(span_s / every_s))]
    return crowd.asks_at(sorted(start + dice.random() for start in starts for _ in range(size)), dice)


def diurnal(crowd: Crowd, *, peak_per_s: float, span_s: float) -> Trace:
    """Return a daily wave that starts at midnight: a tenth of the peak at midnight, the peak at noon."""
    dice = random.Random(crowd.seed)  # noqa: S311

    def per_s(at: float) -> float:
        return peak_per_s * (0.55 - 0.45 * math.cos(2 * math.pi * at / _DAY_S))

    return crowd.asks_at(_arrivals(dice, per_s, peak_per_s, span_s), dice)


def _arrivals(
    dice: random.Random, per_s: Callable[[float], float], most: float, span_s: float
) -> Iterator[float]:
    """Yield a Poisson process by thinning: candidates at the highest rate, each kept with probability rate /
    highest rate."""
    at = 0.0
    while most > 0:
        at += dice.expovariate(most)
        if at > span_s:
            return
        if dice.random() * most <= per_s(at):
            yield at
