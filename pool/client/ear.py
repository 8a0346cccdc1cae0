"""The connection that pops answers from the reply list. One thread at a time uses it.

While an answer is waited for it may be left and taken up again by another thread: the question to Redis stays open. So whoever is
interrupted while he waits loses nothing for the others. Only if he is interrupted in the very moment in which he reads, an answer may be lost;
then it is asked for again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pool.client.identity import Identity
from pool.client.wire import Wire
from pool.clock import Clock, SystemClock

if TYPE_CHECKING:
    import redis

# A blocked read comes back so often, to notice a connection that has died without a word.
BLOCK_S = 5
READ_TIMEOUT_S = BLOCK_S + 5.0
# So many more are taken together with the one that was waited for.
MORE = 100


class Ear:
    """Raises what redis-py raises, and `TimeoutError`."""

    def __init__(self, client: redis.Redis, identity: Identity, no_right: type[Exception]) -> None:
        """`no_right` is raised if this user may not do something."""
        self._wire = Wire(client)
        self._queue = identity.queue
        self._pop = ("BLPOP", identity.reply_to, BLOCK_S)
        self._rest = ("LPOP", identity.reply_to, MORE)
        self._no_right = no_right
        self._clock: Clock = SystemClock()
        self._overdue_at = 0.0
        self._asked = False
        self._asked_for_rest = False
        self._may_have_rest = True

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
        self._listens(for_rest=False)

    def next(self, within_s: float, *, many: bool) -> list[bytes]:
        """The next answers, none if none came so soon. With `many` all that have come together, if it was so asked."""
        if not self.is_listening:
            many = many and self._may_have_rest
            self._wire.send(*((self._pop, self._rest) if many else (self._pop,)))
            self._listens(for_rest=many)
        if not self._wire.ready(within_s):
            if self._clock.monotonic() > self._overdue_at:
                self._give_up()
            return []
        try:
            first = self._wire.read()
            rest = self._read_rest() if self._asked_for_rest else None
        except BaseException:
            self._wire.drop()
            raise
        self._asked = False
        return [*([first[1]] if first else ()), *(rest or ())]

    def close(self) -> None:
        self._wire.close()

    def _read_rest(self) -> list[bytes] | None:
        """An ACL of before may lack the right; then they come one at a time."""
        try:
            return cast("list[bytes] | None", self._wire.read())
        except self._no_right:
            self._may_have_rest = False
            return None

    def _listens(self, *, for_rest: bool) -> None:
        self._asked, self._asked_for_rest = True, for_rest
        self._overdue_at = self._clock.monotonic() + READ_TIMEOUT_S

    def _give_up(self) -> None:
        self._wire.drop()
        raise TimeoutError
