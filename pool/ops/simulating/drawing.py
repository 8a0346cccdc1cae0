"""Output of outcomes: a table with a column each, block charts for the terminal, and a plot if matplotlib is
installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pool.core.errors import PoolError
from pool.ops.simulating.outcome import Sample, SimulationOutcome

_BLOCKS = " ▁▂▃▄▅▆▇█"
_SHOWN: tuple[tuple[str, Callable[[Sample], int]], ...] = (
    ("busy", lambda s: s.busy),
    ("idle", lambda s: s.idle),
    ("parked", lambda s: s.parked),
    ("waiting", lambda s: s.waiting),
)
GOOD_HIT_RATE = 0.99


def rows(outcomes: Sequence[SimulationOutcome]) -> list[list[str]]:
    """Return the table without its header: a row for each value, a column for each outcome."""
    lines: list[tuple[str, Callable[[SimulationOutcome], str]]] = [
        ("requests", lambda o: f"{o.requests:,}"),
        ("hit rate", lambda o: f"{o.hit_rate:.2%}"),
        ("  parked for the org", lambda o: _part(o.sources.get("hot_idle", 0), o.requests)),
        ("waited", lambda o: _part(o.waited, o.requests)),
        ("refused", lambda o: _part(sum(o.refused.values()), o.requests)),
        ("wait p50", lambda o: f"{o.wait_s['p50']:.2f} s"),
        ("wait p95", lambda o: f"{o.wait_s['p95']:.2f} s"),
        ("wait p99", lambda o: f"{o.wait_s['p99']:.2f} s"),
        ("pods started", lambda o: f"{o.pods:,}"),
        ("peak pods", lambda o: f"{o.peak_pods:,}"),
        ("idle vCPU-hours", lambda o: f"{sum(o.idle_vcpu_h.values()):,.1f}"),
        ("  warm", lambda o: f"{o.idle_vcpu_h['warm']:,.1f}"),
        ("  parked", lambda o: f"{o.idle_vcpu_h['parked'] + o.idle_vcpu_h['overdue']:,.1f}"),
        ("  starting", lambda o: f"{o.idle_vcpu_h['starting']:,.1f}"),
        ("idle GiB-hours", lambda o: f"{sum(o.idle_gib_h.values()):,.1f}"),
        ("idle share", lambda o: f"{o.idle_share:.1%}"),
    ]
    reasons = sorted({r for o in outcomes for r in o.refused})
    at = next(i for i, (name, _) in enumerate(lines) if name == "refused") + 1
    lines[at:at] = [(f"  {r}", _refusals(r)) for r in reasons]
    return [[name, *(figure(o) for o in outcomes)] for name, figure in lines]


def advice(outcomes: Sequence[SimulationOutcome]) -> str:
    """Return a sentence with the recommended outcome."""
    good = [o for o in outcomes if o.hit_rate >= GOOD_HIT_RATE]
    if not good:
        best = max(outcomes, key=lambda o: o.hit_rate)
        return (
            f"no setting reaches a hit rate of {GOOD_HIT_RATE:.0%}; the best is {best.label} "
            f"with {best.hit_rate:.2%}"
        )
    cheapest = min(good, key=lambda o: sum(o.idle_vcpu_h.values()))
    cost = sum(cheapest.idle_vcpu_h.values())
    return (
        f"cheapest setting with a hit rate of at least {GOOD_HIT_RATE:.0%}: {cheapest.label} "
        f"({cost:,.1f} idle vCPU-hours)"
    )


def lines(outcome: SimulationOutcome, width: int) -> list[str]:
    """Return block charts over time, one line for each value; each line is scaled to its own maximum, shown
    at its end."""
    drawn = []
    for name, figure in _SHOWN:
        values = _squeezed([figure(s) for s in outcome.samples], width)
        most = max(values, default=0)
        blocks = "".join(_BLOCKS[min(8, -(-8 * v // most))] if most else _BLOCKS[0] for v in values)
        drawn.append(f"  {name:8} {blocks} maximum {most:,}")
    return drawn


def picture(outcomes: Sequence[SimulationOutcome], path: Path) -> None:
    """Write a plot with one strip per outcome; the suffix of `path` decides the format."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as exc:
        raise PoolError(
            "--plot needs matplotlib, which is not installed: pip install 'warmpool-server[plots]'"
        ) from exc
    mpl.use("Agg")
    figure = Figure(figsize=(10, 2.6 * len(outcomes) + 0.6), layout="constrained")
    strips: Any = figure.subplots(len(outcomes), 1, sharex=True, squeeze=False)
    for strip, outcome in zip(strips[:, 0], outcomes, strict=True):
        hours = [s.at / 3600 for s in outcome.samples]
        stacked = [[f(s) for s in outcome.samples] for name, f in _SHOWN if name != "waiting"]
        strip.stackplot(
            hours, *stacked, labels=["busy", "idle", "parked"], colors=["#4c78a8", "#8cd17d", "#f1ce63"]
        )
        strip.plot(hours, [s.waiting for s in outcome.samples], color="#e15759", label="waiting")
        strip.set_title(
            f"{outcome.label}: {outcome.hit_rate:.2%} hits, "
            f"{sum(outcome.idle_vcpu_h.values()):,.0f} idle vCPU-hours",
            fontsize=10,
            loc="left",
        )
        strip.set_ylabel("workers")
        strip.margins(x=0)
    strips[0, 0].legend(loc="upper right", ncols=4, fontsize=8)
    strips[-1, 0].set_xlabel("hours")
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as exc:
        raise PoolError(f"cannot write the plot to {path}: {exc}") from exc


def _part(count: int, of: int) -> str:
    return f"{count:,} ({count / of:.2%})" if of else "0"


def _refusals(reason: str) -> Callable[[SimulationOutcome], str]:
    return lambda o: f"{o.refused.get(reason, 0):,}"


def _squeezed(values: list[int], width: int) -> list[int]:
    """Return at most `width` values: the maximum of each interval, so that no peak is lost."""
    if len(values) <= width:
        return values
    step = len(values) / width
    return [max(values[int(i * step) : max(int(i * step) + 1, int((i + 1) * step))]) for i in range(width)]
