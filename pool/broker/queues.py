"""The lengths of the queues, for the exporter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from redis import Redis
from redis.exceptions import RedisError

from pool.core.errors import Transient
from pool.core.names import QUEUES


def no_more() -> Sequence[str]:
    return ()


class Queues:
    """Reads queue lengths. Messages in queues of single orgs count as messages in `acquire`."""

    def __init__(self, redis: Redis, of_orgs: Callable[[], Sequence[str]] = no_more) -> None:
        self._redis = redis
        self._of_orgs = of_orgs

    def look(self) -> Mapping[str, int]:
        """Return the length of each queue; `Transient` if Redis does not answer."""
        more = self._of_orgs()
        try:
            pipe = self._redis.pipeline(transaction=False)
            for name in (*QUEUES, *more):
                pipe.llen(name)
            lengths = pipe.execute()
        except RedisError as exc:
            raise Transient(f"redis: {exc}") from exc
        known = lengths[: len(QUEUES)]
        return dict(zip(QUEUES, [known[0] + sum(lengths[len(QUEUES) :]), *known[1:]], strict=True))
