"""The Celery app: `celery -A tasks.app` works, `warmpool worker ROLE` is how it is meant to be run. Reads no configuration and opens no
connection before it is used."""

from __future__ import annotations

import os
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.result import AsyncResult

from pool import config, sparing, wiring
from pool.clock import SystemClock
from pool.deps import Deps
from pool.ids import RequestPk, new_task_id
from pool.metrics import Metrics, serving
from pool.metrics.catalog import Item
from pool.settings import Settings
from pool.signing import INTERNAL_HEADER, Asked, InternalTasks
from pool.store import requests
from pool.threads import Threads
from tasks.background import Gathering, Timers
from tasks.broker import CeleryBroker
from tasks.dropping import Dropped
from tasks.options import INTERNAL_TASKS, celery_options
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
    def watched(self) -> Threads:
        """The long-lived threads of this process; liveness looks at all of them."""
        return Threads(SystemClock(), self._restarted)

    @cached_property
    def timers(self) -> Timers:
        return Timers(SystemClock(), self.watched, self._left_out)

    @cached_property
    def waits(self) -> Waits:
        """The ends of waits that this process has begun."""
        return Waits(self.deps, self.timers)

    @cached_property
    def pool_broker(self) -> CeleryBroker:
        return CeleryBroker(self, self.settings, self.timers, self.watched, self.internal_tasks.sign)

    @cached_property
    def internal_tasks(self) -> InternalTasks:
        """Signs and checks what the control plane sends itself."""
        return config.keyring(self.settings).internal_tasks()

    @cached_property
    def deps(self) -> Deps:
        # The lane has threads of its own beside Celery's.
        threads = self.threads * 2 if self.role == "acquire" else self.threads
        return wiring.build(
            self.settings, broker=self.pool_broker, role=self.role, threads=threads, watched=self.watched
        )

    @cached_property
    def beat_metrics(self) -> Metrics:
        """Of a process that opens no database: beat, Flower."""
        return Metrics(role="beat", driver=self.settings.pool.driver)

    @property
    def own_metrics(self) -> Metrics:
        """What this process counts of itself."""
        return self.deps.metrics if "deps" in self.__dict__ else self.beat_metrics

    def serve_metrics(self, metrics: Metrics) -> None:
        """Serve this process's metrics, if there is a port for them."""
        pool = self.settings.pool
        if pool.metrics_port:
            serving.serve(
                serving.rendering(metrics.registry),
                self.watched,
                host=pool.metrics_host,
                port=pool.metrics_port,
            )

    @cached_property
    def dropped(self) -> Dropped:
        """Messages that this process has dropped."""
        return Dropped(self.own_metrics, SystemClock())

    @cached_property
    def delivered(self) -> Gathering:
        """Requests whose answers have been delivered, marked together."""
        return Gathering(self.timers, _MARKS_WITHIN_S, self._mark, item=Item.MARK)

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
        return Gathering(
            self.timers,
            _REFUSALS_WITHIN_S,
            lambda refused: journal(self, refused),
            item=Item.AUDIT_ENTRY,
        )

    def _restarted(self, name: str) -> None:
        self.own_metrics.thread_restarted(name)

    def _left_out(self, item: Item, name: object, exc: Exception) -> None:
        sparing.left_out(self.own_metrics, item, name, exc)

    def send_task(  # type: ignore[override]
        self,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """As Celery does. Tasks of the control plane are signed, so that its workers carry them out."""
        if name in INTERNAL_TASKS:
            options["task_id"] = options.get("task_id") or new_task_id()
            asked = Asked(
                task=name, task_id=options["task_id"], address="", args=args or (), kwargs=kwargs or {}
            )
            headers = options.get("headers") or {}
            options["headers"] = {**headers, INTERNAL_HEADER: self.internal_tasks.sign(asked)}
        return super().send_task(name, args, kwargs, **options)

    def _mark(self, pks: list[Any]) -> None:
        with self.deps.store.write() as tx:
            requests.mark_replied(tx, [RequestPk(pk) for pk in pks])


app = WarmpoolApp("warmpool", include=["tasks.fleet", "tasks.passes", "tasks.serving"])


@app.on_configure.connect
def _configure(sender: WarmpoolApp, **_: Any) -> None:
    sender.config_from_object(celery_options(sender.settings))
