"""The exporter: metrics of the database in the Prometheus format, read on each scrape. It keeps no
state over a restart.

The database is read at most once per `FRESH_S`, however many clients scrape, and less often if
reading is slow. If the database or the broker cannot be reached, its metrics are left out and
`warmpool_database_up` or `warmpool_broker_up` is 0: a stale value is worse than no value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from pool.core.clock import Clock
from pool.core.errors import PoolError
from pool.core.settings import Settings
from pool.metrics.catalog import CATALOG, PREFIX, MetricKind
from pool.ops.reading import Reading, read
from pool.store import Store

log = structlog.get_logger(__name__)

FRESH_S = 1.0
# A page is kept for this many times the time it took to read, so that the exporter never becomes the main
# database load.
_KEPT_TIMES = 5

# Returns the length of each queue; raises `PoolError` if the broker cannot be reached.
Look = Callable[[], Mapping[str, int]]


class Exporter:
    """The metrics page of one store. Thread-safe."""

    def __init__(self, store: Store, settings: Settings, *, clock: Clock, look: Look) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._look = look
        self._lock = threading.Lock()
        self._page = b""
        self._fresh_until = float("-inf")

    def render(self) -> bytes:
        """Return the page, read now or within the last `FRESH_S`. Never raises."""
        with self._lock:
            began = self._clock.monotonic()
            if began >= self._fresh_until:
                registry = CollectorRegistry(auto_describe=False)
                registry.register(_Read(self._readings()))
                self._page = generate_latest(registry)
                ended = self._clock.monotonic()
                self._fresh_until = ended + max(FRESH_S, _KEPT_TIMES * (ended - began))
            return self._page

    def _readings(self) -> list[Reading]:
        began = self._clock.monotonic()
        found = [*self._table(), *self._broker()]
        return [*found, Reading("exporter_seconds", self._clock.monotonic() - began)]

    def _table(self) -> list[Reading]:
        try:
            return [*read(self._store, self._settings), Reading("database_up", 1)]
        except PoolError as exc:
            log.warning("database_read_failed", cause=str(exc))
            return [Reading("database_up", 0)]

    def _broker(self) -> list[Reading]:
        try:
            lengths = self._look()
        except PoolError as exc:
            log.warning("broker_read_failed", cause=str(exc))
            return [Reading("broker_up", 0)]
        return [
            *(Reading("queue_length", n, (name,)) for name, n in lengths.items()),
            Reading("broker_up", 1),
        ]


class _Read(Collector):
    """Readings as metric families, in the order of the catalog."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings: dict[str, list[Reading]] = {}
        for reading in readings:
            self._readings.setdefault(reading.name, []).append(reading)

    def collect(self) -> Iterator[Metric]:
        for metric in CATALOG.values():
            found = self._readings.get(metric.name)
            if not found:
                continue
            kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
            family = kind(PREFIX + metric.name, metric.doc, labels=metric.labels)
            for reading in found:
                family.add_metric(reading.labels, reading.value)
            yield family
