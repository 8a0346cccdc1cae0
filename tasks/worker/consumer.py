"""A Celery consumer that no message can stop."""

from __future__ import annotations

from typing import Any

import structlog
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown

from tasks.lane.dropping import Dropped
from tasks.lane.messages import DropReason
from tasks.options import QUEUES
from tasks.routes import ROUTES
from tasks.worker.reconnecting import SOON, OnceLogged

log = structlog.get_logger(__name__)


class PatientConsumer(Consumer):
    """A consumer that no message can stop.

    Celery's own consumer stops at a message with malformed parts and puts it back into the queue,
    so that the message stops every later consumer too. This one serves only the tasks of its own
    queue. The transport passes it only messages signed by the control plane.
    """

    def ensure_connected(self, conn: Any) -> Any:
        """Connect. While the broker is away, try again every second at most, so that work goes on soon
        after a failover. Celery's own pauses become as long as 30 s.
        """
        conn.ensure_connection(OnceLogged(log), callback=maybe_shutdown, **SOON)
        self.first_connection_attempt = False
        return conn

    def update_strategies(self) -> None:
        super().update_strategies()
        role = self.app.role  # type: ignore[attr-defined]
        if role in QUEUES:
            strategies: dict[str, Any] = self.strategies  # type: ignore[attr-defined]
            for foreign in [name for name in strategies if ROUTES.get(name) != role]:
                del strategies[foreign]

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
        dropped: Dropped = self.app.dropped  # type: ignore[attr-defined]
        received = super().create_task_handler(*args, **kwargs)

        def refuse_or_receive(message: Any) -> None:
            try:
                received(message)
            except self.connection_errors:  # type: ignore[attr-defined]
                raise
            except Exception as exc:  # noqa: BLE001 - one bad message must not stop the consumer
                dropped.add(DropReason.ERROR, cause=f"{type(exc).__name__}: {exc}")
                message.reject_log_error(log, self.connection_errors)  # type: ignore[attr-defined]

        return refuse_or_receive
