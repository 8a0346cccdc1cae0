"""`pool.lifecycle.deps.Broker` implemented with Celery messages. Messages are sent in the
background, all that have gathered in one round trip.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from celery import Celery
from celery.app.task import Context
from kombu.exceptions import OperationalError, SerializationError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from pool.client.messages import Message
from pool.core.clock import SystemClock
from pool.core.errors import Refused, Transient
from pool.core.ids import ProfileName, new_task_id
from pool.core.records import ReplyTo
from pool.core.signing import INTERNAL_HEADER, Asked
from pool.core.threads import Threads
from pool.metrics.catalog import Item
from tasks.background import Gathering, Outbox, Timers
from tasks.lane.exchange import LateReply, TaskReply
from tasks.lane.following import Following
from tasks.lane.replies import Answered
from tasks.lane.results import meta, pushes, stored
from tasks.lane.taskevents import EventSender, TaskEvent
from tasks.lane.wire import RedisWire
from tasks.routes import ROUTES

log = structlog.get_logger(__name__)

NUDGES_WITHIN_S = 0.1
# Stamps that are requested together are sent together. Sent one by one they would compete with the
# lane, which answers those claims at that moment.
STAMPS_WITHIN_S = 0.005
# How long a task is kept that another process is to carry out.
LATER_S = 1.0
_STAMP = "pool.stamp"
# Small enough that many workers are stamped in parallel, large enough that a burst needs few
# messages.
STAMPS_A_MESSAGE = 8
# The error of Redis for a command on a key of another type. Retrying does not help.
_WRONG_KIND = "WRONGTYPE"


@dataclass(frozen=True, slots=True)
class Sending:
    """A task to send."""

    task: str
    arguments: Mapping[str, Any]


class CeleryBroker:
    """Sends tasks in the background and replies at once."""

    def __init__(  # noqa: PLR0913 - one argument per part
        self,
        celery: Celery,
        url: str,
        role: str,
        timers: Timers,
        threads: Threads,
        signs: Callable[[Asked], str],
        following: Following,
    ) -> None:
        self._celery = celery
        self._following = following
        self._signs = signs
        self._outbox = Outbox("outbox", self._deal, threads)
        self._left_out = timers.left_out
        self._stamps = Gathering(timers, STAMPS_WITHIN_S, self._send_stamps, item=Item.MESSAGE)
        self._nudges = Gathering(timers, NUDGES_WITHIN_S, self._send_refills, item=Item.MESSAGE)
        self._later = Gathering(timers, LATER_S, self._send_all, item=Item.MESSAGE)
        self._wire = RedisWire(url)
        self._events = EventSender(celery, f"{role}@{socket.gethostname()}", timers.left_out)
        self._clock = SystemClock()
        self._origin = f"pool@{socket.gethostname()}"

    def send(self, task: str, **arguments: Any) -> None:
        """Send a task. Stamps of one worker are merged: a stamp writes the state of the row at that time."""
        if task == _STAMP:
            self._stamps.add(arguments["worker_id"])
        else:
            self._outbox.put(Sending(task, arguments))

    def send_later(self, task: str, **arguments: Any) -> None:
        """Send a task in about a second. What is left when the process stops is sent then."""
        self._later.add((task, tuple(arguments.items())))

    def nudge(self, profile: ProfileName) -> None:
        self._nudges.add(profile)

    def reply(self, to: ReplyTo, answer: Mapping[str, Any]) -> None:
        """Store the result as the task itself would, and report the end of the task to Flower.

        Raise `Refused` if no result can be stored under that id or address.
        """
        answered = Answered(dict(answer))
        if to.followers:
            self._reply_followed(to, answered)
        else:
            self._reply(to, answered)
        self._report([TaskEvent.succeeded(to.task_id, answered, to.took_s, self._now_s())])

    def _reply_followed(self, to: ReplyTo, answered: Answered) -> None:
        """Store the result and send what follows it, in one transaction."""
        result = answered.__json__()
        try:
            if to.address:
                answer = pushes({to.address: [meta(to.task_id, "SUCCESS", result)]})
            else:
                answer = stored(self._celery, to.task_id, "SUCCESS", result)
            after = self._following.commands(to.task_id, to.followers, "SUCCESS", result, repr(answered))
            *_, done = self._wire.ask(("MULTI",), *answer, *after, ("EXEC",))
        except (RedisError, OSError) as exc:
            raise Transient(f"redis: {exc}") from exc
        except (ValueError, TypeError) as exc:
            raise Refused("undeliverable", detail=f"{type(exc).__name__}: {exc}") from exc
        if not done or done[0] is None:
            raise Refused("undeliverable", detail="the reply address is a key of another type")

    def _reply(self, to: ReplyTo, answered: Answered) -> None:
        try:
            self._celery.backend.store_result(
                to.task_id, answered, "SUCCESS", request=Context(reply_to=to.address)
            )
        except (RedisError, OperationalError, OSError) as exc:
            # The text before this repeats the whole command, including the token.
            cause = str(exc).rpartition("caused error: ")[2]
            if cause.startswith(_WRONG_KIND):
                raise Refused(
                    "undeliverable", detail=f"the reply address is a key of another type: {cause}"
                ) from exc
            raise Transient(f"redis: {cause}") from exc
        except (ValueError, TypeError, SerializationError) as exc:
            raise Refused("undeliverable", detail=f"{type(exc).__name__}: {exc}") from exc

    def report_served(self, replies: Sequence[TaskReply], late: Sequence[LateReply]) -> None:
        """Report to Flower what the lane has done."""
        if self._celery.conf.worker_send_task_events:
            now_s, clock_s = self._now_s(), self._clock.monotonic()
            for reply in replies:
                took_s = max(0.0, clock_s - (reply.taken.taken_s or clock_s))
                self._report(TaskEvent.served(reply, took_s, now_s))
            self._report(
                TaskEvent.succeeded(each.to.task_id, each.answer, each.to.took_s, now_s) for each in late
            )

    def close(self) -> None:
        """Send what is left."""
        self._stamps.flush()
        self._nudges.flush()
        self._later.flush()
        self._outbox.close()
        self._events.close()
        self._wire.close()

    def _now_s(self) -> float:
        return float(self._celery.now().timestamp())

    def _report(self, events: Iterable[TaskEvent]) -> None:
        if self._celery.conf.worker_send_task_events:
            for each in events:
                self._outbox.put(each)

    def _send_all(self, sendings: list[Any]) -> None:
        for task, arguments in sendings:
            self.send(task, **dict(arguments))

    def _send_refills(self, profiles: list[Any]) -> None:
        for profile in profiles:
            self.send("pool.refill", profile=profile)

    def _send_stamps(self, workers: list[Any]) -> None:
        for sending in stamps(workers):
            self._outbox.put(sending)

    def _deal(self, things: list[Any]) -> None:
        self._publish([thing for thing in things if isinstance(thing, Sending)])
        self._events.send([thing for thing in things if isinstance(thing, TaskEvent)])

    def _publish(self, sendings: Sequence[Sending]) -> None:
        queues: dict[str, list[str]] = defaultdict(list)
        for sending in sendings:
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
            except Exception as exc:  # noqa: BLE001 - the other messages must still be sent
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
                # The connection may be stale. Each of these tasks may run twice.
                self._wire.ask(*commands)
        except (RedisError, OSError) as exc:
            log.warning("tasks_not_sent", tasks=sorted({s.task for s in sendings}), cause=str(exc))


def stamps(workers: Sequence[str]) -> list[Sending]:
    """Return the messages that stamp these workers, up to `STAMPS_A_MESSAGE` in each."""
    some = [workers[i : i + STAMPS_A_MESSAGE] for i in range(0, len(workers), STAMPS_A_MESSAGE)]
    return [
        Sending(_STAMP, {"worker_id": first, **({"others": others} if others else {})})
        for first, *others in some
    ]
