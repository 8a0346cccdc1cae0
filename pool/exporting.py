"""The exporter: what the table says, as Prometheus reads it, at the moment it is asked. Nothing is remembered that could be wrong after a restart.

`Exporter.render` is a page for any server: `warmpool exporter` serves it, and so may the board. However many ask, the table is read at most
once per `FRESH_S`, and seldom if that takes long. What can not be reached is absent, and `warmpool_database_up` or `warmpool_broker_up` says so: an old number is worse than none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from pool.clock import Clock
from pool.errors import PoolError
from pool.metrics.catalog import CATALOG, PREFIX, Kind
from pool.reading import Reading, read
from pool.settings import Settings
from pool.store import Store

log = structlog.get_logger(__name__)

FRESH_S = 1.0
# A page that took long to read is kept for this many times as long: the exporter is never the database's main burden.
_KEPT_TIMES = 5

# How long each queue is; raises `PoolError` if the broker can not be asked.
Look = Callable[[], Mapping[str, int]]


class Exporter:
    """One page over one store. Threads may share it."""

    def __init__(self, store: Store, settings: Settings, *, clock: Clock, look: Look) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._look = look
        self._lock = threading.Lock()
        self._page = b""
        self._fresh_until = float("-inf")

    def render(self) -> bytes:
        """The page, read now or a moment ago. Never raises."""
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
            log.warning("database_unread", cause=str(exc))
            return [Reading("database_up", 0)]

    def _broker(self) -> list[Reading]:
        try:
            lengths = self._look()
        except PoolError as exc:
            log.warning("broker_unread", cause=str(exc))
            return [Reading("broker_up", 0)]
        return [
            *(Reading("queue_length", n, (name,)) for name, n in lengths.items()),
            Reading("broker_up", 1),
        ]


class _Read(Collector):
    """Readings as families, in the catalog's order."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings: dict[str, list[Reading]] = {}
        for reading in readings:
            self._readings.setdefault(reading.name, []).append(reading)

    def collect(self) -> Iterator[Metric]:
        for metric in CATALOG.values():
            found = self._readings.get(metric.name)
            if not found:
                continue
            kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            family = kind(PREFIX + metric.name, metric.doc, labels=metric.labels)
            for reading in found:
                family.add_metric(reading.labels, reading.value)
            yield family
