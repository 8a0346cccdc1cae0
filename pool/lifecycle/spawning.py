"""Spawn: create the pod of a slot.

Readiness is observed, never waited for. A failure frees the slot at once.
"""

from __future__ import annotations

import structlog

from pool.core.errors import PoolError
from pool.core.ids import WorkerId
from pool.core.profiles import revision
from pool.core.records import SeenWorker
from pool.core.settings import Profile
from pool.core.states import MoveReason, Outcome, State
from pool.drivers.port import Pod, PodSpec
from pool.lifecycle import retiring
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import transaction
from pool.store import breakers, workers
from pool.store.workers import PodFacts

log = structlog.get_logger(__name__)

# Each time takes about a second.
HANDED_ON_AT_MOST = 60


def spawn(deps: Deps, worker_id: WorkerId, handed_on: int = 0) -> Outcome:
    """Create the pod of a slot.

    A repeated delivery creates no second pod, and a late one leaves no pod behind. A slot of another
    configuration is handed on to the other processes of the fleet, up to `HANDED_ON_AT_MOST` times.
    """
    with deps.store.read() as tx:
        slot = workers.get(tx, worker_id)
    if slot is None:
        return Outcome.GONE
    if slot.state is not State.SPAWNING:
        return Outcome.FENCED
    profile = deps.profile(slot.profile)
    # The row has the image, but not the other settings: the pod would mix two builds. And a slot may
    # have been made with a new master key that this process does not have yet.
    if profile is None or slot.revision != revision(profile) or not deps.keys.knows(slot.id):
        return _hand_on(deps, slot, handed_on)
    try:
        with deps.metrics.spawns_in_flight.track_inprogress():
            pod = deps.driver.create(spec(deps, slot, profile))
    except PoolError as exc:
        return fail(deps, slot, MoveReason.CREATE_FAILED, str(exc))
    return _confirm(deps, slot, pod)


def _hand_on(deps: Deps, slot: SeenWorker, handed_on: int) -> Outcome:
    """Let another process of the fleet create the pod: during a rollout some have the slot's
    configuration and some have not.
    """
    if handed_on < HANDED_ON_AT_MOST:
        deps.broker.send_later("pool.spawn", worker_id=slot.id, handed_on=handed_on + 1)
        return Outcome.FENCED
    if deps.profile(slot.profile) is None:
        detail = f"profile {slot.profile} is no longer configured"
        return fail(deps, slot, MoveReason.UNCONFIGURED, detail)
    log.warning("slot_of_another_configuration", worker=slot.id, profile=slot.profile)
    return Outcome.FENCED


def spec(deps: Deps, slot: SeenWorker, profile: Profile) -> PodSpec:
    """Return the pod of this slot."""
    return PodSpec(
        name=slot.id,
        profile=slot.profile,
        revision=slot.revision,
        image=slot.image,
        command=profile.command,
        env=profile.env,
        cpu_millicores=profile.cpu_millicores,
        memory_mib=profile.memory_mib,
        port=profile.port,
        grace_s=slot.grace_s,
        secret=deps.worker_key(slot.id),
        readiness_path=profile.readiness_path,
    )


def fail(deps: Deps, slot: SeenWorker, reason: MoveReason, detail: str) -> Outcome:
    """Free the slot of a failed spawn, count the failure against its profile, and delete its pod,
    if there is one.
    """
    by = deps.by(reason, detail)
    with transaction(deps) as (tx, after):
        outcome = retiring.drain(tx, after, slot, by)
        if outcome is Outcome.MOVED:
            breakers.failed(tx, slot.profile, by.text)
        after.retire.clear()  # done here, at once
    if outcome is not Outcome.MOVED:
        return outcome
    deps.metrics.spawn_failures.labels(slot.profile, str(reason)).inc()
    log.warning("spawn_failed", worker=slot.id, profile=slot.profile, reason=str(reason), detail=detail)
    return retiring.retire(deps, slot.id)


def _confirm(deps: Deps, slot: SeenWorker, pod: Pod) -> Outcome:
    with deps.store.write() as tx:
        outcome = workers.record_pod(tx, slot, PodFacts(uid=pod.uid, node=pod.node))
        if outcome is not Outcome.FENCED:
            return outcome
        row = workers.get(tx, slot.id)
    if row is None or row.pod_uid != pod.uid or row.state is State.RETIRED:
        # The slot was given up while its pod was created: the pod belongs to no row.
        deps.driver.delete(pod.name, pod.uid, grace_s=0)
    return outcome
