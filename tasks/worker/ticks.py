"""How old a tick is. Beat writes the broker's time into it and whoever takes it asks the broker again: one clock, neither of theirs. Celery's own
`expires` is an absolute time of beat's clock, read against the worker's; with one of the two wrong, every tick would be dropped."""

from __future__ import annotations

from typing import Any

import structlog
from redis.exceptions import RedisError

from pool.core.periods import tick_expires_s

log = structlog.get_logger(__name__)

HEADER = "warmpool_sent_s"


def broker_time_s(backend: Any) -> float:
    """The broker's clock."""
    seconds, microseconds = backend.client.time()
    return float(seconds) + float(microseconds) / 1e6


def is_stale(backend: Any, name: str, headers: Any) -> bool:
    """Whether this tick lay in the queue for so long that running it is not worth while. One that does not say when it was sent is run: the table
    knows whether its pass is due."""
    sent_s = headers.get(HEADER) if isinstance(headers, dict) else None
    if not isinstance(sent_s, int | float):
        return False
    try:
        age_s = broker_time_s(backend) - sent_s
    except (RedisError, OSError) as exc:
        log.warning("age_of_tick_unknown", name=name, cause=str(exc))
        return False
    if age_s <= tick_expires_s(name):
        return False
    log.info("tick_expired", name=name, age_s=round(age_s, 1))
    return True
