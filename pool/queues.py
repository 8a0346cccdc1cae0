"""The broker as the exporter sees it: how much waits in each queue, and whether somebody has emptied it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from pool.errors import Transient

# Celery's queues are lists of these names.
QUEUES = ("acquire", "fleet", "bind", "passes")
# Nobody reads it but us; when it is gone, so is everything else that was there.
_MARK = "warmpool.mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look."""

    lengths: Mapping[str, int]
    emptied: int


class Queues:
    """Looks, and remembers that its mark was there."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._marked = False
        self._emptied = 0

    def look(self) -> Seen:
        """How it is now; `Transient` if Redis can not be asked."""
        try:
            pipe = self._redis.pipeline(transaction=False)
            for name in QUEUES:
                pipe.llen(name)
            pipe.set(_MARK, "1", nx=True)
            *lengths, set_anew = pipe.execute()
        except RedisError as exc:
            raise Transient(f"redis: {exc}") from exc
        return self._seen(lengths, set_anew)

    def _seen(self, lengths: list[Any], set_anew: Any) -> Seen:
        self._emptied += int(bool(set_anew) and self._marked)
        self._marked = True
        return Seen(lengths=dict(zip(QUEUES, lengths, strict=True)), emptied=self._emptied)
