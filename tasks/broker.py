"""`pool.deps.Broker` kept with Celery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from celery import Celery
from celery.app.task import Context
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from pool.errors import Transient
from pool.ids import ProfileName
from pool.records import ReplyTo
from tasks.background import Gathering, Outbox, Timers
from tasks.options import ROUTES
from tasks.replies import Answered

log = structlog.get_logger(__name__)

NUDGES_WITHIN_S = 0.1


class CeleryBroker:
    """Sends in the background, replies at once."""

    def __init__(self, app: Celery, timers: Timers) -> None:
        self._app = app
        self._outbox = Outbox("outbox")
        self._nudges = Gathering(timers, NUDGES_WITHIN_S, self._send_refills)

    def send(self, task: str, **arguments: Any) -> None:
        self._outbox.put(lambda: self._publish(task, arguments))

    def nudge(self, profile: ProfileName) -> None:
        self._nudges.add(profile)

    def reply(self, to: ReplyTo, answer: Mapping[str, Any]) -> None:
        """Store the result as the task itself would have, and let Flower see the task end."""
        answered = Answered(dict(answer))
        try:
            self._app.backend.store_result(
                to.task_id, answered, "SUCCESS", request=Context(reply_to=to.address)
            )
        except (RedisError, OperationalError, OSError) as exc:
            raise Transient(f"redis: {exc}") from exc
        if self._app.conf.worker_send_task_events:
            self._outbox.put(lambda: self._tell_flower(to.task_id, repr(answered)))

    def close(self) -> None:
        """Send what is left."""
        self._nudges.flush()
        self._outbox.close()

    def _send_refills(self, profiles: list[Any]) -> None:
        for profile in profiles:
            self.send("pool.refill", profile=profile)

    def _publish(self, task: str, arguments: dict[str, Any]) -> None:
        try:
            self._app.send_task(task, kwargs=arguments, queue=ROUTES[task], ignore_result=True, retry=False)
        except (RedisError, OperationalError, OSError) as exc:
            log.warning("task_not_sent", task=task, arguments=arguments, cause=str(exc))

    def _tell_flower(self, task_id: str, result: str) -> None:
        try:
            with self._app.events.default_dispatcher() as dispatcher:
                dispatcher.send("task-succeeded", uuid=task_id, result=result, runtime=0.0)
        except (RedisError, OperationalError, OSError) as exc:
            log.warning("event_not_sent", task_id=task_id, cause=str(exc))
