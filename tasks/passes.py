"""The passes as tasks. They never retry: the next tick is the retry. A pass that keeps failing
stops its process; the cause is logged.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import structlog
from celery import Task
from celery.worker import state as celery_state

from pool.core.errors import PoolError
from pool.core.ids import ProfileName
from pool.passes import PASSES, Pass, refill_once, run_once
from tasks.app import app
from tasks.options import INTERNAL
from tasks.worker import ticks

log = structlog.get_logger(__name__)
_failures: Counter[str] = Counter()


def _tick(what: Pass) -> Any:
    @app.task(name=f"pool.{what.name}", bind=True, **INTERNAL)
    def tick(self: Task[Any, Any]) -> dict[str, Any]:
        if ticks.is_stale(app.backend, what.name, self.request.headers):
            return {"pass": what.name, "outcome": "expired"}
        try:
            report = run_once(app.deps, what, stopping=app.stopping.is_set)
        except Exception as exc:
            _failed(what, exc)
            raise
        if report["outcome"] == "ok":
            _failures.pop(what.name, None)
        return report

    return tick


def _failed(what: Pass, exc: Exception) -> None:
    _failures[what.name] += 1
    log.exception("pass_raised", name=what.name, in_a_row=_failures[what.name])
    if _failures[what.name] >= app.settings.pool.pass_failures_limit:
        log.critical("pass_keeps_raising", name=what.name, cause=str(exc))
        celery_state.should_stop = 1  # type: ignore[assignment]


TICKS = {name: _tick(what) for name, what in PASSES.items()}


@app.task(name="pool.refill", **INTERNAL)
def refill(profile: str) -> dict[str, Any]:
    """Refill a profile now instead of at the next tick, because a warm worker was taken or missing."""
    if app.stopping.is_set():
        return {"outcome": "stopping"}
    try:
        return refill_once(app.deps, ProfileName(profile))
    except PoolError as exc:
        log.warning("refill_left_to_the_pass", profile=profile, cause=str(exc))
        return {"outcome": "failed", "cause": str(exc)}
