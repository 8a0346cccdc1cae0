"""Stamp: write the state of the row into the pod's metadata.

Reads both, writes the difference against the version that it read, and repeats until they agree. So
the last stamp is correct, however many run at once. The pod is taken from this process's own view
first: if that is old, the write is refused and the pod is read.
"""

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
    """Return whether the pod's metadata equals the row exactly. If not, `is_due` decides."""
    busy = worker.state in CLAIMED
    return pod.signature == signature(busy=busy, epoch=worker.epoch, claim_id=worker.claim_id, org=worker.org)


def wanted(worker: SeenWorker | ScannedRow) -> Stamp:
    """Return the stamp that the pod of this row should have."""
    return Stamp(org=worker.org, claim_id=worker.claim_id, epoch=worker.epoch, busy=worker.state in CLAIMED)


def is_due(worker: SeenWorker | ScannedRow, pod: Pod) -> bool:
    """Return whether row and pod differ in what matters.

    A pod that never had a holder and has no stamp needs none.
    """
    if worker.state in LEAVING | TERMINAL or worker.state is State.SPAWNING or pod.terminating:
        return False
    return not pod.says(wanted(worker))


def stamp(deps: Deps, worker_id: WorkerId) -> bool:
    """Stamp the pod and return whether row and pod agree.

    If the pod is ending or gone, its holder is informed at the next renewal.
    """
    pod = deps.driver.recent(worker_id)
    written: Stamp | None = None
    for _ in range(_ROUNDS):
        with deps.store.read() as tx:
            worker = workers.get(tx, worker_id)
        if worker is None or worker.state in LEAVING | TERMINAL or worker.state is State.SPAWNING:
            return True
        if wanted(worker) == written:
            return True
        if pod is None or pod.uid != worker.pod_uid or pod.terminating or pod.epoch > worker.epoch:
            pod = deps.driver.read(worker_id)
        if pod is None or pod.uid != worker.pod_uid:
            mark_or_drain(deps, worker, deps.by(MoveReason.POD_GONE))
            return False
        if pod.terminating:
            mark_or_drain(deps, worker, deps.by(MoveReason.POD_TERMINATING))
            return False
        if pod.epoch > worker.epoch:
            # Another process stamped a later holder. Read the row again; never overwrite a later epoch.
            continue
        if pod.says(wanted(worker)):
            return True
        result = deps.driver.stamp(pod, wanted(worker))
        if result is StampResult.WRITTEN:
            written = wanted(worker)
            log.info("pod_stamped", worker=worker_id, epoch=worker.epoch, busy=worker.state in CLAIMED)
        pod = None
    log.warning("stamp_left_to_the_guard", worker=worker_id)
    return False


def mark_or_drain(deps: Deps, worker: SeenWorker, by: By) -> None:
    """Handle a pod that ends by itself.

    A claimed worker is marked as leaving, which its holder sees at the next renewal; an unclaimed
    one drains at once.
    """
    with transaction(deps) as (tx, after):
        if worker.state in CLAIMED:
            workers.mark_leaving(tx, worker.id, by)
        else:
            retiring.drain(tx, after, worker, by)
