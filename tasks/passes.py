"""The passes as tasks. They never retry: the next tick is the retry. A pass that keeps failing is
reported and harms no other; the process exits only when none of its passes can run.
"""

from __future__ import annotations

from typing import Any

import structlog
from celery import Task
from celery.worker import state as celery_state

from pool.core.errors import PoolError
from pool.core.ids import ProfileName
from pool.lifecycle import item_errors
from pool.passes import PASSES, Pass, refill_once, run_once
from pool.store import passes
from tasks.app import app
from tasks.options import INTERNAL
from tasks.worker import ticks

log = structlog.get_logger(__name__)


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
            app.failing.succeeded(what.name)
        return report

    return tick


def _failed(what: Pass, exc: Exception) -> None:
    cause = item_errors.cause_of(exc)
    log.exception("pass_raised", name=what.name, in_a_row=app.failing.raised(what.name, cause))
    if app.failing.keeps_raising(what.name):
        log.error("pass_keeps_raising", name=what.name, cause=cause)
    if not app.stopping.is_set() and (causes := app.failing.none_can_run(_paused)):
        app.stopping.set()
        log.critical("no_pass_can_run", **causes)
        celery_state.should_stop = 1  # type: ignore[assignment]


def _paused() -> set[str]:
    """Return the passes that an operator has paused; none if the table cannot be read."""
    try:
        with app.deps.store.read() as tx:
            return {name for name, row in passes.every(tx).items() if row.paused}
    except Exception:  # noqa: BLE001 - a table that cannot be read is why passes fail
        return set()


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
