"""A message in the lane, from taking it to the reply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pool.core.contract import RefusedAnswer
from pool.core.records import ReplyTo
from pool.core.states import Reason
from pool.lifecycle.effects import Effects
from tasks.lane.messages import IncomingMessage
from tasks.lane.proving import NOT_SIGNED, Proven
from tasks.lane.replies import Answered


class Received(NamedTuple):
    """A message as it came. The tag is the name under which the broker keeps it until it is
    acknowledged; empty if its sender sends it again by itself."""

    raw: bytes
    tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The messages of one take, the number dropped for their size, the broker's time, and that of this
    host's monotonic clock."""

    messages: list[Received]
    now_s: float
    taken_s: float = 0.0
    too_large: int = 0


NOTHING = Delivery(messages=[], now_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A message that this process has taken, with the tag of its `Received`, and since when."""

    message: IncomingMessage
    tag: str = ""
    proven: Proven = NOT_SIGNED
    taken_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    """How Celery ends a task that has no answer: the state and the exception."""

    state: str
    exc: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReply:
    """The reply to one message.

    With neither answer nor failure the message is only acknowledged: the answer comes later, or
    none is wanted. A `spare` reply does not replace a result that exists.
    """

    taken: Taken
    answer: Answered | None = None
    failure: Failure | None = None
    spare: bool = False

    @classmethod
    def invalid(cls, taken: Taken, objection: str) -> TaskReply:
        answer = RefusedAnswer(reason=Reason.INVALID, detail=objection)
        return cls(taken=taken, answer=Answered(answer.as_dict()))

    @property
    def is_open(self) -> bool:
        """Whether its caller still needs an answer."""
        return self.answer is None and self.failure is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateReply:
    """An answer to a call that was taken earlier, by this process or another."""

    to: ReplyTo
    answer: Answered


@dataclass(slots=True, kw_only=True)
class Replies:
    """The result of one delivery: replies to it, late replies to waiters, and the effects, which
    are sent after the replies.

    `outage` is set if the messages are held because the broker could not be queried for their
    nonces.
    """

    now: list[TaskReply]
    late: list[LateReply] = field(default_factory=list)
    effects: Effects = field(default_factory=Effects)
    outage: Exception | None = None
