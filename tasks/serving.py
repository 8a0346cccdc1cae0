"""What a worker process does beside its tasks: follows the cluster, says that it is well, and ends in order. It touches no pod when it
starts or stops: nobody owns pods, the table does."""

from __future__ import annotations

import threading
from typing import Any

import structlog
from celery import bootsteps, signals
from celery.worker.consumer import Consumer

from pool import logs, observing
from pool.errors import Refused, Transient
from pool.passes import fallback
from pool.threads import WatchedThread
from tasks.app import app
from tasks.letters import Unread
from tasks.liveness import Liveness
from tasks.options import QUEUES, ROUTES

log = structlog.get_logger(__name__)

_threads: list[WatchedThread] = []


class PatientConsumer(Consumer):
    """A consumer that no message can end. Celery's own gives up on one whose parts are of the wrong shape, puts it back into the queue
    on its way out, and so ends every consumer after it as well.

    It serves the tasks of its own queue and no other; `tasks.transport` hands it only what the control plane has signed."""

    def update_strategies(self) -> None:
        super().update_strategies()
        if app.role in QUEUES:
            strategies: dict[str, Any] = self.strategies  # type: ignore[attr-defined]
            for foreign in [name for name in strategies if ROUTES.get(name) != app.role]:
                del strategies[foreign]

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
        received = super().create_task_handler(*args, **kwargs)

        def refuse_or_receive(message: Any) -> None:
            try:
                received(message)
            except self.connection_errors:  # type: ignore[attr-defined]
                raise
            except Exception as exc:  # noqa: BLE001 - whatever is wrong with it, it is one message
                app.dropped.add(Unread.ERROR, cause=f"{type(exc).__name__}: {exc}")
                message.reject_log_error(log, self.connection_errors)  # type: ignore[attr-defined]

        return refuse_or_receive


class LaneStep(bootsteps.StartStopStep):
    """Runs the lane in a worker that serves callers. It has a connection of its own, so that it is started once and goes on by itself
    while Celery's consumer connects again."""

    def include_if(self, parent: Any) -> bool:  # noqa: ARG002
        return app.role == "acquire"

    def start(self, parent: Any) -> None:  # noqa: ARG002
        if not app.lanes:
            from tasks.lane import Lane

            app.lanes.append(Lane(app))
            app.lanes[0].start()


app.steps["consumer"].add(LaneStep)
app.steps["consumer"].add(Liveness)


@signals.setup_logging.connect
def _logging(**_: Any) -> None:
    logs.set_up()


@signals.worker_init.connect
def _started(**_: Any) -> None:
    deps = app.deps
    log.info("worker_starting", role=app.role, who=deps.who)
    if app.role == "fleet":
        _begin("observer", lambda: observing.follow(deps, app.stopping))
        _begin("fallback", lambda: fallback.watch_over(deps, app.stopping))
    elif app.role == "passes":
        _begin("pod cache", _keep_cache)
        threading.Thread(target=_look_around, name="preflight", daemon=True).start()


@signals.task_postrun.connect
def _ran(task: Any = None, state: Any = None, **_: Any) -> None:
    name = str(getattr(task, "name", ""))
    app.deps.metrics.tasks.labels(ROUTES.get(name, ""), name, str(state or "ignored").lower()).inc()


@signals.worker_shutting_down.connect
def _told_to_end(sig: Any = None, how: Any = None, exitcode: Any = None, **_: Any) -> None:
    log.info("worker_stopping", role=app.role, signal=sig, how=str(how), exit_code=exitcode)
    app.stopping.set()


@signals.worker_shutdown.connect
def _ended(**_: Any) -> None:
    app.stopping.set()
    for thread in _threads:
        thread.join(5)
    for lane in app.lanes:
        lane.close()
    app.delivered.flush()
    if "unproven" in app.__dict__:
        app.unproven.flush()
    app.pool_broker.close()
    app.deps.close()
    log.info("worker_stopped", role=app.role)


def _begin(name: str, target: Any) -> None:
    _threads.append(app.watched.start(name, target, stop=app.stopping))


def _look_around() -> None:
    """What is wrong with the surroundings is told once, beside the work."""
    from pool.doctor import starting

    starting.look_around(app.settings)


def _keep_cache() -> None:
    """Passes read the driver's cache; following the watch is what keeps it fresh."""
    deps = app.deps
    while not app.stopping.is_set():
        try:
            for _ in deps.driver.watch(app.stopping):
                pass
        except (Transient, Refused) as exc:
            log.warning("watch_interrupted", cause=str(exc))
            deps.clock.wait(app.stopping, 1.0)
