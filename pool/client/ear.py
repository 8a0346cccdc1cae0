"""The connection that pops answers from the reply list. One thread at a time uses it.

While an answer is waited for it may be left and taken up again by another thread: the question to Redis stays open. So whoever is
interrupted while he waits loses nothing for the others. Only if he is interrupted in the very moment in which he reads, an answer may be lost;
then it is asked for again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pool.client.identity import Identity
from pool.client.wire import Wire
from pool.clock import Clock, SystemClock

if TYPE_CHECKING:
    import redis

# A blocked read comes back so often, to notice a connection that has died without a word.
BLOCK_S = 5
READ_TIMEOUT_S = BLOCK_S + 5.0


class Ear:
    """Raises what redis-py raises, and `TimeoutError`."""

    def __init__(self, client: redis.Redis, identity: Identity) -> None:
        self._wire = Wire(client)
        self._queue = identity.queue
        self._pop = ("BLPOP", identity.reply_to, BLOCK_S)
        self._clock: Clock = SystemClock()
        self._overdue_at = 0.0
        self._asked = False

    @property
    def is_listening(self) -> bool:
        """Whether Redis was asked for an answer over a connection that still stands."""
        return self._asked and self._wire.is_open

    def tell(self, message: str, within_s: float) -> None:
        """Publish a message and begin to listen, in one go."""
        self._asked = False
        self._wire.send(("LPUSH", self._queue, message), self._pop)
        try:
            if not self._wire.ready(within_s):
                self._give_up()
            self._wire.read()
        except BaseException:
            self._wire.drop()
            raise
        self._listens()

    def next(self, within_s: float) -> bytes | None:
        """The next answer; None if none came so soon."""
        if not self.is_listening:
            self._wire.send(self._pop)
            self._listens()
        if not self._wire.ready(within_s):
            if self._clock.monotonic() > self._overdue_at:
                self._give_up()
            return None
        popped = self._wire.read()
        self._asked = False
        return popped[1] if popped else None

    def close(self) -> None:
        self._wire.close()

    def _listens(self) -> None:
        self._asked = True
        self._overdue_at = self._clock.monotonic() + READ_TIMEOUT_S

    def _give_up(self) -> None:
        self._wire.drop()
        raise TimeoutError
