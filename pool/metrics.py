"""Every metric, declared once, with bounded labels. One registry per process, so that nothing is shared by accident."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class Metrics:
    """The process's own counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.acquires = self._counter("acquires", "Acquires answered at once", "outcome", "reason")
        self.park_failures = self._counter(
            "park_failures", "Releases whose worker could not be parked at once"
        )
        self.spawn_failures = self._counter("spawn_failures", "Spawns that failed", "profile")
        self.activation_failures = self._counter("activation_failures", "Activations that failed", "profile")
        self.pass_runs = self._counter("pass_runs", "Runs of a pass", "name", "outcome")
        self.pass_overflow = self._counter("pass_overflow", "Runs that left work for the next one", "name")
        self.fallback_runs = self._counter("fallback_runs", "Reaps run without beat, lock and Redis")
        self.fallback_active = Gauge(
            "warmpool_fallback_active", "1 while this process reaps by itself", registry=self.registry
        )

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"warmpool_{name}", doc, labels, registry=self.registry)
