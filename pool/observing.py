"""Observe: what the driver's watch tells becomes fenced moves. Two observers, an old one, or one that repeats itself do no harm."""

from __future__ import annotations

import threading

import structlog

from pool import answering, holding, matching, retiring, sparing, spawning, stamping
from pool.after import After
from pool.backoff import Backoff
from pool.deps import Deps
from pool.drivers.port import Gone, Phase, Pod, Role
from pool.errors import Refused, Transient
from pool.ids import WorkerId
from pool.metrics.catalog import Item
from pool.records import Seen
from pool.spawning import Trouble
from pool.states import CLAIMABLE, CLAIMED, TERMINAL, ClaimEnd, Outcome, State
from pool.store import Tx, breakers, orgs, workers
from pool.store.workers import PodFacts

log = structlog.get_logger(__name__)

_AGAIN = Backoff(first_s=0.2, limit_s=10.0)


def follow(deps: Deps, stop: threading.Event) -> None:
    """Follow the watch until told to stop. An outage starts it anew, which tells everything again; an event that fails for another reason is left
    out, and passes find what it was about."""
    failures = 0
    while not stop.is_set():
        try:
            for seen in deps.driver.watch(stop):
                _observe_or_leave(deps, seen)
                failures = 0
        except (Transient, Refused) as exc:
            failures += 1
            log.warning("watch_interrupted", cause=str(exc), failures=failures)
            deps.clock.wait(stop, _AGAIN.nominal(failures))


def _observe_or_leave(deps: Deps, seen: Pod | Gone) -> None:
    try:
        observe(deps, seen)
    except Transient:
        raise
    except Exception as exc:  # noqa: BLE001 - the events behind it are about other pods
        sparing.left_out(deps.metrics, Item.WATCH_EVENT, seen.name, exc)


def observe(deps: Deps, seen: Pod | Gone) -> None:
    """One observation. A pod without a row is the orphan sweep's matter."""
    with deps.store.read() as tx:
        worker = workers.get(tx, WorkerId(seen.name))
    if worker is None or worker.state in TERMINAL or (worker.pod_uid not in {None, seen.uid}):
        return
    if isinstance(seen, Gone):
        _gone(deps, worker, "its pod is gone")
    elif seen.role == Role.WORKER:
        _changed(deps, worker, seen)


def lose(deps: Deps, worker: Seen, why: str) -> Outcome:
    """The pod is proven absent or ended: the row is lost, its claim ends with the cause, its counters are free."""
    after = After()
    with deps.store.write() as tx:
        if worker.claim_id is not None:
            ended = holding.end(tx, deps, after, worker.claim_id, ClaimEnd.WORKER_LOST, detail=why)
            outcome = Outcome.FENCED if ended is None else Outcome.MOVED
            if ended is not None:
                matching.rebind(tx, deps, after, ended, cause=why)
        else:
            outcome = _lose_unclaimed(deps, tx, after, worker, why)
        if outcome is Outcome.MOVED and worker.state is State.SPAWNING:
            breakers.failed(tx, worker.profile, why)
    if outcome is Outcome.MOVED and worker.state is State.SPAWNING:
        deps.metrics.spawn_failures.labels(worker.profile, str(Trouble.POD_LOST)).inc()
    answering.carry_out(deps, after)
    return outcome


def lose_to_a_later_holder(deps: Deps, worker: Seen, pod: Pod) -> Outcome:
    """The pod knows a later holder than the table does: the table was put back to an earlier day. This row no longer speaks for the pod,
    which may be busy; from here on only its own word can end it (`sweep_orphans`)."""
    why = f"its pod was stamped at epoch {pod.epoch}, the table knows only {worker.epoch}: the database was put back"
    log.error("table_is_behind_its_pod", worker=worker.id, pod_epoch=pod.epoch, row_epoch=worker.epoch)
    return lose(deps, worker, why)


def _changed(deps: Deps, worker: Seen, pod: Pod) -> None:
    if pod.epoch > worker.epoch:
        lose_to_a_later_holder(deps, worker, pod)
    elif pod.phase is Phase.ENDED:
        _ended(deps, worker, pod)
    elif pod.terminating or pod.leaving:
        if worker.state is not State.DRAINING:
            stamping.tell_leaving(deps, worker, pod.leaving or "its pod is terminating")
    elif worker.state is State.SPAWNING and pod.usable:
        _ready(deps, worker, pod)
    elif worker.state in CLAIMABLE and not pod.ready:
        _unhealthy(deps, worker)


def _ready(deps: Deps, worker: Seen, pod: Pod) -> None:
    if pod.image != worker.image:
        cause = f"its pod runs {pod.image}, not {worker.image}"
        spawning.fail(deps, worker, cause, trouble=Trouble.WRONG_IMAGE)
        return
    after = After()
    with deps.store.write() as tx:
        slot = workers.slot_for_update(tx, worker.id)
        if slot is None or slot.row.state is not State.SPAWNING:
            return
        facts = PodFacts(uid=pod.uid, endpoint=pod.endpoint, node=pod.node)
        matching.offer(tx, deps, after, slot.row, facts)
        if slot.has_failed:
            breakers.succeeded(tx, worker.profile)
    took_s = (slot.at - slot.row.created_at).total_seconds()
    deps.metrics.spawn_seconds.labels(worker.profile).observe(took_s)
    answering.carry_out(deps, after)


def _unhealthy(deps: Deps, worker: Seen) -> None:
    """Unclaimed and not ready: it leaves. A claimed one stays; only its container's end ends its claim. The watch may speak of an earlier
    moment, when the pod was not ready yet, so the pod itself is looked at."""
    pod = deps.driver.read(worker.id)
    if pod is None or pod.ready or pod.uid != worker.pod_uid:
        return
    after = After()
    with deps.store.write() as tx:
        why = f"its pod is not ready any more{': ' + pod.trouble if pod.trouble else ''}"
        retiring.drain(tx, after, worker, deps.by(why))
    after.send(deps)


def _ended(deps: Deps, worker: Seen, pod: Pod) -> None:
    if worker.state is State.DRAINING:
        retiring.retire(deps, worker.id)
        return
    why = f"its container ended: {pod.trouble or 'no reason given'}"
    if pod.exit_code is not None and f"exit code {pod.exit_code}" not in why:
        why += f" (exit code {pod.exit_code})"
    if lose(deps, worker, why) is Outcome.MOVED:
        deps.driver.delete(pod.name, pod.uid, grace_s=0)


def _gone(deps: Deps, worker: Seen, why: str) -> None:
    if worker.state is State.DRAINING:
        retiring.confirm(deps, worker)
        return
    pod = deps.driver.read(worker.id)
    if pod is not None and (worker.pod_uid is None or pod.uid == worker.pod_uid):
        return  # the watch spoke of an earlier moment
    lose(deps, worker, why)


def _lose_unclaimed(deps: Deps, tx: Tx, after: After, worker: Seen, why: str) -> Outcome:
    now_seen = workers.get_for_update(tx, worker.id)
    if now_seen is None or now_seen.state in CLAIMED or now_seen.epoch != worker.epoch:
        return Outcome.FENCED
    if now_seen.state in TERMINAL | {State.DRAINING}:
        return Outcome.FENCED
    if now_seen.parked_counted and now_seen.org is not None:
        orgs.give_park(tx, now_seen.org)
    by = deps.by(why)
    outcome = workers.leave(tx, now_seen, State.LOST, by)
    if outcome is Outcome.MOVED:
        orgs.give_slot(tx)
        after.moved(worker.id, now_seen.state, State.LOST, by)
        after.refill.add(worker.profile)
    return outcome
