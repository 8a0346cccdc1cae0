"""The connections of a client to Redis: one to publish, one that listens on the reply list.

redis is imported when a link is made, not with this module: it takes longer to import than everything else together.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pool.client.ear import BLOCK_S, READ_TIMEOUT_S, Ear
from pool.client.errors import BrokerDown
from pool.client.identity import Identity
from pool.client.wire import ReplyWire
from pool.core.clock import wall_s

if TYPE_CHECKING:
    import redis

log = logging.getLogger("warmpool.client")

PUBLISH_TIMEOUT_S = 1.0
# What wakes a blocked reader that is to end; it expires if there is none.
WAKE_UP = "{}"
WAKE_UP_EXPIRES_S = 60


def redacted(url: str) -> str:
    """The address without its password; options go too, since one of them may be the password."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    user = f"{parts.username or ''}:***@" if parts.password else ""
    return f"{parts.scheme}://{user}{place}{parts.path}"


def options(identity: Identity) -> dict[str, Any]:
    """Connection options for both drivers."""
    return {
        "socket_connect_timeout": PUBLISH_TIMEOUT_S,
        "socket_keepalive": True,
        "client_name": f"warmpool.{identity.client_id}",
    }


def broken(doing: str, exc: Exception) -> BrokerDown:
    """The sentence for a caller; a timeout has no words of its own."""
    return BrokerDown(f"cannot {doing}: {str(exc) or 'it did not answer in time'}")


def host_s() -> float:
    """A signature then ends by a clock that may be wrong by minutes, and is refused if it is wrong by more."""
    log.warning("broker_time_unknown cause=%s", "this user may not ask for it; grant it the command TIME")
    return float(wall_s())


class _Bundle:
    """What one thread publishes at a time, and what became of it."""

    __slots__ = ("is_over", "messages", "trouble")

    def __init__(self, messages: tuple[str, ...]) -> None:
        self.messages = messages
        self.is_over = False
        self.trouble: Exception | None = None


class Link:
    """Blocking. Whatever goes wrong is `BrokerDown`."""

    def __init__(self, url: str, identity: Identity) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._errors = (redis.RedisError, OSError)
        self._slow = (redis.TimeoutError, TimeoutError)
        self._where = redacted(url)
        self._reply_to = identity.reply_to
        self._queue = identity.queue
        self._no_right = redis.exceptions.NoPermissionError

        def client(timeout_s: float, retries: int) -> redis.Redis:
            made = redis.Redis.from_url(url, retry=Retry(NoBackoff(), retries), **options(identity))
            # Set here, since an option in the URL would win and cut blocking reads short.
            made.connection_pool.connection_kwargs["socket_timeout"] = timeout_s
            return made

        # Retrying is ours, but for one go at a connection that has gone stale.
        self._writer = client(PUBLISH_TIMEOUT_S, 1)
        self._wire, self._wire_free = ReplyWire(client(PUBLISH_TIMEOUT_S, 0)), threading.RLock()
        self._wire_in_use = False
        self._gathered: deque[_Bundle] = deque()
        self._ear = Ear(client(READ_TIMEOUT_S, 0), identity, redis.ResponseError)

    def publish(self, *messages: str) -> None:
        """Any thread may. What several want to publish while the wire is in use leaves together, by whoever has it next."""
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
            raise broken(f"publish to {self._where}", bundle.trouble) from bundle.trouble

    def publish_and_listen(self, message: str) -> None:
        """For the thread that listens: what it asks, and that it listens, leave together."""
        if not self._ear.is_listening:
            try:
                self._ear.tell(message, PUBLISH_TIMEOUT_S)
            except self._slow as exc:
                raise broken(f"publish to {self._where}", exc) from exc
            except self._errors:
                pass  # it may have gone stale since it was last used: the other connection finds out
            else:
                return
        self.publish(message)

    def time_s(self) -> float:
        """The broker's clock; this host's, if the broker does not tell this user."""
        try:
            seconds, microseconds = self._writer.time()
        except self._no_right:
            return host_s()
        except self._errors as exc:
            raise broken(f"ask {self._where} for its time", exc) from exc
        return seconds + microseconds / 1e6

    def _publish_gathered(self, own: _Bundle) -> None:
        together: list[_Bundle] = []
        # Interrupted: whether the others' have left is not known, and they take it for not.
        trouble: Exception | None = ConnectionError("the thread that was publishing was interrupted")
        try:
            self._take_gathered(together)
            if own not in together:
                together.append(own)  # whoever took it before us was interrupted
            self._push([message for bundle in together for message in bundle.messages])
            trouble = None
        except self._errors as exc:
            trouble = exc
            if isinstance(exc, self._slow):
                self._take_gathered(together)  # they have waited as long, and would in their turn
        finally:
            for bundle in together:
                bundle.is_over, bundle.trouble = True, trouble

    def _take_gathered(self, into: list[_Bundle]) -> None:
        with contextlib.suppress(IndexError):
            while True:
                into.append(self._gathered.popleft())

    def _push(self, messages: list[str]) -> None:
        if self._wire_in_use:
            # By this very thread: a signal's handler has interrupted it.
            self._writer.lpush(self._queue, *messages)
            return
        self._wire_in_use = True
        try:
            self._wire.ask("LPUSH", self._queue, *messages)
        except self._slow:
            raise
        except self._errors:
            self._writer.lpush(self._queue, *messages)  # the wire may have gone stale since it was last used
        finally:
            self._wire_in_use = False

    def answers(self, within_s: float = BLOCK_S, *, many: bool = False) -> list[bytes]:
        """The next answers; none if none came for a while. One thread at a time; another may go on where it left off."""
        try:
            return self._ear.next(within_s, many=many)
        except self._errors as exc:
            raise broken(f"read answers from {self._where}", exc) from exc

    def wake_reader(self) -> None:
        try:
            with self._writer.pipeline(transaction=False) as pipe:
                pipe.rpush(self._reply_to, WAKE_UP)
                pipe.expire(self._reply_to, WAKE_UP_EXPIRES_S)
                pipe.execute()
        except self._errors as exc:
            raise broken(f"reach {self._where}", exc) from exc

    def close(self) -> None:
        self._writer.close()
        with self._wire_free:
            if not self._wire_in_use:
                self._wire.close()
        self._ear.close()
