"""Celery's task events for what Celery did not do itself, so that Flower sees it: sent in one message for all that has gathered."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from pool.metrics.catalog import Item
from tasks.background import LeftOut
from tasks.replies import Answered

if TYPE_CHECKING:
    from tasks.letters import Letter
    from tasks.mailbox import Post

log = structlog.get_logger(__name__)

# More than ever gathers: it leaves when we say so.
_BUFFER = 1_000_000


@dataclass(frozen=True, slots=True)
class Told:
    """One event."""

    kind: str
    fields: dict[str, Any]

    @classmethod
    def succeeded(cls, task_id: str, answer: Answered) -> Told:
        return cls("task-succeeded", {"uuid": task_id, "result": repr(answer), "runtime": 0.0})

    @classmethod
    def served(cls, post: Post) -> list[Told]:
        """The life of a task in the lane, as far as it has come."""
        letter = post.taken.letter
        told = cls._begun(letter)
        if post.answer is not None:
            told.append(cls.succeeded(letter.task_id, post.answer))
        elif post.failure is not None:
            raised = {"uuid": letter.task_id, "exception": repr(post.failure.exc), "traceback": ""}
            told.append(cls("task-failed", raised))
        return told

    @classmethod
    def _begun(cls, letter: Letter) -> list[Told]:
        known = letter.headers
        received = {
            "uuid": letter.task_id,
            "name": letter.task,
            "args": known.get("argsrepr"),
            "kwargs": known.get("kwargsrepr"),
            "root_id": known.get("root_id"),
            "parent_id": known.get("parent_id"),
            "retries": 0,
            "eta": None,
            "expires": None,
        }
        return [cls("task-received", received), cls("task-started", {"uuid": letter.task_id})]


class Watchers:
    """Whoever listens to events. One thread tells."""

    def __init__(self, app: Celery, left_out: LeftOut) -> None:
        self._app = app
        self._left_out = left_out
        self._hostname = f"{getattr(app, 'role', 'app')}@{socket.gethostname()}"
        self._dispatcher: Any = None

    def tell(self, told: Sequence[Told]) -> None:
        if not told:
            return
        try:
            dispatcher = self._open()
            for each in told:
                dispatcher.send(each.kind, **each.fields)
            dispatcher.flush()
        except (RedisError, OperationalError, OSError) as exc:
            log.warning("events_not_sent", count=len(told), cause=str(exc))
            self.close()
        except Exception as exc:  # noqa: BLE001 - one of them is to blame; it is left out by itself
            self.close()
            if len(told) == 1:
                self._left_out(Item.TASK_EVENT, told[0].kind, exc)
            for each in told if len(told) > 1 else ():
                self.tell([each])

    def close(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            with contextlib.suppress(RedisError, OperationalError, OSError):
                dispatcher.connection.release()

    def _open(self) -> Any:
        if self._dispatcher is None:
            self._dispatcher = self._app.events.Dispatcher(
                self._app.connection_for_write(),
                hostname=self._hostname,
                buffer_while_offline=False,
                buffer_group={"task"},
                buffer_limit=_BUFFER,
            )
        return self._dispatcher
