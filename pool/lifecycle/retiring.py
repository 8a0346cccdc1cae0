"""Retire: fence to `draining`, delete the pod by its uid, confirm.

The row is the decision; the pod follows it.
"""

from __future__ import annotations

import structlog

from pool.core.errors import Refused, Transient
from pool.core.ids import WorkerId
from pool.core.records import By, SeenWorker
from pool.core.states import MoveReason, Outcome, State
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import Effects, transaction
from pool.store import Tx, orgs, requests, suspects, workers
from pool.store.suspects import SuspectKind

log = structlog.get_logger(__name__)

# Prefix of the suspects whose pod cannot be deleted.
REFUSED = "retire/pod_deleted/"


def drain(tx: Tx, after: Effects, worker: SeenWorker, by: By, *, above_floor: bool = False) -> Outcome:
    """Take an unclaimed worker out of use.

    `above_floor`: only if its org keeps its floor of parked workers.
    """
    now_seen = workers.get_for_update(tx, worker.id)
    if now_seen is None:
        return Outcome.GONE
    if now_seen.epoch != worker.epoch or now_seen.state is not worker.state or now_seen.claim_id is not None:
        return Outcome.FENCED
    if now_seen.parked_counted and now_seen.org is not None:
        if above_floor and not orgs.decrement_parked_above_floor(tx, now_seen.org):
            # The row was locked for a moment, so a waiter may have skipped it.
            after.again.add(now_seen.profile)
            return Outcome.FENCED
        if not above_floor:
            orgs.decrement_parked(tx, now_seen.org)
    outcome = workers.leave(tx, now_seen, State.DRAINING, by)
    if outcome is Outcome.MOVED:
        after.moved(worker.id, worker.state, State.DRAINING, by.reason, by.detail)
        after.retire.append(worker.id)
        after.refill.add(worker.profile)
    return outcome


def retire(deps: Deps, worker_id: WorkerId) -> Outcome:
    """Delete the pod of a draining worker and confirm.

    If the deletion fails, the row stays draining and a pass tries again.
    """
    with deps.store.read() as tx:
        worker = workers.get(tx, worker_id)
    if worker is None:
        return Outcome.GONE
    if worker.state is not State.DRAINING:
        return Outcome.FENCED
    try:
        # A slot whose create was never confirmed has no uid in its row: the pod with its name is
        # its pod.
        deps.driver.delete(worker.id, worker.pod_uid or "", grace_s=worker.grace_s)
    except (Transient, Refused) as exc:
        log.warning("delete_left_to_the_pass", worker=worker_id, cause=str(exc))
        if isinstance(exc, Refused):
            _record_refusal(deps, worker_id, exc)
        return Outcome.FENCED
    return confirm(deps, worker)


def _record_refusal(deps: Deps, worker_id: WorkerId, exc: Refused) -> None:
    """Record a refused deletion, because a retry will not help and an operator must see it.

    `reap` removes the record when the row has ended.
    """
    try:
        with deps.store.write() as tx:
            suspects.see(tx, SuspectKind.REFUSED, f"{REFUSED}{worker_id}", str(exc)[:500])
    except Transient as unrecorded:
        log.warning("refusal_unrecorded", worker=worker_id, cause=str(unrecorded))


def confirm(deps: Deps, worker: SeenWorker) -> Outcome:
    """End the row after its pod was deleted, and free its place in the pool."""
    by = deps.by(MoveReason.POD_DELETED)
    with transaction(deps) as (tx, after):
        outcome = workers.leave(tx, worker, State.RETIRED, by)
        if outcome is Outcome.MOVED:
            orgs.decrement_live(tx)
            after.moved(worker.id, worker.state, State.RETIRED, by.reason)
            after.refill.add(worker.profile)
            if deps.settings.pool.max_workers:
                # The freed place can become a worker of any profile.
                after.refill.update(requests.waited_for(tx, deps.settings.profiles))
    return outcome
