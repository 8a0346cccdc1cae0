"""The state of one call: when to send it, when to send it again, and when to give up. Pure.

The session calls `step`, does what it returns, reports `sent` or `unsent`, and calls `step` again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from pool.client.calls import PendingCall
from pool.client.errors import AnswerOverdue, PoolClosed
from pool.client.messages import Message, ReplyMessage
from pool.core.backoff import Backoff
from pool.core.errors import PoolError, Transient

# Time after which an unanswered message is sent again. The contract makes sending twice harmless.
_RESEND = Backoff(first_s=2.0, factor=2.0, limit_s=10.0)
# Pauses between attempts to reach Redis. The number of tries only bounds the series; the deadline
# of the call ends the attempts.
_RECONNECT = Backoff(first_s=0.05, factor=2.0, limit_s=1.0, tries=1_000_000)


class Signal(Protocol):
    """An event of threading or of asyncio that wakes one waiter."""

    def set(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The retry intervals of a client."""

    # Time after which a first send that keeps failing raises: if the broker is down, the caller
    # must learn it soon.
    publish_s: float = 2.0
    resend: Backoff = _RESEND
    reconnect: Backoff = _RECONNECT


@dataclass(frozen=True, slots=True)
class Send:
    """Publish the message."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the signal, for at most this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Raise this error."""

    error: PoolError


Step = Send | Wait | GiveUp


class OpenCall:
    """A call that has a waiting caller and no answer yet."""

    def __init__(
        self, call: PendingCall, message: Message, signal: Signal, *, pace: Pace, now: float
    ) -> None:
        self.call = call
        self.message = message
        self.signal = signal
        self.answer: ReplyMessage | None = None
        self.closed = False
        self.sendings = 0
        self._begun = 0
        self._failed = 0
        self._pace = pace
        self._deadline = now + call.patience_s
        self._first_by = min(now + pace.publish_s, self._deadline)
        self._send_at = now
        self._trouble: PoolError | None = None
        self._hopeless: PoolError | None = None
        self._pauses: Iterator[float] = iter(())

    def step(self, now: float) -> Step:
        """Return what to do now."""
        if self.closed:
            return GiveUp(PoolClosed())
        if self._hopeless is not None:
            return GiveUp(self._hopeless)
        if not self.sendings:
            if self._trouble is not None and now >= self._first_by:
                return GiveUp(self._trouble)
            return self._send_or_wait(now, until=self._first_by)
        if now >= self._deadline:
            return GiveUp(self._overdue())
        return self._send_or_wait(now, until=self._deadline)

    @property
    def is_over(self) -> bool:
        """Whether no answer can arrive any more."""
        return self.closed or self._hopeless is not None

    def unreadable(self, error: PoolError) -> None:
        """Record that answers cannot be read. Give up if a retry does not help."""
        if not isinstance(error, Transient):
            self._hopeless = error

    @property
    def may_have_arrived(self) -> bool:
        """Whether a send may have reached Redis: it did not fail, or it was interrupted."""
        return self._begun > self._failed

    def sending(self, delivery_tag: str, more: Mapping[str, str]) -> str:
        """Return the encoded message, and count the attempt to send it."""
        self._begun += 1
        return self.message.encoded(delivery_tag, more)

    def sent(self, now: float) -> None:
        self.sendings += 1
        self._trouble = None
        self._send_at = now + self._pace.resend.nominal(self.sendings)

    def unsent(self, now: float, error: PoolError) -> None:
        self._failed += 1
        self.held_up(now, error)

    def held_up(self, now: float, error: PoolError) -> None:
        """Record that the message could not be sent, and schedule the next attempt."""
        self.unreadable(error)
        if self._trouble is None:
            self._pauses = self._pace.reconnect.pauses()
        self._trouble = error
        self._send_at = now + next(self._pauses, self._pace.reconnect.limit_s)

    def _send_or_wait(self, now: float, *, until: float) -> Step:
        return Send() if now >= self._send_at else Wait(max(0.0, min(self._send_at, until) - now))

    def _overdue(self) -> AnswerOverdue:
        trouble = f"; last error: {self._trouble}" if self._trouble else ""
        return AnswerOverdue(
            f"no answer to {self.call.task} within {self.call.patience_s:g} s"
            f" (sent {self.sendings} times){trouble}"
        )
