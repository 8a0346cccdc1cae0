"""Kombu's bookkeeping of unacknowledged messages, with the broker's clock.

Kombu uses the wall clock of the host. If a worker with a fast clock died, its messages would be
redelivered too late; and it would restore messages of other workers too early.
"""

from __future__ import annotations

from typing import Any

import structlog
from kombu.transport import redis
from kombu.transport.redis import Mutex, MutexHeld
from kombu.utils.json import dumps

from pool.core.clock import SystemClock

log = structlog.get_logger(__name__)

# Measured again at this interval, because the broker's clock may jump too.
MEASURED_EVERY_S = 30.0


class BrokerTimeQoS(redis.QoS):
    """One per channel, so that each connection measures the offset again."""

    channel: Any
    _vrestore_count: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock = SystemClock()
        self._offset_s = 0.0
        self._measured_at: float | None = None

    def append(self, message: Any, delivery_tag: str) -> None:
        delivery = message.delivery_info
        # In kombu's format, so that any worker can restore it.
        kept = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])  # noqa: SLF001
        with self.channel.conn_or_acquire() as client:
            pipe = client.pipeline()
            pipe.zadd(self.unacked_index_key, {delivery_tag: self._now_s(client)})
            pipe.hset(self.unacked_key, delivery_tag, kept)
            pipe.execute()
        # Skip kombu's own method, which would score it again.
        super(redis.QoS, self).append(message, delivery_tag)

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:
        self._vrestore_count += 1
        if (self._vrestore_count - 1) % (interval or 1):
            return
        with self.channel.conn_or_acquire() as client:
            self._measure(client)
            ceiling = self._now_s(client) - self.visibility_timeout
            window = {"offset": num and start, "num": num}
            try:
                with Mutex(client, self.unacked_mutex_key, self.unacked_mutex_expire):
                    for tag in client.zrange(
                        self.unacked_index_key, ceiling, 0, desc=True, byscore=True, **window
                    ):
                        self._restored(tag, client)
            except MutexHeld:
                pass

    def _restored(self, tag: Any, client: Any) -> None:
        """Restore one message. Drop one that cannot be decoded, so that it does not block the others."""
        try:
            self.restore_by_tag(tag, client)
        except self.channel.connection_errors:
            raise
        except Exception as exc:  # noqa: BLE001 - the decoder may raise anything
            log.warning(
                "unacknowledged_message_dropped",
                tag=str(tag)[:80],
                cause=f"{type(exc).__name__}: {exc}"[:200],
            )
            client.zrem(self.unacked_index_key, tag)
            client.hdel(self.unacked_key, tag)

    def _now_s(self, client: Any) -> float:
        """Return the broker's wall clock time."""
        if self._measured_at is None or self._clock.monotonic() - self._measured_at > MEASURED_EVERY_S:
            self._measure(client)
        return self._clock.monotonic() + self._offset_s

    def _measure(self, client: Any) -> None:
        seconds, microseconds = client.time()
        self._measured_at = self._clock.monotonic()
        self._offset_s = float(seconds) + float(microseconds) / 1e6 - self._measured_at
