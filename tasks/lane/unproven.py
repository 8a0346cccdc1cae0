"""Requests refused for their signature: counted at once, and written to the audit log in batches."""

from __future__ import annotations

from typing import Any

import structlog

from pool.lifecycle.deps import Deps
from pool.metrics.catalog import Item
from pool.store import audit
from pool.store.schema import REQUEST_REFUSED
from tasks.background import Gathering, Timers
from tasks.lane.proving import Unproven

log = structlog.get_logger(__name__)

WITHIN_S = 1.0
_MOST_NAMED = 5


class UnprovenLog:
    """Any thread may add."""

    def __init__(self, deps: Deps, timers: Timers) -> None:
        self._deps = deps
        self._gathering = Gathering(timers, WITHIN_S, self._write, item=Item.AUDIT_ENTRY)

    def add(self, refused: Unproven) -> None:
        self._deps.metrics.requests_unproven.labels(str(refused.trouble)).inc()
        self._gathering.add(refused)

    def flush(self) -> None:
        self._gathering.flush()

    def _write(self, refused: list[Any]) -> None:
        """Write a few of them in detail and the rest as a number, so that forged requests do not
        fill the database.
        """
        with self._deps.store.write() as tx:
            for each in refused[:_MOST_NAMED]:
                log.warning("request_refused", trouble=str(each.trouble), org=each.org, task=each.task)
                subject, who = f"org {each.org}" if each.org else "no org", f"unproven caller {each.origin}"
                audit.record(tx, REQUEST_REFUSED, subject, who=who, why=f"{each.task}: {each.detail}")
            if len(refused) > _MOST_NAMED:
                more = f"{len(refused) - _MOST_NAMED} more like these"
                audit.record(tx, REQUEST_REFUSED, "others", who=self._deps.who, why=more)
