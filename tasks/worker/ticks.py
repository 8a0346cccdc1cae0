"""The age of a tick. Beat adds the broker's time to it, and the worker compares it with the
broker's time: one clock.

Celery's own `expires` is an absolute time of beat's clock, compared with the worker's clock. If one
of them is wrong, every tick would be dropped.
"""

from __future__ import annotations

from typing import Any

import structlog
from redis.exceptions import RedisError

from pool.core.periods import tick_expires_s

log = structlog.get_logger(__name__)

HEADER = "warmpool_sent_s"


def broker_time_s(backend: Any) -> float:
    """Return the time of the broker's clock."""
    seconds, microseconds = backend.client.time()
    return float(seconds) + float(microseconds) / 1e6


def is_stale(backend: Any, name: str, headers: Any) -> bool:
    """Return whether this tick is too old to run. A tick without a time is run: the table shows
    whether its pass is due.
    """
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
