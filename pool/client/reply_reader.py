"""The connection that pops answers from the reply list. Only one thread at a time may use it.

A thread may stop waiting while its BLPOP is pending, and another thread may continue. So a thread
that is interrupted while it waits loses no answers of other callers. Only an interrupt in the
middle of a read can lose an answer; then the message is sent again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from pool.client.identity import Identity
from pool.client.wire import ReplyWire
from pool.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    import redis

log = logging.getLogger("warmpool.client")

# Timeout of the BLPOP. It is short so that a connection that died silently is noticed.
BLOCK_S = 2
READ_TIMEOUT_S = BLOCK_S + 3.0
# Number of further answers to pop together with the first.
MORE = 100


class ReplyReader:
    """Read answers from the reply list. Raises the errors of redis-py, and `TimeoutError`."""

    def __init__(self, client: redis.Redis, identity: Identity, refusal: type[Exception]) -> None:
        """Create a reader. `refusal` is the error that redis-py raises for a command that Redis denies."""
        self._wire = ReplyWire(client)
        self._queue = identity.queue
        self._pop = ("BLPOP", identity.reply_to, BLOCK_S)
        self._rest = ("LPOP", identity.reply_to, MORE)
        self._refusal = refusal
        self._clock: Clock = SystemClock()
        self._overdue_at = 0.0
        self._popping = False
        self._popping_rest = False
        self._may_have_rest = True

    @property
    def is_listening(self) -> bool:
        """Whether a BLPOP is pending on an open connection."""
        return self._popping and self._wire.is_open

    def publish(self, message: str, within_s: float) -> None:
        """Publish a message and start a BLPOP in one round trip."""
        self._popping = False
        try:
            self._wire.send(("LPUSH", self._queue, message), self._pop)
            if not self._wire.ready(within_s):
                self._give_up()
            self._wire.read()
            self._listens(for_rest=False)
        except BaseException:
            self._wire.drop()
            raise

    def next(self, within_s: float, *, many: bool) -> list[bytes]:
        """Return the next answers, or none after `within_s`. With `many`, pop all that have arrived."""
        if not self.is_listening:
            self._start_pop(for_rest=many and self._may_have_rest)
        if not self._wire.ready(within_s):
            if self._clock.monotonic() > self._overdue_at:
                self._give_up()
            return []
        try:
            first = self._wire.read()
            rest = self._read_rest() if self._popping_rest else None
        except BaseException:
            self._wire.drop()
            raise
        self._popping = False
        return [*([first[1]] if first else ()), *(rest or ())]

    def close(self) -> None:
        self._wire.close()

    def _start_pop(self, *, for_rest: bool) -> None:
        try:
            self._wire.send(*((self._pop, self._rest) if for_rest else (self._pop,)))
            self._listens(for_rest=for_rest)
        except BaseException:
            self._wire.drop()
            raise

    def _read_rest(self) -> list[bytes] | None:
        """Return the further answers. If this fails, the first one is still valid.

        An older ACL may not allow LPOP with a count; then answers are popped one at a time.
        """
        try:
            return cast("list[bytes] | None", self._wire.read())
        except self._refusal:
            self._may_have_rest = False
        except Exception as exc:  # noqa: BLE001 - the connection is closed, and the next read notices it
            log.debug("answers_cut_short cause=%s", exc)
        return None

    def _listens(self, *, for_rest: bool) -> None:
        self._popping, self._popping_rest = True, for_rest
        self._overdue_at = self._clock.monotonic() + READ_TIMEOUT_S

    def _give_up(self) -> None:
        self._wire.drop()
        raise TimeoutError
