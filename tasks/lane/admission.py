"""Decide which messages are served: within bounds, from an authenticated sender, and not served
before. The others are dropped or refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from tasks.lane.authenticator import Authenticator
from tasks.lane.dropping import Dropped
from tasks.lane.exchange import Delivery, Received, Taken, TaskReply
from tasks.lane.followers import SIGNED
from tasks.lane.mailbox import Mailbox
from tasks.lane.messages import DropReason, IncomingMessage, read
from tasks.lane.proving import Unproven

log = structlog.get_logger(__name__)


class Admission:
    """Holds the messages of a delivery until the broker was queried for their nonces. A message that
    raises costs no other message its answer."""

    def __init__(
        self,
        mailbox: Mailbox,
        authenticator: Authenticator,
        dropped: Dropped,
        limit_bytes: int,
        follower_queues: Sequence[str] = (),
    ) -> None:
        self._follower_queues = follower_queues
        self._mailbox = mailbox
        self._authenticator = authenticator
        self._dropped = dropped
        self._limit_bytes = limit_bytes
        self._held: list[Taken] = []

    @property
    def held(self) -> Sequence[Taken]:
        """Messages that are still to be served. No more are taken until then."""
        return self._held

    def admit(self, came: Delivery) -> list[TaskReply]:
        """Hold the messages that may be served. Return the replies to the refused ones."""
        refused: list[TaskReply] = []
        self._dropped.add(DropReason.TOO_LARGE, came.too_large)
        self._dropped.flush()
        for each in came.messages:
            try:
                if reply := self._admit(each, came):
                    refused.append(reply)
            except Exception:  # the fault of one message costs no other
                log.exception("message_not_read")
                self._drop(each, DropReason.ERROR)
        return refused

    def unspent(self, replies: list[TaskReply]) -> list[Taken]:
        """Return those that may be served, and add the replies to the others. Raises `RedisError` or
        `OSError`, and holds them, while the broker cannot be queried for their nonces."""
        spent = self._mailbox.spent_nonces(self._held)
        taken, self._held = self._held, []
        fresh, refused = self._authenticator.unspent(taken, spent)
        replies += refused
        return fresh

    def _admit(self, each: Received, came: Delivery) -> TaskReply | None:
        message = read(each.raw, self._limit_bytes)
        if isinstance(message, DropReason):
            self._drop(each, message)
            return None
        if self._authenticator.is_forged(message):
            self._drop(each, DropReason.NOT_INTERNAL)
            return None
        if message.is_followed:
            message = self._followed(message)
        proven = self._authenticator.proven(message, came.now_s)
        if isinstance(proven, Unproven):
            return self._authenticator.refused(
                Taken(message=message, tag=each.tag, taken_s=came.taken_s), proven
            )
        taken = Taken(message=message, tag=each.tag, proven=proven, taken_s=came.taken_s)
        if message.refusal:
            return TaskReply.invalid(taken, message.refusal)
        self._held.append(taken)
        return None

    def _followed(self, message: IncomingMessage) -> IncomingMessage:
        """Return a message without what may not follow it. A signature does not cover what follows."""
        why = ""
        if self._authenticator.is_on:
            why = SIGNED
        elif message.followers is not None:
            why = message.followers.objection(self._follower_queues)
        return replace(message, followers=None, objection=why) if why else message

    def _drop(self, each: Received, why: DropReason) -> None:
        self._dropped.add(why)
        self._mailbox.forget(each)
