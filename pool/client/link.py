"""The two connections of a client to Redis: one to publish, one that blocks on the reply list.

redis is imported when a link is made, not with this module: it takes longer to import than everything else together.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from pool.client.errors import BrokerDown
from pool.client.identity import Identity
from pool.clock import wall_s

if TYPE_CHECKING:
    import redis

log = logging.getLogger("warmpool.client")

PUBLISH_TIMEOUT_S = 1.0
# A blocked read comes back so often, to notice a connection that has died without a word.
BLOCK_S = 5
READ_TIMEOUT_S = BLOCK_S + 5.0
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


class Link:
    """Blocking. Whatever goes wrong is `BrokerDown`."""

    def __init__(self, url: str, identity: Identity) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._errors = (redis.RedisError, OSError)
        self._where = redacted(url)
        self._reply_to = identity.reply_to
        self._queue = identity.queue
        self._no_right = redis.exceptions.NoPermissionError

        def client(timeout_s: float, retries: int) -> redis.Redis:
            made = redis.Redis.from_url(url, retry=Retry(NoBackoff(), retries), **options(identity))
            # Set here, since an option in the URL would win and cut blocking reads short.
            made.connection_pool.connection_kwargs["socket_timeout"] = timeout_s
            return made

        # Retrying is ours, but for one go at a pooled connection that has gone stale.
        self._writer = client(PUBLISH_TIMEOUT_S, 1)
        self._reader = client(READ_TIMEOUT_S, 0)

    def publish(self, *messages: str) -> None:
        try:
            self._writer.lpush(self._queue, *messages)
        except self._errors as exc:
            raise broken(f"publish to {self._where}", exc) from exc

    def time_s(self) -> float:
        """The broker's clock; this host's, if the broker does not tell this user."""
        try:
            seconds, microseconds = self._writer.time()
        except self._no_right:
            return host_s()
        except self._errors as exc:
            raise broken(f"ask {self._where} for its time", exc) from exc
        return seconds + microseconds / 1e6

    def next_answer(self) -> bytes | None:
        """The next answer; None if none came for a while."""
        try:
            popped = cast("list[bytes] | None", self._reader.blpop([self._reply_to], timeout=BLOCK_S))
        except self._errors as exc:
            raise broken(f"read answers from {self._where}", exc) from exc
        return popped[1] if popped else None

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
        self._reader.close()
