"""sweep_orphans: find pods without rows and rows without pods.

Pods are listed before rows are read, and a failed or old list decides nothing. A pod that was ever
stamped is deleted only on two proofs, one of them its self-report. Deleting a pod in use is worse
than leaking one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pool.core.ids import WorkerId
from pool.core.records import SeenWorker
from pool.core.states import PODDED, TERMINAL, MoveReason, State
from pool.drivers.port import Listing, Pod, PodRole, Word
from pool.lifecycle import observing
from pool.passes.running import Pass, Run, log
from pool.passes.suspecting import seen_again
from pool.store import audit, row_scans, suspects, workers
from pool.store.row_scans import ScannedRow
from pool.store.suspects import SuspectKind

Name = TypeVar("Name", bound=str)

YOUNG_S = 120.0
YOUNG_STAMPED_S = 300.0
STAMPED_PER_RUN = 10
EMPTY_RUNS, EMPTY_AGE_S = 3, 60.0
_HELD = (SuspectKind.HELD_POD, SuspectKind.SILENT_POD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The differences between pods and rows: few in a healthy pool of any size."""

    # Whether any row expects a pod at all.
    expecting: bool
    missing: Sequence[WorkerId]
    unowned: Sequence[Pod]


def run(run: Run) -> None:
    """Compare one list of pods with the table."""
    listing = _listing(run)
    pods = {name: p for name, p in listing.named().items() if p.role == PodRole.WORKER}
    with run.deps.store.read() as tx:
        found = compared(pods, row_scans.live(tx))
    run.record_count("rows_without_pod", len(found.missing))
    if pods or not found.expecting:
        seen_again(run, SuspectKind.EMPTY_CLUSTER, {})
        _rows_without_pods(run, found.missing)
    elif _emptiness_is_proven(run, listing):
        _rows_without_pods(run, found.missing)
    unowned = [listing.aged(p) for p in found.unowned]
    run.record_count("orphans", sum(1 for p in unowned if p.age_s >= YOUNG_S))
    _never_stamped(run, [p for p in unowned if not p.ever_stamped])
    _stamped(run, [p for p in unowned if p.ever_stamped])
    _companions(run, pods)


def compared(pods: Mapping[str, Pod], rows: Iterable[ScannedRow]) -> Compared:
    """Compare each live row with the pod of its name.

    Pods that remain belong to no row. Rows are read one by one and not kept.
    """
    left, missing, expecting = dict(pods), [], False
    for row in rows:
        pod = pods.get(row.id)
        expects = _expects_pod(row)
        expecting = expecting or expects
        if pod is not None and row.pod_uid in {None, pod.uid}:
            del left[row.id]
        elif expects:
            missing.append(row.id)
    # In an order that is the same in every run: a suspicion must meet the same rows again.
    missing.sort()
    unowned = [p for p in left.values() if _is_unowned(p, None)]
    return Compared(expecting=expecting, missing=missing, unowned=unowned)


def _listing(run: Run) -> Listing:
    """Return the pods from the watch.

    If there are none, read them from the API server before acting on it.
    """
    listing = run.cluster()
    return listing if listing.pods else run.deps.driver.list()


def _expects_pod(worker: SeenWorker | ScannedRow) -> bool:
    return worker.state in _WITH_POD or (worker.state == State.SPAWNING and worker.pod_uid is not None)


_WITH_POD = PODDED - {State.DRAINING}


def _emptiness_is_proven(run: Run, listing: Listing) -> bool:
    """Return whether the cluster has no pods although rows expect some: after three consistent
    reads with the anchor, over one minute.
    """
    seen = seen_again(
        run, SuspectKind.EMPTY_CLUSTER, {"all": "no pods, but rows"} if listing.anchored else {}
    ).get("all")
    if seen is None:
        return False
    proven = seen.runs >= EMPTY_RUNS and seen.age_s >= EMPTY_AGE_S
    if not proven:
        log.warning("empty_cluster_not_believed", runs=seen.runs, age_s=seen.age_s)
    return proven


def _rows_without_pods(run: Run, missing: Sequence[WorkerId]) -> None:
    """Mark rows as lost whose pod was absent in two runs and in a read of its own.

    A row whose pod was replaced by another of the same name has lost its pod, too.
    """
    some = run.bounded(_suspects_first(run, SuspectKind.ROW_WITHOUT_POD, "row_lost", missing))
    seen = seen_again(run, SuspectKind.ROW_WITHOUT_POD, {str(i): "its pod is gone" for i in some})
    for worker_id in some:
        if seen[worker_id].runs >= 2:
            run.step("row_lost", worker_id, partial(_lose, run, worker_id))


def _suspects_first(run: Run, kind: SuspectKind, what: str, names: Sequence[Name]) -> list[Name]:
    """Return the names in order: those seen once, because the second observation must follow the
    first; then new ones; last those that were tried without success.
    """
    with run.deps.store.read() as tx:
        runs = {subject: times for _, subject, times, _ in suspects.every(tx, kind)}
    rank = {1: 0, 0: 1}
    return sorted(run.in_turn(what, names, str), key=lambda name: rank.get(runs.get(name, 0), 2))


def _lose(run: Run, worker_id: WorkerId) -> None:
    with run.deps.store.read() as tx:
        worker = workers.get(tx, worker_id)
    if worker is None or not _expects_pod(worker):
        return
    pod = run.deps.driver.read(worker.id)
    if pod is None or pod.uid != worker.pod_uid:
        observing.lose(run.deps, worker, run.deps.by(MoveReason.POD_GONE))


def _is_unowned(pod: Pod, row: SeenWorker | None) -> bool:
    """Return whether no row owns this pod.

    A draining row still owns its pod, which is being deleted.
    """
    if pod.terminating:
        return False
    return row is None or row.state in TERMINAL or row.pod_uid not in {None, pod.uid}


def _never_stamped(run: Run, pods: Sequence[Pod]) -> None:
    old = sorted((p for p in pods if p.age_s >= YOUNG_S), key=lambda p: p.name)
    for pod in run.bounded(run.in_turn("orphan_deleted", old, lambda p: p.name)):
        why = f"no row owned it, and it was never claimed in its {pod.age_s:.0f} s"
        run.step("orphan_deleted", pod.name, partial(_delete, run, pod, why))


def _stamped(run: Run, pods: Sequence[Pod]) -> None:
    """Delete stamped pods that had no row in two runs, are old enough and report that they are
    unused; a few per run.
    """
    old = [p for p in pods if p.age_s >= YOUNG_STAMPED_S]
    seen = seen_again(run, SuspectKind.STAMPED_POD, {p.uid: f"pod {p.name} has no row" for p in old})
    _forget_held(run, old)
    ripe = [p for p in old if seen[p.uid].runs >= 2]
    run.overflowed |= len(ripe) > STAMPED_PER_RUN
    # Pods that are kept stay in the list, so each run starts where the previous one ended.
    turn = max((seen[p.uid].runs for p in ripe), default=0) * STAMPED_PER_RUN % max(1, len(ripe))
    with run.deps.store.read() as tx:
        released = {subject: by for _, subject, _, by in suspects.every(tx, SuspectKind.RELEASED_POD)}
    for pod in (ripe[turn:] + ripe[:turn])[:STAMPED_PER_RUN]:
        by = released.get(suspects.pod_subject(pod.name, pod.uid), "")
        run.try_item("orphan_asked", pod.name, partial(_hold_or_delete, run, pod, by))
    run.record_count("orphans_held", run.actions["orphan_held"])


def _hold_or_delete(run: Run, pod: Pod, released_by: str) -> None:
    """Delete the pod if it reports that it is unused, or if it does not answer and an operator has
    released it. A report of an open session always keeps it.
    """
    word = run.deps.driver.word(pod)
    if word is Word.SILENT and released_by:
        why = f"no row owned it in two runs, it did not answer, and {released_by} released it"
        run.step("orphan_deleted", pod.name, partial(_delete, run, pod, why))
        return
    if word is not Word.UNUSED:
        run.did("orphan_held")
        _report_held(run, pod, word)
        log.warning("orphan_held", pod=pod.name, word=str(word))
        return
    why = "no row owned it in two runs, and the pod reported that it was unused"
    run.step("orphan_deleted", pod.name, partial(_delete, run, pod, why))


def _delete(run: Run, pod: Pod, why: str) -> None:
    """Delete an orphaned pod.

    The audit entry is written first, because a deleted pod leaves no other trace.
    """
    with run.deps.store.write() as tx:
        for kind in _HELD:
            suspects.forget(tx, kind, suspects.pod_subject(pod.name, pod.uid))
        # One entry, however often the deletion is tried.
        if not any(entry.what == "orphan_deleted" for entry in audit.of(tx, pod.name)):
            audit.record(tx, "orphan_deleted", pod.name, who=run.deps.who, why=why)
    log.info("orphan_deleted", pod=pod.name, age_s=pod.age_s, stamped=pod.ever_stamped)
    run.deps.driver.delete(pod.name, pod.uid)


def _forget_held(run: Run, unowned: Sequence[Pod]) -> None:
    """Delete the records of held pods that are gone or have a row again."""
    if not run.dry_run:
        with run.deps.store.write() as tx:
            subjects = {suspects.pod_subject(p.name, p.uid) for p in unowned}
            for kind in (*_HELD, SuspectKind.RELEASED_POD):
                suspects.forget_others(tx, kind, subjects)


def _report_held(run: Run, pod: Pod, word: Word) -> None:
    if run.dry_run:
        return
    subject = suspects.pod_subject(pod.name, pod.uid)
    with run.deps.store.write() as tx:
        if word is Word.SILENT:
            how = f"is silent: kept; to delete it: warmpool orphan delete {pod.name}"
            suspects.forget(tx, SuspectKind.HELD_POD, subject)
            suspects.see(tx, SuspectKind.SILENT_POD, subject, f"pod {pod.name} has no row and {how}")
        else:
            # What it reports ends a release: the operator did not know of the session.
            suspects.forget(tx, SuspectKind.RELEASED_POD, subject)
            suspects.forget(tx, SuspectKind.SILENT_POD, subject)
            how = f"reports that it is {word}: kept"
            suspects.see(tx, SuspectKind.HELD_POD, subject, f"pod {pod.name} has no row and {how}")


def _companions(run: Run, pods: Mapping[str, Pod]) -> None:
    """Delete companions whose pod was absent in two runs."""
    without_pod = [c for c in run.deps.driver.companions() if c not in pods]
    with run.deps.store.read() as tx:
        rows = row_scans.live_among(tx, without_pod)
    left = [c for c in without_pod if c not in rows]
    some = run.bounded(_suspects_first(run, SuspectKind.COMPANION, "companion_deleted", left))
    seen = seen_again(run, SuspectKind.COMPANION, dict.fromkeys(some, "its pod is gone"))
    for name in some:
        if seen[name].runs >= 2:
            run.step("companion_deleted", name, partial(run.deps.driver.delete_companions, name))


SWEEP_ORPHANS = Pass(name="sweep_orphans", run=run)
