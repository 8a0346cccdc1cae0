"""The connection that pops answers from the reply list. One thread at a time uses it.

While an answer is waited for it may be left and taken up again by another thread: the question to Redis stays open. So whoever is
interrupted while he waits loses nothing for the others. Only if he is interrupted in the very moment in which he reads, an answer may be lost;
then it is asked for again.
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

# A blocked read comes back so often, to notice a connection that has died without a word.
BLOCK_S = 5
READ_TIMEOUT_S = BLOCK_S + 5.0
# So many more are taken together with the one that was waited for.
MORE = 100


class Ear:
    """Raises what redis-py raises, and `TimeoutError`."""

    def __init__(self, client: redis.Redis, identity: Identity, refusal: type[Exception]) -> None:
        """`refusal` is raised for what Redis does not do, for this user or at all."""
        self._wire = ReplyWire(client)
        self._queue = identity.queue
        self._pop = ("BLPOP", identity.reply_to, BLOCK_S)
        self._rest = ("LPOP", identity.reply_to, MORE)
        self._refusal = refusal
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
        """The next answers, none if none came so soon. With `many` all that have come together, if it was so asked."""
        if not self.is_listening:
            self._ask(for_rest=many and self._may_have_rest)
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

    def _ask(self, *, for_rest: bool) -> None:
        try:
            self._wire.send(*((self._pop, self._rest) if for_rest else (self._pop,)))
            self._listens(for_rest=for_rest)
        except BaseException:
            self._wire.drop()
            raise

    def _read_rest(self) -> list[bytes] | None:
        """Whatever is wrong with the others, the first is here. An ACL of before may lack the right to take several; then they come one at a time."""
        try:
            return cast("list[bytes] | None", self._wire.read())
        except self._refusal:
            self._may_have_rest = False
        except Exception as exc:  # noqa: BLE001 - the connection is gone, which the next to read finds out
            log.debug("answers_cut_short cause=%s", exc)
        return None

    def _listens(self, *, for_rest: bool) -> None:
        self._asked, self._asked_for_rest = True, for_rest
        self._overdue_at = self._clock.monotonic() + READ_TIMEOUT_S

    def _give_up(self) -> None:
        self._wire.drop()
        raise TimeoutError
