"""Kombu's bookkeeping of unacknowledged messages, by the broker's clock. Kombu scores them with the host's time of day: a worker whose clock is fast, and
that dies, would leave its messages undelivered for as long as its clock was wrong, and one that restores them would take those of others too early."""

from __future__ import annotations

from typing import Any

import structlog
from kombu.transport import redis
from kombu.transport.redis import Mutex, MutexHeld
from kombu.utils.json import dumps

from pool.core.clock import SystemClock

log = structlog.get_logger(__name__)

# Measured again this often, since the broker's clock may step, too.
MEASURED_EVERY_S = 30.0


class BrokerTimeQoS(redis.QoS):
    """One a channel, so that each connection measures anew."""

    channel: Any
    _vrestore_count: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock = SystemClock()
        self._offset_s = 0.0
        self._measured_at: float | None = None

    def append(self, message: Any, delivery_tag: str) -> None:
        delivery = message.delivery_info
        # In kombu's own form: any of our workers restores it.
        kept = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])  # noqa: SLF001
        with self.channel.conn_or_acquire() as client:
            pipe = client.pipeline()
            pipe.zadd(self.unacked_index_key, {delivery_tag: self._now_s(client)})
            pipe.hset(self.unacked_key, delivery_tag, kept)
            pipe.execute()
        # Past kombu's own, which would score it again.
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
        """Restore one; one that cannot be read is dropped, and keeps no other from being restored."""
        try:
            self.restore_by_tag(tag, client)
        except self.channel.connection_errors:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever its frame makes the decoder raise
            log.warning(
                "unacknowledged_message_dropped",
                tag=str(tag)[:80],
                cause=f"{type(exc).__name__}: {exc}"[:200],
            )
            client.zrem(self.unacked_index_key, tag)
            client.hdel(self.unacked_key, tag)

    def _now_s(self, client: Any) -> float:
        """The broker's time of day."""
        if self._measured_at is None or self._clock.monotonic() - self._measured_at > MEASURED_EVERY_S:
            self._measure(client)
        return self._clock.monotonic() + self._offset_s

    def _measure(self, client: Any) -> None:
        seconds, microseconds = client.time()
        self._measured_at = self._clock.monotonic()
        self._offset_s = float(seconds) + float(microseconds) / 1e6 - self._measured_at
