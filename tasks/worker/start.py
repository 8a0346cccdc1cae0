"""What a worker process does beside its tasks: observe the cluster, report liveness, and stop in order.

It touches no pod when it starts or stops: pods belong to the table, not to processes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import structlog
from celery import bootsteps, signals

from pool.config import logs
from pool.core.errors import Refused, Transient
from pool.core.names import ACQUIRE, BIND, FLEET, PASSES
from pool.lifecycle import observing
from pool.passes import fallback
from tasks.app import app
from tasks.routes import ROUTES
from tasks.worker.liveness import Liveness, others_answer

log = structlog.get_logger(__name__)

_JOIN_S = 5.0


class LaneStep(bootsteps.StartStopStep):
    """Runs the lane in an acquire worker. The lane has its own connection, so it is started once
    and keeps running while Celery's consumer reconnects.
    """

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._is_started = False

    def include_if(self, parent: Any) -> bool:  # noqa: ARG002
        return app.role == ACQUIRE

    def start(self, parent: Any) -> None:  # noqa: ARG002
        if not self._is_started:
            from tasks.worker import building

            self._is_started = True
            building.start_lane(app)


class LivenessStep(bootsteps.StartStopStep):
    """Touches the liveness file from the loop of the consumer."""

    # It starts when the worker consumes. Without this, Celery may start it before the connection
    # exists.
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._liveness = Liveness(app.watched, app.stopping, partial(others_answer, app.settings))
        self._liveness.watch()

    def start(self, parent: Any) -> None:
        self._liveness.consume(parent.timer)


app.steps["consumer"].add(LaneStep)
app.steps["consumer"].add(LivenessStep)


@signals.setup_logging.connect
def _logging(**_: Any) -> None:
    logs.set_up()


@signals.worker_init.connect
def _started(**_: Any) -> None:
    deps = app.deps
    log.info("worker_starting", role=app.role, who=deps.who)
    if app.role == FLEET:
        _begin("observer", lambda: observing.follow(deps, app.stopping))
        _begin("fallback", lambda: fallback.watch_over(deps, app.stopping))
    elif app.role == BIND and app.settings.pool.driver == "kubernetes":
        _begin("pod cache", _keep_cache)
    elif app.role == PASSES:
        _begin("pod cache", _keep_cache)
        _begin("preflight", _look_around)


@signals.task_postrun.connect
def _ran(task: Any = None, state: Any = None, **_: Any) -> None:
    name = str(getattr(task, "name", ""))
    app.deps.metrics.tasks.labels(ROUTES.get(name, ""), name, str(state or "ignored").lower()).inc()


@signals.worker_shutting_down.connect
def _stop(sig: Any = None, how: Any = None, exitcode: Any = None, **_: Any) -> None:
    log.info("worker_stopping", role=app.role, signal=sig, how=str(how), exit_code=exitcode)
    app.stopping.set()


@signals.worker_shutdown.connect
def _ended(**_: Any) -> None:
    app.stopping.set()
    app.closing.close()
    app.pool_broker.close()
    app.deps.close()
    log.info("worker_stopped", role=app.role)


def _begin(name: str, target: Any) -> None:
    app.closing.callback(app.watched.start(name, target, stop=app.stopping).join, _JOIN_S)


def _look_around() -> None:
    """Log problems of the environment, in a thread beside the work; then follow what may change."""
    from pool.ops.doctor import ceiling, starting

    starting.log_limits(app.settings)
    starting.log_start_checks(app.settings)
    ceiling.follow(app.settings, app.stopping)


def _keep_cache() -> None:
    """Follow the watch, to keep the driver's cache fresh for passes and stamps."""
    deps = app.deps
    while not app.stopping.is_set():
        try:
            for _ in deps.driver.watch(app.stopping):
                pass
        except (Transient, Refused) as exc:
            log.warning("watch_interrupted", cause=str(exc))
            deps.clock.wait(app.stopping, 1.0)
