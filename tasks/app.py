"""The Celery app: `celery -A tasks.app` works, `warmpool worker ROLE` is how it is meant to be run. Reads no configuration and opens no
connection before it is used."""

from __future__ import annotations

import os
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery import Celery

from pool import config, wiring
from pool.clock import SystemClock
from pool.deps import Deps
from pool.ids import RequestPk
from pool.metrics import Metrics, serving
from pool.settings import Settings
from pool.store import requests
from tasks.background import Gathering, Timers
from tasks.broker import CeleryBroker
from tasks.options import celery_options
from tasks.proving import Prover, journal
from tasks.tenants import Tenants
from tasks.waits import Waits

if TYPE_CHECKING:
    from tasks.lane import Lane

_MARKS_WITHIN_S = 1.0
_REFUSALS_WITHIN_S = 1.0


class WarmpoolApp(Celery):
    """A Celery app with the pool behind it. One of each per process, made at first use."""

    role = os.environ.get("WARMPOOL_RUN_ROLE", "app")

    @property
    def threads(self) -> int:
        """Threads that may want a connection at once."""
        return int(getattr(self.settings.pool, f"{self.role}_threads", 5))

    @cached_property
    def settings(self) -> Settings:
        return config.load()

    @cached_property
    def stopping(self) -> threading.Event:
        """Set when the process was told to end: nothing new is begun."""
        return threading.Event()

    @cached_property
    def lanes(self) -> list[Lane]:
        """The lane of this process, if it has one."""
        return []

    @cached_property
    def timers(self) -> Timers:
        return Timers(SystemClock())

    @cached_property
    def waits(self) -> Waits:
        """The ends of waits that this process has begun."""
        return Waits(self.deps, self.timers)

    @cached_property
    def pool_broker(self) -> CeleryBroker:
        return CeleryBroker(self, self.settings, self.timers)

    @cached_property
    def deps(self) -> Deps:
        # The lane has threads of its own beside Celery's.
        threads = self.threads * 2 if self.role == "acquire" else self.threads
        return wiring.build(self.settings, broker=self.pool_broker, role=self.role, threads=threads)

    @cached_property
    def beat_metrics(self) -> Metrics:
        """Beat's own: it opens no database."""
        return Metrics(role="beat", driver=self.settings.pool.driver)

    def serve_metrics(self, metrics: Metrics) -> None:
        """Serve this process's metrics, if there is a port for them."""
        pool = self.settings.pool
        if pool.metrics_port:
            serving.serve(serving.rendering(metrics.registry), host=pool.metrics_host, port=pool.metrics_port)

    @cached_property
    def delivered(self) -> Gathering:
        """Requests whose answers have been delivered, marked together."""
        return Gathering(self.timers, _MARKS_WITHIN_S, self._mark)

    @cached_property
    def tenants(self) -> Tenants:
        deps = self.deps
        return Tenants(deps.store, deps.keys, deps.clock)

    @cached_property
    def prover(self) -> Prover:
        return Prover(self)

    @cached_property
    def unproven(self) -> Gathering:
        """Requests that were refused because of their signature, journalled together."""
        return Gathering(self.timers, _REFUSALS_WITHIN_S, lambda refused: journal(self, refused))

    def _mark(self, pks: list[Any]) -> None:
        with self.deps.store.write() as tx:
            requests.mark_replied(tx, [RequestPk(pk) for pk in pks])


app = WarmpoolApp("warmpool", include=["tasks.claims", "tasks.fleet", "tasks.passes", "tasks.serving"])


@app.on_configure.connect
def _configure(sender: WarmpoolApp, **_: Any) -> None:
    sender.config_from_object(celery_options(sender.settings))
