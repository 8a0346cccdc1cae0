"""Stamp: make the pod's metadata say what the row says. Reads both, writes the difference against the version it read, and looks again
until they agree, so that whoever stamps last leaves the truth, however many stamp at once."""

from __future__ import annotations

import structlog

from pool.core.ids import WorkerId
from pool.core.records import By, SeenWorker
from pool.core.states import CLAIMED, LEAVING, TERMINAL, MoveReason, State
from pool.drivers.port import Pod, Stamp, StampResult, signature
from pool.lifecycle import retiring
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import transaction
from pool.store import workers
from pool.store.row_scans import ScannedRow

log = structlog.get_logger(__name__)

_ROUNDS = 10


def agrees(worker: ScannedRow, pod: Pod) -> bool:
    """Whether the pod says what its row says, to the letter. If not, `is_due` judges."""
    busy = worker.state in CLAIMED
    return pod.signature == signature(busy=busy, epoch=worker.epoch, claim_id=worker.claim_id, org=worker.org)


def wanted(worker: SeenWorker | ScannedRow) -> Stamp:
    """What the pod of this row should say."""
    return Stamp(org=worker.org, claim_id=worker.claim_id, epoch=worker.epoch, busy=worker.state in CLAIMED)


def is_due(worker: SeenWorker | ScannedRow, pod: Pod) -> bool:
    """Whether row and pod differ in what matters. A pod that nobody ever held and that carries no stamp needs none."""
    if worker.state in LEAVING | TERMINAL or worker.state is State.SPAWNING or pod.terminating:
        return False
    return not pod.says(wanted(worker))


def stamp(deps: Deps, worker_id: WorkerId) -> bool:
    """Whether row and pod agree in the end. A pod that is going or gone is told to its holder at the next renewal."""
    for _ in range(_ROUNDS):
        with deps.store.read() as tx:
            worker = workers.get(tx, worker_id)
        if worker is None or worker.state in LEAVING | TERMINAL or worker.state is State.SPAWNING:
            return True
        pod = deps.driver.read(worker_id)
        if pod is None or pod.uid != worker.pod_uid:
            tell_leaving(deps, worker, deps.by(MoveReason.POD_GONE))
            return False
        if pod.terminating:
            tell_leaving(deps, worker, deps.by(MoveReason.POD_TERMINATING))
            return False
        if pod.epoch > worker.epoch:
            continue  # somebody stamped a later holder: look at the row again, and never write the older over the newer
        if pod.says(wanted(worker)):
            return True
        result = deps.driver.stamp(pod, wanted(worker))
        if result is StampResult.WRITTEN:
            log.info("pod_stamped", worker=worker_id, epoch=worker.epoch, busy=worker.state in CLAIMED)
    log.warning("stamp_left_to_the_guard", worker=worker_id)
    return False


def tell_leaving(deps: Deps, worker: SeenWorker, by: By) -> None:
    """A pod that ends by itself: its holder is told and keeps it while it lasts; without a holder it leaves at once."""
    with transaction(deps) as (tx, after):
        if worker.state in CLAIMED:
            workers.mark_leaving(tx, worker.id, by)
        else:
            retiring.drain(tx, after, worker, by)
