"""Results of a simulation: hits, waits, pods and the cost of idle workers."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pool.core.settings import Profile

_QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The pool at one moment."""

    at: float
    busy: int
    idle: int
    parked: int
    spawning: int
    waiting: int
    live: int


def _seconds() -> defaultdict[str, float]:
    return defaultdict(float)


@dataclass(slots=True)
class Tally:
    """Counters of a running simulation; seconds are by profile."""

    sources: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    waits_s: array[float] = field(default_factory=lambda: array("d"))
    spawned: int = 0
    peak_live: int = 0
    starting_s: defaultdict[str, float] = field(default_factory=_seconds)
    warm_s: defaultdict[str, float] = field(default_factory=_seconds)
    parked_s: defaultdict[str, float] = field(default_factory=_seconds)
    overdue_s: defaultdict[str, float] = field(default_factory=_seconds)
    busy_s: defaultdict[str, float] = field(default_factory=_seconds)
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOutcome:
    """The result of one simulation."""

    label: str
    requests: int
    hits: int
    waited: int
    refused: Mapping[str, int]
    sources: Mapping[str, int]
    wait_s: Mapping[str, float]
    pods: int
    peak_pods: int
    span_s: float
    # vCPU-hours of workers without a claim, by cause; busy workers are in `busy_vcpu_h`.
    idle_vcpu_h: Mapping[str, float]
    idle_gib_h: Mapping[str, float]
    busy_vcpu_h: float
    samples: tuple[Sample, ...]

    @property
    def hit_rate(self) -> float:
        """Return the share of requests that got a worker without waiting for one."""
        return self.hits / self.requests if self.requests else 1.0

    @property
    def idle_share(self) -> float:
        """Return the share of vCPU time of workers without a claim."""
        idle = sum(self.idle_vcpu_h.values())
        return idle / (idle + self.busy_vcpu_h) if idle + self.busy_vcpu_h else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        return {
            "label": self.label,
            "requests": self.requests,
            "hits": self.hits,
            "hit_rate": self.hit_rate,
            "waited": self.waited,
            "refused": dict(self.refused),
            "sources": dict(self.sources),
            "wait_s": dict(self.wait_s),
            "pods": self.pods,
            "peak_pods": self.peak_pods,
            "span_s": self.span_s,
            "idle_vcpu_h": dict(self.idle_vcpu_h),
            "idle_gib_h": dict(self.idle_gib_h),
            "busy_vcpu_h": self.busy_vcpu_h,
            "idle_share": self.idle_share,
        }


def judge(
    label: str, tally: Tally, profiles: Mapping[str, Profile], *, hits: int, span_s: float
) -> SimulationOutcome:
    """Return the tally as an outcome."""
    kinds = {
        "starting": tally.starting_s,
        "warm": tally.warm_s,
        "parked": tally.parked_s,
        "overdue": tally.overdue_s,
    }
    refused = dict(tally.refused)
    return SimulationOutcome(
        label=label,
        requests=len(tally.waits_s) + sum(refused.values()),
        hits=hits,
        waited=len(tally.waits_s) - hits,
        refused=refused,
        sources=dict(tally.sources),
        wait_s=_quantiles(tally.waits_s),
        pods=tally.spawned,
        peak_pods=tally.peak_live,
        span_s=span_s,
        idle_vcpu_h={k: _hours(s, profiles, lambda p: p.cpu_millicores / 1000) for k, s in kinds.items()},
        idle_gib_h={k: _hours(s, profiles, lambda p: p.memory_mib / 1024) for k, s in kinds.items()},
        busy_vcpu_h=_hours(tally.busy_s, profiles, lambda p: p.cpu_millicores / 1000),
        samples=tuple(tally.samples),
    )


def _hours(seconds: Mapping[str, float], profiles: Mapping[str, Profile], size: Any) -> float:
    return float(sum(s * size(profiles[name]) for name, s in seconds.items()) / 3600)


def _quantiles(waits_s: array[float]) -> dict[str, float]:
    """Return the quantiles of the waits of requests that got a worker."""
    ordered = sorted(waits_s)
    return {
        f"p{int(q * 100)}": ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0
        for q in _QUANTILES
    }
