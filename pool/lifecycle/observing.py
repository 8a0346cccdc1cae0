"""Observe: turn the events of the driver's watch into fenced moves.

Several observers, old events and repeated events are harmless.
"""

from __future__ import annotations

import threading

import structlog

from pool.core.backoff import Backoff
from pool.core.errors import Refused, Transient
from pool.core.ids import WorkerId
from pool.core.records import By, SeenWorker
from pool.core.states import CLAIMABLE, CLAIMED, TERMINAL, ClaimEnd, MoveReason, Outcome, State
from pool.drivers.port import Gone, Pod, PodPhase, PodRole
from pool.lifecycle import item_errors, retiring, spawning, stamping
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import Effects, transaction
from pool.metrics.catalog import Item
from pool.store import Tx, breakers, claims, orgs, rules, workers

log = structlog.get_logger(__name__)

_AGAIN = Backoff(first_s=0.2, limit_s=10.0)


def follow(deps: Deps, stop: threading.Event) -> None:
    """Follow the watch until `stop` is set.

    An outage restarts the watch, which then sends all events again. An event that fails for another
    reason is skipped, and passes find what it was about.
    """
    failures = 0
    while not stop.is_set():
        try:
            for seen in deps.driver.watch(stop):
                _observe_or_skip(deps, seen)
                failures = 0
        except (Transient, Refused) as exc:
            failures += 1
            log.warning("watch_interrupted", cause=str(exc), failures=failures)
            deps.clock.wait(stop, _AGAIN.nominal(failures))


def _observe_or_skip(deps: Deps, seen: Pod | Gone) -> None:
    try:
        observe(deps, seen)
    except Transient:
        raise
    except Exception as exc:  # noqa: BLE001 - the next events are about other pods
        item_errors.record_skipped(deps.metrics, Item.WATCH_EVENT, seen.name, exc)


def observe(deps: Deps, seen: Pod | Gone) -> None:
    """Handle one event. Pods without a row are left to the orphan sweep."""
    with deps.store.read() as tx:
        worker = workers.get(tx, WorkerId(seen.name))
    if worker is None or worker.state in TERMINAL or (worker.pod_uid not in {None, seen.uid}):
        return
    if isinstance(seen, Gone):
        _gone(deps, worker)
    elif seen.role == PodRole.WORKER:
        _changed(deps, worker, seen)


def lose(deps: Deps, worker: SeenWorker, by: By) -> Outcome:
    """Mark a row as lost whose pod is proven absent or ended.

    Its claim ends with the cause, and the counters are decremented.
    """
    with transaction(deps) as (tx, after):
        if worker.claim_id is not None:
            ended = claims.end(tx, deps.rule_argument(), worker.claim_id, ClaimEnd.WORKER_LOST, by)
            outcome = Outcome.FENCED if ended is None else Outcome.MOVED
            after.follow(ended or {"events": ()})
        else:
            outcome = _lose_unclaimed(tx, after, worker, by)
        if outcome is Outcome.MOVED and worker.state is State.SPAWNING:
            breakers.failed(tx, worker.profile, by.text)
            deps.metrics.spawn_failures.labels(worker.profile, str(by.reason)).inc()
    return outcome


def lose_to_a_later_holder(deps: Deps, worker: SeenWorker, pod: Pod) -> Outcome:
    """Mark a row as lost because its pod has a later epoch: the database was restored from a backup.

    The row no longer describes the pod, which may be busy; from now on only its self-report allows
    its deletion (`sweep_orphans`).
    """
    detail = (
        f"its pod has epoch {pod.epoch}, its row has {worker.epoch}: the database was restored from a backup"
    )
    log.error("table_is_behind_its_pod", worker=worker.id, pod_epoch=pod.epoch, row_epoch=worker.epoch)
    return lose(deps, worker, deps.by(MoveReason.TABLE_BEHIND, detail))


def _changed(deps: Deps, worker: SeenWorker, pod: Pod) -> None:
    if pod.epoch > worker.epoch:
        lose_to_a_later_holder(deps, worker, pod)
    elif pod.phase is PodPhase.ENDED:
        _ended(deps, worker, pod)
    elif pod.terminating or pod.leaving:
        if worker.state is not State.DRAINING:
            reason = MoveReason.DISRUPTED if pod.leaving else MoveReason.POD_TERMINATING
            stamping.mark_or_drain(deps, worker, deps.by(reason, pod.leaving))
    elif worker.state is State.SPAWNING and pod.usable:
        _ready(deps, worker, pod)
    elif worker.state in CLAIMABLE and not pod.ready:
        _unhealthy(deps, worker)


def _ready(deps: Deps, worker: SeenWorker, pod: Pod) -> None:
    if pod.image != worker.image:
        detail = f"its pod runs {pod.image}, not {worker.image}"
        spawning.fail(deps, worker, MoveReason.WRONG_IMAGE, detail)
        return
    facts = {"uid": pod.uid, "endpoint": pod.endpoint, "node": pod.node or None}
    with transaction(deps) as (tx, after):
        asked = deps.rule_argument(worker_id=worker.id, pod=facts, patient=True)
        found = rules.call(rules.Within(tx), "ready", asked)
        if found is None:
            return
        after.follow(found)
        if found["has_failed"]:
            breakers.succeeded(tx, worker.profile)
        deps.metrics.spawn_seconds.labels(worker.profile).observe(found["took_s"])


def _unhealthy(deps: Deps, worker: SeenWorker) -> None:
    """Drain an unclaimed worker that is not ready.

    A claimed worker stays; only the end of its container ends its claim. The event may be older
    than the pod's readiness, so the pod is read again.
    """
    pod = deps.driver.read(worker.id)
    if pod is None or pod.ready or pod.uid != worker.pod_uid:
        return
    with transaction(deps) as (tx, after):
        retiring.drain(tx, after, worker, deps.by(MoveReason.UNHEALTHY, pod.trouble))


def _ended(deps: Deps, worker: SeenWorker, pod: Pod) -> None:
    if worker.state is State.DRAINING:
        retiring.retire(deps, worker.id)
        return
    if lose(deps, worker, deps.by(MoveReason.CONTAINER_ENDED, _end_detail(pod))) is Outcome.MOVED:
        deps.driver.delete(pod.name, pod.uid, grace_s=0)


def _end_detail(pod: Pod) -> str:
    code = "" if pod.exit_code is None else f"exit code {pod.exit_code}"
    return ", ".join(filter(None, (pod.trouble, code)))


def _gone(deps: Deps, worker: SeenWorker) -> None:
    if worker.state is State.DRAINING:
        retiring.confirm(deps, worker)
        return
    pod = deps.driver.read(worker.id)
    if pod is not None and (worker.pod_uid is None or pod.uid == worker.pod_uid):
        return  # the event is out of date
    lose(deps, worker, deps.by(MoveReason.POD_GONE))


def _lose_unclaimed(tx: Tx, after: Effects, worker: SeenWorker, by: By) -> Outcome:
    now_seen = workers.get_for_update(tx, worker.id)
    if now_seen is None or now_seen.state in CLAIMED or now_seen.epoch != worker.epoch:
        return Outcome.FENCED
    if now_seen.state in TERMINAL | {State.DRAINING}:
        return Outcome.FENCED
    if now_seen.parked_counted and now_seen.org is not None:
        orgs.decrement_parked(tx, now_seen.org)
    outcome = workers.leave(tx, now_seen, State.LOST, by)
    if outcome is Outcome.MOVED:
        orgs.decrement_live(tx)
        after.moved(worker.id, now_seen.state, State.LOST, by.reason, by.detail)
        after.refill.add(worker.profile)
    return outcome
