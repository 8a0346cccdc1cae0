"""Spawn: a slot gets its pod. Readiness is observed, never waited for. Whatever fails frees the slot at once."""

from __future__ import annotations

from enum import StrEnum

import structlog

from pool import retiring
from pool.after import After
from pool.deps import Deps
from pool.drivers.port import Pod, PodSpec
from pool.errors import PoolError
from pool.ids import WorkerId
from pool.profiles import revision
from pool.records import Seen
from pool.settings import Profile
from pool.states import Outcome, State
from pool.store import breakers, workers
from pool.store.workers import PodFacts

log = structlog.get_logger(__name__)


class Trouble(StrEnum):
    """Why a spawn failed, in one word."""

    CREATE = "create_failed"
    UNCONFIGURED = "unconfigured"
    NOT_READY = "not_ready"
    WRONG_IMAGE = "wrong_image"
    POD_LOST = "pod_lost"


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
        cause = f"profile {slot.profile} is no longer configured"
        return fail(deps, slot, cause, trouble=Trouble.UNCONFIGURED)
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
        return fail(deps, slot, str(exc))
    return _confirm(deps, slot, pod)


def spec(deps: Deps, slot: Seen, profile: Profile) -> PodSpec:
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


def fail(deps: Deps, slot: Seen, cause: str, *, trouble: Trouble = Trouble.CREATE) -> Outcome:
    """Free the slot of a spawn that failed, count it against its profile, and let go of a pod that may exist all the same."""
    after = After()
    with deps.store.write() as tx:
        outcome = retiring.drain(tx, after, slot, deps.by(f"spawn failed: {cause}"))
        if outcome is Outcome.MOVED:
            breakers.failed(tx, slot.profile, cause)
    if outcome is not Outcome.MOVED:
        return outcome
    deps.metrics.spawn_failures.labels(slot.profile, str(trouble)).inc()
    log.warning("spawn_failed", worker=slot.id, profile=slot.profile, cause=cause)
    retired = retiring.retire(deps, slot.id)
    if retired is Outcome.MOVED:
        after.retire.clear()
    after.send(deps)
    return retired


def _confirm(deps: Deps, slot: Seen, pod: Pod) -> Outcome:
    with deps.store.write() as tx:
        outcome = workers.has_pod(tx, slot, PodFacts(uid=pod.uid, node=pod.node))
        if outcome is not Outcome.FENCED:
            return outcome
        row = workers.get(tx, slot.id)
    if row is None or row.pod_uid != pod.uid or row.state is State.RETIRED:
        # The slot was given up while its pod was being made: the pod is nobody's.
        deps.driver.delete(pod.name, pod.uid, grace_s=0)
    return outcome
