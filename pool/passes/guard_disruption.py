"""guard_disruption: busy means protected, idle means not, judged by what the pods themselves say. It writes nothing by itself: where row and pod
differ it calls the same `stamp` that the claim's own event calls. In a quiet pool it makes no call at all."""

from __future__ import annotations

from pool import observing, stamping
from pool.errors import Transient
from pool.passes.running import Pass, Run, log
from pool.states import CLAIMABLE, CLAIMED
from pool.store import workers


def run(run: Run) -> None:
    """Pods first, rows after."""
    pods = {p.name: p for p in run.cluster().pods}
    with run.deps.store.read() as tx:
        rows = workers.live(tx, states=CLAIMED | CLAIMABLE)
    due = [
        w
        for w in rows
        if (pod := pods.get(w.id)) is not None and stamping.is_due(w, pod) and pod.epoch <= w.epoch
    ]
    run.saw("busy_unprotected", sum(1 for w in due if w.state in CLAIMED))
    run.saw("stale_protected", sum(1 for w in due if w.state in CLAIMABLE and pods[w.id].protected))
    for worker in [w for w in rows if w.id in pods and pods[w.id].epoch > w.epoch]:
        if run.acts("put_back_rows_lost"):
            observing.lose_to_a_later_holder(run.deps, worker, pods[worker.id])
    for worker in run.bounded(due):
        if run.acts("stamped"):
            try:
                stamping.stamp(run.deps, worker.id)
            except Transient as exc:
                log.warning("stamp_failed", worker=worker.id, cause=str(exc))


GUARD_DISRUPTION = Pass(name="guard_disruption", run=run)
