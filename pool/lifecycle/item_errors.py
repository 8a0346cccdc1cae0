"""Handle a single item that failed, so that it does not affect others: count it, log it in bounded
text, and continue. An outage (`Transient`) affects all items and is not handled here.
"""

from __future__ import annotations

import structlog

from pool.core.errors import Refused
from pool.metrics import Metrics
from pool.metrics.catalog import Item

log = structlog.get_logger(__name__)

_LONGEST = 300


def record_skipped(metrics: Metrics, item: Item, name: object, exc: Exception) -> str:
    """Count and log an item that is skipped, and return the cause in bounded text.

    An error that is not a refusal is a bug and is logged as an error.
    """
    metrics.items_left_out.labels(str(item)).inc()
    cause = cause_of(exc)
    write = log.warning if isinstance(exc, Refused) else log.error
    write("item_left_out", item=str(item), name=str(name)[:_LONGEST], cause=cause)
    return cause


def cause_of(exc: Exception) -> str:
    """Return the cause in bounded text that can be written anywhere."""
    text = str(exc) if isinstance(exc, Refused) else f"{type(exc).__name__}: {exc}"
    return text.encode(errors="backslashreplace").decode()[:_LONGEST]
