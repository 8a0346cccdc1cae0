"""One bad item never costs another: what to do with a single item that failed for good. It is counted and logged, in bounded words, and the
rest goes on. An outage (`Transient`) is no matter of one item and does not come here."""

from __future__ import annotations

import structlog

from pool.core.errors import Refused
from pool.metrics import Metrics
from pool.metrics.catalog import Item

log = structlog.get_logger(__name__)

_LONGEST = 300


def left_out(metrics: Metrics, item: Item, name: object, exc: Exception) -> str:
    """Count and log an item that is left out; its cause in bounded words. What was not refused on purpose is a bug and is logged as one."""
    metrics.items_left_out.labels(str(item)).inc()
    cause = cause_of(exc)
    told = log.warning if isinstance(exc, Refused) else log.error
    told("item_left_out", item=str(item), name=str(name)[:_LONGEST], cause=cause)
    return cause


def cause_of(exc: Exception) -> str:
    """Why, in bounded words that can be written anywhere."""
    text = str(exc) if isinstance(exc, Refused) else f"{type(exc).__name__}: {exc}"
    return text.encode(errors="backslashreplace").decode()[:_LONGEST]
