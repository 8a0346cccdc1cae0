"""guard_disruption: busy pods are protected and idle pods are not, judged by the pods' own metadata.

Where row and pod differ, it calls the same `stamp` as the event of the claim. In a quiet pool it
makes no call.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pool.core.ids import WorkerId
from pool.core.periods import PERIODS_S
from pool.core.states import CLAIMABLE, CLAIMED
from pool.drivers.port import Pod
from pool.lifecycle import observing, stamping
from pool.passes.running import Pass, Run
from pool.store import row_scans, workers
from pool.store.row_scans import ScannedRow

LONG_S = 3 * PERIODS_S["guard_disruption"]


def run(run: Run) -> None:
    """Compare rows with pods and stamp those that differ. Pods are read before rows."""
    pods = run.cluster().named()
    differing = _differing(run, pods)
    due = [w for w in differing if stamping.is_due(w, pods[w.id]) and pods[w.id].epoch <= w.epoch]
    _record_unprotected(run, [w.id for w in due if w.state in CLAIMED])
    run.record_count("stale_protected", sum(1 for w in due if w.state in CLAIMABLE and pods[w.id].protected))
    for behind in run.bounded([w for w in differing if pods[w.id].epoch > w.epoch]):
        run.step("put_back_rows_lost", behind.id, partial(_lose, run, behind, pods[behind.id]))
    for worker in run.bounded(_in_order(run, due)):
        run.step("stamped", worker.id, partial(stamping.stamp, run.deps, worker.id))


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
