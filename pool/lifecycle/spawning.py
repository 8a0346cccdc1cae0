"""Spawn: a slot gets its pod. Readiness is observed, never waited for. Whatever fails frees the slot at once."""

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


def spawn(deps: Deps, worker_id: WorkerId) -> Outcome:
    """Make the pod of a slot. Delivered twice it makes one; delivered late it makes none that stays."""
    with deps.store.read() as tx:
        slot = workers.get(tx, worker_id)
    if slot is None:
        return Outcome.GONE
    if slot.state is not State.SPAWNING:
        return Outcome.FENCED
    profile = deps.profile(slot.profile)
    if profile is None:
        detail = f"profile {slot.profile} is no longer configured"
        return fail(deps, slot, MoveReason.UNCONFIGURED, detail)
    if slot.revision != revision(profile):
        # Its image is on the row, the rest of its shape is not: a pod made here would be half of one build and half of another.
        log.warning("slot_of_another_configuration", worker=slot.id, profile=slot.profile)
        return Outcome.FENCED
    if not deps.keys.knows(slot.id):
        # Made under a master key that is being rolled in and has not come here yet: sent again, somebody else makes it.
        log.warning("slot_of_another_key", worker=slot.id)
        return Outcome.FENCED
    try:
        with deps.metrics.spawns_in_flight.track_inprogress():
            pod = deps.driver.create(spec(deps, slot, profile))
    except PoolError as exc:
        return fail(deps, slot, MoveReason.CREATE_FAILED, str(exc))
    return _confirm(deps, slot, pod)


def spec(deps: Deps, slot: SeenWorker, profile: Profile) -> PodSpec:
    """The pod that this slot stands for."""
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
    )


def fail(deps: Deps, slot: SeenWorker, reason: MoveReason, detail: str) -> Outcome:
    """Free the slot of a spawn that failed, count it against its profile, and let go of a pod that may exist all the same."""
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
        # The slot was given up while its pod was being made: the pod is nobody's.
        deps.driver.delete(pod.name, pod.uid, grace_s=0)
    return outcome
