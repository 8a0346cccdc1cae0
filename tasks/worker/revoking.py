"""Celery's `revoke` of a waiting acquire cancels it, as `pool.cancel` does.

A revoke names no org and carries no signature, so with signed requests it has no effect: there
`pool.cancel` is the way. Every acquire worker gets every revoke; all but the first find nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from celery.worker.control import Panel

from pool.core.contract import Cancel
from pool.lifecycle import claiming
from pool.lifecycle.deps import Deps
from pool.metrics.catalog import Item
from pool.store import requests
from tasks.background import Gathering, Timers
from tasks.lane.bounds import is_name

log = structlog.get_logger(__name__)

WITHIN_S = 0.1
# The most task ids of one revoke that are looked for.
MOST = 100


class Revoking:
    """Cancels the waiting requests of revoked tasks. Any thread may add."""

    def __init__(self, deps: Deps, timers: Timers) -> None:
        self._deps = deps
        self._gathering = Gathering(timers, WITHIN_S, self._cancel, item=Item.TIMER)

    def add(self, given: object) -> None:
        ids = given if isinstance(given, list | tuple | set) else [given]
        for task_id in [each for each in ids if is_name(each)][:MOST]:
            self._gathering.add(task_id)

    def _cancel(self, task_ids: list[Any]) -> None:
        for some in (task_ids[at : at + MOST] for at in range(0, len(task_ids), MOST)):
            with self._deps.store.read() as tx:
                found = requests.waiting_for_tasks(tx, some)
            for org, request_id in found:
                answer = claiming.cancel(self._deps, Cancel(org=org, request_id=request_id))
                log.info("request_revoked", org=org, request_id=request_id, **answer)


def listen(revoking: Revoking) -> None:
    """Take Celery's remote command `revoke`, beside what Celery does with it."""
    celerys: Callable[..., Any] = Panel.data["revoke"]

    def revoke(state: Any, task_id: Any, *args: Any, **kwargs: Any) -> Any:
        revoking.add(task_id)
        return celerys(state, task_id, *args, **kwargs)

    Panel.data["revoke"] = revoke
