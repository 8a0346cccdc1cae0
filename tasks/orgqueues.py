"""Celery's own consumer reads the queue of every org, where there is one for each and no lane to read them. A new org's is read within a few
seconds."""

from __future__ import annotations

from typing import Any

import structlog
from celery import bootsteps

from pool.errors import Transient
from pool.signing import queue_of
from tasks.app import app
from tasks.tenants import FRESH_S

log = structlog.get_logger(__name__)


class OrgQueues(bootsteps.StartStopStep):
    """Looks in the consumer's own loop, which is the only thread that may change what it reads."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, parent: Any) -> bool:  # noqa: ARG002
        pool = app.settings.pool
        return app.role == "acquire" and pool.queue_per_org and not pool.lane

    def start(self, parent: Any) -> None:
        """Called anew after every reconnection, since the loop's timers are cleared then."""
        self._look(parent)
        parent.timer.call_repeatedly(FRESH_S, self._look, (parent,))

    def _look(self, consumer: Any) -> None:
        try:
            app.tenants.read()
        except Transient as exc:
            log.warning("org_queues_not_known", cause=str(exc))
            return
        for queue in map(queue_of, app.tenants.names):
            if not consumer.task_consumer.consuming_from(queue):
                consumer.add_task_queue(queue, exchange=queue, exchange_type="direct", routing_key=queue)
