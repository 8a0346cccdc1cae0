"""The Celery app. `warmpool worker ROLE` runs it; `celery -A tasks.app` works too.

It reads no configuration and opens no connection before it is used.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from functools import cached_property
from typing import Any

from celery import Celery
from celery.result import AsyncResult

from pool import config, wiring
from pool.core.clock import SystemClock
from pool.core.ids import new_task_id
from pool.core.names import ENV_ROLE
from pool.core.settings import Settings
from pool.core.signing import INTERNAL_HEADER, Asked, InternalTasks
from pool.core.threads import Threads
from pool.lifecycle import item_errors
from pool.lifecycle.deps import Deps
from pool.metrics import Metrics, serving
from pool.metrics.catalog import Item
from pool.passes.failing import FailingPasses
from tasks.background import Timers
from tasks.lane.dropping import Dropped
from tasks.lane.following import Following
from tasks.options import celery_options
from tasks.routes import INTERNAL_TASKS
from tasks.sending import CeleryBroker


class WarmpoolApp(Celery):
    """A Celery app with the dependencies of the pool, each created once per process at first use."""

    role = os.environ.get(ENV_ROLE, "app")

    @property
    def threads(self) -> int:
        """Number of threads that may need a connection at once."""
        return int(getattr(self.settings.pool, f"{self.role}_threads", 5))

    @cached_property
    def settings(self) -> Settings:
        return config.load()

    @cached_property
    def stopping(self) -> threading.Event:
        """Set when the process must stop: no new work is started."""
        return threading.Event()

    @cached_property
    def closing(self) -> ExitStack:
        """Callbacks to run when the process ends, in reverse order."""
        return ExitStack()

    @cached_property
    def watched(self) -> Threads:
        """The long-lived threads of this process. Liveness checks all of them."""
        return Threads(SystemClock(), self._restarted)

    @cached_property
    def timers(self) -> Timers:
        return Timers(SystemClock(), self.watched, self._left_out)

    @cached_property
    def pool_broker(self) -> CeleryBroker:
        url, signs = config.broker_url(self.settings), self.internal_tasks.sign
        return CeleryBroker(self, url, self.role, self.timers, self.watched, signs, self.following)

    @cached_property
    def following(self) -> Following:
        """Sends what follows the answers to callers. With signed requests nothing does."""
        pool = self.settings.pool
        return Following(self, () if pool.signed_requests else pool.follower_queues)

    @cached_property
    def internal_tasks(self) -> InternalTasks:
        """Signs and verifies the messages that the control plane sends to itself."""
        return config.keyring(self.settings).internal_tasks()

    @cached_property
    def deps(self) -> Deps:
        return wiring.build(self.settings, broker=self.pool_broker, role=self.role, watched=self.watched)

    @cached_property
    def beat_metrics(self) -> Metrics:
        """Metrics of a process without a database: beat, Flower."""
        return Metrics(role="beat", driver=self.settings.pool.driver)

    @property
    def own_metrics(self) -> Metrics:
        """The metrics of this process."""
        return self.deps.metrics if "deps" in self.__dict__ else self.beat_metrics

    def serve_metrics(self, metrics: Metrics) -> None:
        """Serve the metrics of this process, if a port is configured."""
        pool = self.settings.pool
        if pool.metrics_port:
            serving.serve(
                serving.rendering(metrics.registry),
                self.watched,
                host=pool.metrics_host,
                port=pool.metrics_port,
            )

    @cached_property
    def failing(self) -> FailingPasses:
        """The passes of this process that keep raising."""
        return FailingPasses(self.settings.pool.pass_failures_limit)

    @cached_property
    def dropped(self) -> Dropped:
        """Messages that this process has dropped."""
        return Dropped(self.own_metrics, SystemClock())

    def _restarted(self, name: str) -> None:
        self.own_metrics.thread_restarted(name)

    def _left_out(self, item: Item, name: object, exc: Exception) -> None:
        item_errors.record_skipped(self.own_metrics, item, name, exc)

    def send_task(  # type: ignore[override]
        self,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Send a task as Celery does. Tasks of the control plane are signed, so that its workers
        accept them.
        """
        if name in INTERNAL_TASKS:
            options["task_id"] = options.get("task_id") or new_task_id()
            asked = Asked(
                task=name, task_id=options["task_id"], address="", args=args or (), kwargs=kwargs or {}
            )
            headers = options.get("headers") or {}
            options["headers"] = {**headers, INTERNAL_HEADER: self.internal_tasks.sign(asked)}
        return super().send_task(name, args, kwargs, **options)


app = WarmpoolApp("warmpool", include=["tasks.fleet", "tasks.passes", "tasks.worker.start"])


@app.on_configure.connect
def _configure(sender: WarmpoolApp, **_: Any) -> None:
    sender.config_from_object(celery_options(sender.settings))
