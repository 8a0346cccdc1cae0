"""Celery's consumer, which no message can end."""

from __future__ import annotations

from typing import Any

import structlog
from celery.worker.consumer import Consumer

from tasks.lane.dropping import Dropped
from tasks.lane.messages import DropReason
from tasks.options import QUEUES, ROUTES

log = structlog.get_logger(__name__)


class PatientConsumer(Consumer):
    """A consumer that no message can end. Celery's own gives up on one whose parts are of the wrong shape, puts it back into the queue
    on its way out, and so ends every consumer after it as well.

    It serves the tasks of its own queue and no other; the transport hands it only what the control plane has signed."""

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
            except Exception as exc:  # noqa: BLE001 - whatever is wrong with it, it is one message
                dropped.add(DropReason.ERROR, cause=f"{type(exc).__name__}: {exc}")
                message.reject_log_error(log, self.connection_errors)  # type: ignore[attr-defined]

        return refuse_or_receive
