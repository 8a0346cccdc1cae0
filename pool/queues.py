"""The broker as the exporter sees it: how much waits in each queue."""

from __future__ import annotations

from collections.abc import Mapping

from redis import Redis
from redis.exceptions import RedisError

from pool.errors import Transient

# Celery's queues are lists of these names.
QUEUES = ("acquire", "fleet", "bind", "passes")


class Queues:
    """Looks."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def look(self) -> Mapping[str, int]:
        """The length of each; `Transient` if Redis can not be asked."""
        try:
            pipe = self._redis.pipeline(transaction=False)
            for name in QUEUES:
                pipe.llen(name)
            return dict(zip(QUEUES, pipe.execute(), strict=True))
        except RedisError as exc:
            raise Transient(f"redis: {exc}") from exc
