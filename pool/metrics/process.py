"""Metrics that a process counts about itself. Each process has its own registry. Counters restart
at zero, which `rate()` handles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from pool.core.names import ACQUIRE, PASSES
from pool.core.periods import PERIODS_S
from pool.core.signing import SignatureProblem
from pool.core.states import ClaimEnd, MoveReason, Reason, Source, State
from pool.metrics.catalog import CATALOG, PREFIX, Item, Metric, MetricKind, Origin

# Refusals because no worker was free. A request that waits is also a miss.
_MISSES = frozenset({Reason.NO_WARM_WORKER, Reason.POOL_CAP, Reason.ORG_CAP})
WAITED = "waited"
UNKNOWN = "unknown"
# Threads that a process may have. Their counters start at 0, so that the first restart is an increase.
THREADS = (
    "lane",
    "timers",
    "outbox",
    "observer",
    "fallback",
    "pod cache",
    "preflight",
    "liveness",
    "metrics",
)


class Metrics:
    """The metrics of this process, one attribute for each metric of origin `PROCESS` in the catalog."""

    acquires: Counter
    misses: Counter
    acquire_seconds: Histogram
    acquire_phase_seconds: Histogram
    claims_ended: Counter
    park_failures: Counter
    requests_unproven: Counter
    messages_refused: Counter
    moves: Counter
    spawn_seconds: Histogram
    spawn_failures: Counter
    spawns_in_flight: Gauge
    spawn_limit: Gauge
    activation_failures: Counter
    pass_runs: Counter
    pass_seconds: Histogram
    pass_actions: Counter
    pass_overflow: Counter
    pass_lock_held: Gauge
    pass_lock_lost: Counter
    fallback_runs: Counter
    fallback_active: Gauge
    beat_ticks: Counter
    thread_restarts: Counter
    items_left_out: Counter
    tasks: Counter
    api_calls: Counter
    build_info: Gauge

    def __init__(self, *, role: str = "", driver: str = "", profiles: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        for metric in CATALOG.values():
            if metric.origin is Origin.PROCESS:
                setattr(self, metric.name, _made(metric, self.registry))
        ProcessCollector(registry=self.registry)
        self._profiles = frozenset(profiles)
        self._found: dict[tuple[str, ...], Any] = {}
        self._seed(role)
        if role:
            self.build_info.labels(_version(), role, driver).set(1)

    def answered(self, profile: str, answer: Any, seconds: float) -> None:
        """Count the answer to an acquire: a grant with its source, or a refusal with its reason."""
        source, reason = getattr(answer, "source", None), getattr(answer, "reason", None)
        outcome = "refused" if source is None else "granted"
        self._of("acquires", self._profile(profile), outcome, str(reason or "")).inc()
        self._of("acquire_seconds", outcome, str(source or "none")).observe(max(0.0, seconds))
        if reason in _MISSES:
            self.misses.labels(self._profile(profile), str(reason)).inc()

    def waits(self, profile: str) -> None:
        """Count an acquire that found no free worker and waits."""
        self.misses.labels(self._profile(profile), WAITED).inc()

    def moved(self, frm: State, to: State, reason: MoveReason) -> None:
        self._of("moves", str(frm), str(to), str(reason)).inc()

    def phase(self, name: str, seconds: float) -> None:
        """Record the duration of a phase of an acquire."""
        self._of("acquire_phase_seconds", name).observe(seconds)

    def thread_restarted(self, name: str) -> None:
        self.thread_restarts.labels(name).inc()

    @contextmanager
    def holding(self, name: str) -> Iterator[None]:
        """Mark the lock of a pass as held by this process."""
        self.pass_lock_held.labels(name).set(1)
        try:
            yield
        finally:
            self.pass_lock_held.labels(name).set(0)

    def _of(self, metric: str, *labels: str) -> Any:
        """Return a metric with these labels from a cache; the lane counts several per call."""
        key = (metric, *labels)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = getattr(self, metric).labels(*labels)
        return found

    def _profile(self, name: str) -> str:
        """Return the label for a profile. Callers may send any name, so unconfigured ones are `unknown`."""
        return name if not self._profiles or name in self._profiles else UNKNOWN

    def _seed(self, role: str) -> None:
        """Create the series that this process may count, at zero, so that the first increase is visible."""
        if role == ACQUIRE:
            self._seed_acquires()
        if role == PASSES:
            self._seed_passes()
        if role:
            for thread in THREADS:
                self.thread_restarts.labels(thread)
        if role != "beat":
            for item in Item:
                self.items_left_out.labels(str(item))
            for why in ClaimEnd:
                self.claims_ended.labels(str(why))
            for profile in self._profiles:
                self.spawn_seconds.labels(profile)

    def _seed_acquires(self) -> None:
        for profile in self._profiles:
            self.acquires.labels(profile, "granted", "")
            self.misses.labels(profile, WAITED)
            for reason in sorted(_MISSES):
                self.acquires.labels(profile, "refused", str(reason))
                self.misses.labels(profile, str(reason))
        for source in Source:
            self.acquire_seconds.labels("granted", str(source))
        self.acquire_seconds.labels("refused", "none")
        for trouble in SignatureProblem:
            self.requests_unproven.labels(str(trouble))

    def _seed_passes(self) -> None:
        for name in PERIODS_S:
            for outcome in ("ok", "failed", "interrupted", "stale", "held_elsewhere", "unreachable"):
                self.pass_runs.labels(name, outcome)
            self.pass_lock_held.labels(name).set(0)
            self.pass_lock_lost.labels(name)


def _made(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    name = PREFIX + metric.name
    if metric.kind is MetricKind.COUNTER:
        return Counter(name, metric.doc, metric.labels, registry=registry)
    if metric.kind is MetricKind.GAUGE:
        return Gauge(name, metric.doc, metric.labels, registry=registry)
    return Histogram(name, metric.doc, metric.labels, buckets=metric.buckets, registry=registry)


def _version() -> str:
    try:
        return version("warmpool-server")
    except PackageNotFoundError:
        return "unknown"
