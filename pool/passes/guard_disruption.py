"""guard_disruption: busy pods are protected and idle pods are not, judged by the pods' own metadata.

Where row and pod differ, it calls the same `stamp` as the event of the claim. In a quiet pool it
makes no call. Busy workers on a node that is being removed are marked as leaving; if the node stays,
the mark is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pool.core.ids import WorkerId
from pool.core.periods import PERIODS_S
from pool.core.records import By
from pool.core.states import CLAIMABLE, CLAIMED, MoveReason, Outcome
from pool.drivers.port import Pod, PodRole
from pool.lifecycle import observing, stamping
from pool.passes.running import STALE_AFTER_S, Pass, Run
from pool.store import Tx, row_scans, workers
from pool.store.row_scans import ScannedRow

LONG_S = 3 * PERIODS_S["guard_disruption"]


def run(run: Run) -> None:
    """Compare rows with pods and stamp those that differ. Pods are read before rows."""
    cluster = run.cluster()
    pods = cluster.named()
    differing = _differing(run, pods)
    due = [w for w in differing if stamping.is_due(w, pods[w.id]) and pods[w.id].epoch <= w.epoch]
    _record_unprotected(run, [w.id for w in due if w.state in CLAIMED])
    run.record_count("stale_protected", sum(1 for w in due if w.state in CLAIMABLE and pods[w.id].protected))
    for behind in run.bounded([w for w in differing if pods[w.id].epoch > w.epoch]):
        run.step("put_back_rows_lost", behind.id, partial(_lose, run, behind, pods[behind.id]))
    for worker in run.bounded(_in_order(run, due)):
        run.step("stamped", worker.id, partial(stamping.stamp, run.deps, worker.id))
    if cluster.nodes_age_s <= STALE_AFTER_S:
        _follow_nodes(run, pods)


def _follow_nodes(run: Run, pods: Mapping[str, Pod]) -> None:
    """Make the marks of busy workers agree with their nodes.

    The observer marks at once, but may miss an event. A mark stays for as long as a view of the
    nodes may be old, so that it is not removed by a view from before the mark.
    """
    leaving = [pod.name for pod in pods.values() if pod.leaving and pod.role == PodRole.WORKER]
    with run.deps.store.read() as tx:
        unmarked = row_scans.unmarked_among(tx, leaving) if leaving else []
        marked = row_scans.disrupted(tx, for_s=STALE_AFTER_S)
    for worker_id in run.bounded(unmarked):
        by = run.deps.by(MoveReason.DISRUPTED, pods[worker_id].leaving)
        run.step("marked", worker_id, partial(_write, run, workers.mark_leaving, worker_id, by))
    by = run.deps.by(MoveReason.NODE_RETURNED)
    for stays in run.bounded([w for w in marked if _can_stay(w, pods.get(w.id))]):
        unmark = partial(workers.unmark_disrupted, epoch=stays.epoch)
        run.step("unmarked", stays.id, partial(_write, run, unmark, stays.id, by))


def _write(run: Run, write: Callable[[Tx, WorkerId, By], Outcome], worker_id: WorkerId, by: By) -> None:
    with run.deps.store.write() as tx:
        write(tx, worker_id, by)


def _can_stay(worker: ScannedRow, pod: Pod | None) -> bool:
    return pod is not None and pod.uid == worker.pod_uid and not (pod.terminating or pod.leaving)


def _in_order(run: Run, due: list[ScannedRow]) -> list[ScannedRow]:
    """Return the rows in the order of stamping.

    A busy, unprotected pod may be evicted at any moment, so it comes first. A protected, idle pod
    only blocks evictions: these get a tenth of a full run.
    """
    due.sort(key=lambda w: w.id)
    busy = run.in_turn("stamped", [w for w in due if w.state in CLAIMED], lambda w: w.id)
    idle = run.in_turn("stamped", [w for w in due if w.state not in CLAIMED], lambda w: w.id)
    first = run.limit - min(len(idle), max(1, run.limit // 10))
    return [*busy[:first], *idle, *busy[first:]]


def _record_unprotected(run: Run, unprotected: list[WorkerId]) -> None:
    """Record how many busy pods are unprotected.

    The stamp of a new claim may still be running, so those that stay unprotected over several runs
    are counted separately, for the alert.
    """
    run.record_count("busy_unprotected", len(unprotected))
    with run.deps.store.read() as tx:
        long = row_scans.unmoved_for(tx, unprotected, LONG_S) if unprotected else 0
    run.record_count("busy_unprotected_long", long)


def _differing(run: Run, pods: Mapping[str, Pod]) -> list[ScannedRow]:
    """Return the rows whose pods have other metadata.

    In a quiet pool there are none; rows that agree are not kept in memory.
    """
    with run.deps.store.read() as tx:
        return [
            w
            for w in row_scans.live(tx, states=CLAIMED | CLAIMABLE)
            if (pod := pods.get(w.id)) is not None and not stamping.agrees(w, pod)
        ]


def _lose(run: Run, behind: ScannedRow, pod: Pod) -> None:
    with run.deps.store.read() as tx:
        worker = workers.get(tx, behind.id)
    if worker is not None and worker.epoch == behind.epoch:
        observing.lose_to_a_later_holder(run.deps, worker, pod)


GUARD_DISRUPTION = Pass(name="guard_disruption", run=run)
