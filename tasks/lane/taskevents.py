"""Celery's task events for tasks that the lane executes, so that Flower shows them. All that have
gathered are sent in one message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from pool.metrics.catalog import Item
from tasks.background import LeftOut
from tasks.lane.exchange import TaskReply
from tasks.lane.messages import IncomingMessage
from tasks.lane.replies import Answered

log = structlog.get_logger(__name__)

# More than will ever gather: we flush the buffer ourselves.
_BUFFER = 1_000_000


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """One event. Its fields contain its time, so that it may be sent later."""

    kind: str
    fields: dict[str, Any]

    @classmethod
    def succeeded(cls, task_id: str, answer: Answered, took_s: float, now_s: float) -> TaskEvent:
        fields = {"uuid": task_id, "result": repr(answer), "runtime": took_s, "timestamp": now_s}
        return cls("task-succeeded", fields)

    @classmethod
    def served(cls, reply: TaskReply, took_s: float, now_s: float) -> list[TaskEvent]:
        """Return the events of a task in the lane, up to its current state. It was taken `took_s`
        before now."""
        message = reply.taken.message
        events = cls._begun(message, now_s - took_s)
        if reply.answer is not None:
            events.append(cls.succeeded(message.task_id, reply.answer, took_s, now_s))
        elif reply.failure is not None:
            raised = {"uuid": message.task_id, "exception": repr(reply.failure.exc), "traceback": ""}
            events.append(cls("task-failed", raised | {"timestamp": now_s}))
        return events

    @classmethod
    def _begun(cls, message: IncomingMessage, at_s: float) -> list[TaskEvent]:
        known = message.headers
        received = {
            "uuid": message.task_id,
            "name": message.task,
            "args": known.get("argsrepr"),
            "kwargs": known.get("kwargsrepr"),
            "root_id": known.get("root_id"),
            "parent_id": known.get("parent_id"),
            "retries": 0,
            "eta": None,
            "expires": None,
            "timestamp": at_s,
        }
        started = {"uuid": message.task_id, "timestamp": at_s}
        return [cls("task-received", received), cls("task-started", started)]


class EventSender:
    """Sends events to all listeners. Used by one thread."""

    def __init__(self, celery: Celery, hostname: str, left_out: LeftOut) -> None:
        self._celery = celery
        self._hostname = hostname
        self._left_out = left_out
        self._dispatcher: Any = None

    def send(self, events: Sequence[TaskEvent]) -> None:
        if not events:
            return
        try:
            dispatcher = self._open()
            for each in events:
                dispatcher.send(each.kind, **each.fields)
            dispatcher.flush()
        except (RedisError, OperationalError, OSError) as exc:
            log.warning("events_not_sent", count=len(events), cause=str(exc))
            self.close()
        except Exception as exc:  # noqa: BLE001 - send them one by one and skip the one that fails
            self.close()
            if len(events) == 1:
                self._left_out(Item.TASK_EVENT, events[0].kind, exc)
            for each in events if len(events) > 1 else ():
                self.send([each])

    def close(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            with contextlib.suppress(RedisError, OperationalError, OSError):
                dispatcher.connection.release()

    def _open(self) -> Any:
        if self._dispatcher is None:
            self._dispatcher = self._celery.events.Dispatcher(
                self._celery.connection_for_write(),
                hostname=self._hostname,
                buffer_while_offline=False,
                buffer_group={"task"},
                buffer_limit=_BUFFER,
            )
        return self._dispatcher
