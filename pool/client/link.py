"""The connections of a client to Redis: one to publish, one to read the reply list.

redis is imported when a link is created: importing it takes longer than everything else together.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from pool.client.identity import Identity
from pool.client.reply_reader import BLOCK_S, READ_TIMEOUT_S, ReplyReader
from pool.client.trouble import Troubles
from pool.client.wire import ReplyWire
from pool.core.clock import SystemClock, wall_s

if TYPE_CHECKING:
    import redis

log = logging.getLogger("warmpool.client")

PUBLISH_TIMEOUT_S = 1.0
# Wakes a blocked reader that must end. It expires if there is no reader.
WAKE_UP = "{}"
WAKE_UP_EXPIRES_S = 60
# What a link does; an error begins with it.
PUBLISH, READ, TIME, WAKE = "publish to", "read answers from", "read the time of", "reach"


def options(identity: Identity) -> dict[str, Any]:
    """Return the connection options for threads and for asyncio."""
    return {
        "socket_connect_timeout": PUBLISH_TIMEOUT_S,
        "socket_keepalive": True,
        "client_name": f"warmpool.{identity.client_id}",
    }


def host_s() -> float:
    """Return the time of this host, as a fallback. If it is wrong by minutes, signatures are refused."""
    log.warning("broker_time_unknown cause=%s", "this Redis user may not call TIME; add +time to its ACL")
    return float(wall_s())


class _Bundle:
    """The messages of one publish call, and its result."""

    __slots__ = ("is_over", "messages", "trouble")

    def __init__(self, messages: tuple[str, ...]) -> None:
        self.messages = messages
        self.is_over = False
        self.trouble: Exception | None = None


class Link:
    """The blocking connections. Every failure is raised as one of `LINK_ERRORS`."""

    def __init__(self, url: str, identity: Identity) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        from pool.broker import connecting

        self._errors = (redis.RedisError, OSError)
        self._slow = (redis.TimeoutError, TimeoutError)
        self._troubles = Troubles(url, SystemClock())
        self._reply_to = identity.reply_to
        self._queue = identity.queue
        self._no_right = redis.exceptions.NoPermissionError

        def client(timeout_s: float, retries: int) -> redis.Redis:
            made = connecting.connect(url, retry=Retry(NoBackoff(), retries), **options(identity))
            # Set here, because an option in the URL would take precedence and end blocking reads
            # too early.
            made.connection_pool.connection_kwargs["socket_timeout"] = timeout_s
            return made

        # We retry ourselves. One retry remains here, for a connection that has become stale.
        self._writer = client(PUBLISH_TIMEOUT_S, 1)
        self._wire, self._wire_free = ReplyWire(client(PUBLISH_TIMEOUT_S, 0)), threading.RLock()
        self._wire_in_use = False
        self._gathered: deque[_Bundle] = deque()
        self._reply_reader = ReplyReader(client(READ_TIMEOUT_S, 0), identity, redis.ResponseError)

    def publish(self, *messages: str) -> None:
        """Publish messages. Safe to call from any thread.

        Messages of threads that wait for the connection are sent together by the next thread that
        gets it.
        """
        bundle = _Bundle(messages)
        self._gathered.append(bundle)
        try:
            with self._wire_free:
                if not bundle.is_over:
                    self._publish_gathered(bundle)
        except BaseException:
            with contextlib.suppress(ValueError):
                self._gathered.remove(bundle)
            raise
        if bundle.trouble is not None:
            raise self._troubles.of(PUBLISH, bundle.trouble) from bundle.trouble
        self._troubles.over(PUBLISH)

    def publish_and_listen(self, message: str) -> None:
        """Publish a message and start to listen, in one round trip. Only for the reading thread."""
        if not self._reply_reader.is_listening:
            try:
                self._reply_reader.publish(message, PUBLISH_TIMEOUT_S)
            except self._slow as exc:
                raise self._troubles.of(PUBLISH, exc) from exc
            except self._errors:
                pass  # the connection may be stale: try the other one
            else:
                self._troubles.over(PUBLISH)
                return
        self.publish(message)

    def time_s(self) -> float:
        """Return the time of the broker's clock; of this host's clock if the ACL denies TIME."""
        try:
            seconds, microseconds = self._writer.time()
        except self._no_right:
            return host_s()
        except self._errors as exc:
            raise self._troubles.of(TIME, exc) from exc
        self._troubles.over(TIME)
        return seconds + microseconds / 1e6

    def _publish_gathered(self, own: _Bundle) -> None:
        together: list[_Bundle] = []
        # The value after an interrupt: it is then unknown whether the messages were sent, and they
        # count as not sent.
        trouble: Exception | None = ConnectionError("the thread that was publishing was interrupted")
        try:
            self._take_gathered(together)
            if own not in together:
                together.append(own)  # the thread that took it was interrupted
            self._push([message for bundle in together for message in bundle.messages])
            trouble = None
        except self._errors as exc:
            trouble = exc
            if isinstance(exc, self._slow):
                self._take_gathered(together)  # they would run into the same timeout
        finally:
            for bundle in together:
                bundle.is_over, bundle.trouble = True, trouble

    def _take_gathered(self, into: list[_Bundle]) -> None:
        with contextlib.suppress(IndexError):
            while True:
                into.append(self._gathered.popleft())

    def _push(self, messages: list[str]) -> None:
        if self._wire_in_use:
            # This thread itself uses it: a signal handler has interrupted it.
            self._writer.lpush(self._queue, *messages)
            return
        self._wire_in_use = True
        try:
            self._wire.execute("LPUSH", self._queue, *messages)
        except self._slow:
            raise
        except self._errors:
            self._writer.lpush(self._queue, *messages)  # the connection may be stale
        finally:
            self._wire_in_use = False

    def answers(self, within_s: float = BLOCK_S, *, many: bool = False) -> list[bytes]:
        """Return the next answers, or none after `within_s`.

        Only one thread at a time may call it. Another thread may continue where it stopped.
        """
        try:
            found = self._reply_reader.next(within_s, many=many)
        except self._errors as exc:
            raise self._troubles.of(READ, exc) from exc
        self._troubles.over(READ)
        return found

    def wake_reader(self) -> None:
        try:
            with self._writer.pipeline(transaction=False) as pipe:
                pipe.rpush(self._reply_to, WAKE_UP)
                pipe.expire(self._reply_to, WAKE_UP_EXPIRES_S)
                pipe.execute()
        except self._errors as exc:
            raise self._troubles.of(WAKE, exc) from exc

    def close(self) -> None:
        self._writer.close()
        with self._wire_free:
            if not self._wire_in_use:
                self._wire.close()
        self._reply_reader.close()
