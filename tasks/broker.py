"""`pool.deps.Broker` kept with Celery messages. What is sent leaves in the background, all that has gathered in one round trip."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from celery import Celery
from celery.app.task import Context
from kombu.exceptions import OperationalError, SerializationError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from pool import config
from pool.client.messages import Message
from pool.errors import Refused, Transient
from pool.ids import ProfileName, new_task_id
from pool.metrics.catalog import Item
from pool.records import ReplyTo
from pool.settings import Settings
from pool.signing import INTERNAL_HEADER, Asked
from pool.threads import Threads
from tasks.background import Gathering, Outbox, Timers
from tasks.events import Told, Watchers
from tasks.options import ROUTES
from tasks.replies import Answered
from tasks.wire import Wire

if TYPE_CHECKING:
    from tasks.mailbox import Post

log = structlog.get_logger(__name__)

NUDGES_WITHIN_S = 0.1
# Few enough that many workers are stamped side by side, enough that a burst is not a message for each of them.
STAMPS_A_MESSAGE = 8
# How Redis refuses a command on a key of another type: no later try will do better.
_WRONG_KIND = "WRONGTYPE"


@dataclass(frozen=True, slots=True)
class Sending:
    """A task that is to be sent."""

    task: str
    arguments: Mapping[str, Any]


class CeleryBroker:
    """Sends in the background, replies at once."""

    def __init__(
        self, app: Celery, settings: Settings, timers: Timers, threads: Threads, signs: Callable[[Asked], str]
    ) -> None:
        self._app = app
        self._signs = signs
        self._outbox = Outbox("outbox", self._deal, threads)
        self._left_out = timers.left_out
        self._nudges = Gathering(timers, NUDGES_WITHIN_S, self._send_refills, item=Item.MESSAGE)
        self._wire = Wire(config.broker_url(settings))
        self._watchers = Watchers(app, timers.left_out)
        self._origin = f"pool@{socket.gethostname()}"

    def send(self, task: str, **arguments: Any) -> None:
        self._outbox.put(Sending(task, arguments))

    def nudge(self, profile: ProfileName) -> None:
        self._nudges.add(profile)

    def reply(self, to: ReplyTo, answer: Mapping[str, Any]) -> None:
        """Store the result as the task itself would have, and let Flower see the task end. An id or address that no result can be stored under is
        `Refused`."""
        answered = Answered(dict(answer))
        try:
            self._app.backend.store_result(
                to.task_id, answered, "SUCCESS", request=Context(reply_to=to.address)
            )
        except (RedisError, OperationalError, OSError) as exc:
            # Before this redis-py repeats the whole command, with the token in it.
            cause = str(exc).rpartition("caused error: ")[2]
            if cause.startswith(_WRONG_KIND):
                raise Refused("undeliverable", detail=f"the reply address is in other use: {cause}") from exc
            raise Transient(f"redis: {cause}") from exc
        except (ValueError, TypeError, SerializationError) as exc:
            raise Refused("undeliverable", detail=f"{type(exc).__name__}: {exc}") from exc
        self._tell([Told.succeeded(to.task_id, answered)])

    def tell_served(self, posts: Sequence[Post]) -> None:
        """Let Flower see what the lane has done."""
        if self._app.conf.worker_send_task_events:
            self._tell([told for post in posts for told in Told.served(post)])

    def close(self) -> None:
        """Send what is left."""
        self._nudges.flush()
        self._outbox.close()
        self._watchers.close()
        self._wire.close()

    def _tell(self, told: Iterable[Told]) -> None:
        if self._app.conf.worker_send_task_events:
            for each in told:
                self._outbox.put(each)

    def _send_refills(self, profiles: list[Any]) -> None:
        for profile in profiles:
            self.send("pool.refill", profile=profile)

    def _deal(self, things: list[Any]) -> None:
        self._publish([thing for thing in things if isinstance(thing, Sending)])
        self._watchers.tell([thing for thing in things if isinstance(thing, Told)])

    def _publish(self, sendings: Sequence[Sending]) -> None:
        queues: dict[str, list[str]] = defaultdict(list)
        for sending in together(sendings):
            try:
                queue, task_id = ROUTES[sending.task], new_task_id()
                message = Message(
                    task=sending.task,
                    kwargs=sending.arguments,
                    task_id=task_id,
                    origin=self._origin,
                    queue=queue,
                )
                asked = Asked(task=message.task, task_id=task_id, address="", args=(), kwargs=message.kwargs)
                queues[queue].append(message.encoded(task_id, {INTERNAL_HEADER: self._signs(asked)}))
            except Exception as exc:  # noqa: BLE001 - the others leave all the same
                self._left_out(Item.MESSAGE, sending.task, exc)
        if not queues:
            return
        commands = [("LPUSH", queue, *messages) for queue, messages in queues.items()]
        try:
            try:
                self._wire.ask(*commands)
            except (RedisTimeout, TimeoutError):
                raise
            except (RedisError, OSError):
                # It may have gone stale since it was last used. Any of these tasks may run twice.
                self._wire.ask(*commands)
        except (RedisError, OSError) as exc:
            log.warning("tasks_not_sent", tasks=sorted({s.task for s in sendings}), cause=str(exc))


def together(sendings: Iterable[Sending]) -> list[Sending]:
    """Stamps of several workers in one message, each worker once: a stamp says what the row says when it is made."""
    others = [s for s in sendings if s.task != "pool.stamp"]
    workers = list(dict.fromkeys(s.arguments["worker_id"] for s in sendings if s.task == "pool.stamp"))
    some = [workers[i : i + STAMPS_A_MESSAGE] for i in range(0, len(workers), STAMPS_A_MESSAGE)]
    return others + [
        Sending("pool.stamp", {"worker_id": first, **({"others": rest} if rest else {})})
        for first, *rest in some
    ]
