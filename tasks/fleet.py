"""Internal tasks for one worker. A failure is logged and left to a pass: the table shows what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog
from celery.exceptions import Reject

from pool.core.errors import Transient
from pool.core.ids import ClaimId, WorkerId
from pool.core.records import Held
from pool.lifecycle import activating, retiring, spawning, stamping
from tasks.app import app
from tasks.options import INTERNAL

log = structlog.get_logger(__name__)


@app.task(name="pool.spawn", autoretry_for=(), **INTERNAL)
def spawn(worker_id: str, handed_on: int = 0) -> str:
    """Create the pod of a slot. `handed_on` counts the processes with another configuration."""
    if app.stopping.is_set():
        raise Reject("stopping: another worker creates this pod", requeue=True)
    return str(_left_to_the_pass(lambda: spawning.spawn(app.deps, WorkerId(worker_id), handed_on)))


@app.task(name="pool.retire", **INTERNAL)
def retire(worker_id: str) -> str:
    """Delete the pod of a draining worker."""
    return str(_left_to_the_pass(lambda: retiring.retire(app.deps, WorkerId(worker_id))))


@app.task(name="pool.activate", **INTERNAL)
def activate(worker_id: str, claim_id: str, epoch: int) -> str:
    """Activate a reserved worker for its claim."""
    held = Held(worker_id=WorkerId(worker_id), claim_id=ClaimId(claim_id), epoch=epoch)
    return str(_left_to_the_pass(lambda: activating.activate(app.deps, held)))


@app.task(name="pool.stamp", **INTERNAL)
def stamp(worker_id: str, others: Sequence[str] = ()) -> list[str]:
    """Write the state of the rows into the metadata of their pods."""
    return [
        str(_left_to_the_pass(partial(stamping.stamp, app.deps, WorkerId(each))))
        for each in (worker_id, *others)
    ]


def _left_to_the_pass(call: Any) -> Any:
    try:
        return call()
    except Transient as exc:
        log.warning("left_to_the_pass", cause=str(exc))
        return "transient"
