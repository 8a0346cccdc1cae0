"""Decide which messages are served: within bounds, from an authenticated sender, and not served
before. The others are dropped or refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from redis.exceptions import RedisError

from tasks.lane.authenticator import Authenticator
from tasks.lane.dropping import Dropped
from tasks.lane.exchange import Delivery, Taken, TaskReply
from tasks.lane.mailbox import Mailbox
from tasks.lane.messages import DropReason, read
from tasks.lane.proving import Unproven

log = structlog.get_logger(__name__)


class Admission:
    """Holds the messages of a delivery until the broker was queried for their nonces. One that
    fails does not affect the others.
    """

    def __init__(
        self, mailbox: Mailbox, authenticator: Authenticator, dropped: Dropped, limit_bytes: int
    ) -> None:
        self._mailbox = mailbox
        self._authenticator = authenticator
        self._dropped = dropped
        self._limit_bytes = limit_bytes
        self._held: list[Taken] = []
        self._suspects: list[Taken] = []

    @property
    def is_holding(self) -> bool:
        """Whether messages are held. No further messages may be taken before they are served."""
        return bool(self._held or self._suspects)

    @property
    def held(self) -> Sequence[Taken]:
        return [*self._held, *self._suspects]

    def admit(self, came: Delivery) -> list[TaskReply]:
        """Hold the messages that may be served. Return the replies to the refused ones."""
        refused: list[TaskReply] = []
        self._dropped.add(DropReason.TOO_LARGE, came.too_large)
        self._dropped.flush()
        for raw in came.messages:
            try:
                if reply := self._admit(raw, came.now_s):
                    refused.append(reply)
            except Exception:  # one message must not affect the others
                log.exception("message_not_read")
                self._dropped.add(DropReason.ERROR)
        return refused

    def unspent(self, replies: list[TaskReply]) -> list[Taken]:
        """Return the messages that may be served, and add the replies to the others.

        If the broker cannot be queried for the nonces, this raises and the messages stay held.
        Unsigned requests have no nonces.
        """
        if not self._held and self._suspects:
            self._held.append(self._suspects.pop())
        if not self._held:
            return []
        spent: dict[str, str] = {}
        try:
            spent = self._mailbox.keep(self._held)
        except (RedisError, OSError) as exc:
            if self._authenticator.is_on:
                raise
            log.warning("messages_not_kept", count=len(self._held), cause=str(exc))
        except Exception:  # only the one that fails is dropped
            log.exception("messages_not_kept", count=len(self._held))
            self._suspect()
            return []
        taken, self._held = self._held, []
        fresh, refused = self._authenticator.unspent(taken, spent)
        replies += refused
        return fresh

    def _admit(self, raw: bytes, now_s: float) -> TaskReply | None:
        message = read(raw, self._limit_bytes)
        if isinstance(message, DropReason):
            self._dropped.add(message)
            return None
        if self._authenticator.is_forged(message):
            self._dropped.add(DropReason.NOT_INTERNAL)
            return None
        proven = self._authenticator.proven(message, now_s)
        if isinstance(proven, Unproven):
            return self._authenticator.refused(Taken(message=message), proven)
        if message.refusal:
            return TaskReply.invalid(Taken(message=message, proven=proven), message.refusal)
        self._held.append(self._mailbox.tagged(message, proven))
        return None

    def _suspect(self) -> None:
        """Retry messages that failed together one at a time. One that fails by itself is dropped."""
        if len(self._held) == 1:
            self._dropped.add(DropReason.ERROR)
        else:
            self._suspects += self._held
        self._held = []
