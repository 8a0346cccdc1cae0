"""The rollout of a new build, as a part of `reconcile_warm`: workers of the new build are created
first, a few at a time, then old workers are drained. The warm supply never falls below its target
for it. `planning.replacement` decides; this module counts and carries out.
"""

from __future__ import annotations

from collections.abc import Sequence

from pool.core import planning, profiles
from pool.core.ids import ProfileName
from pool.core.records import By, SeenWorker
from pool.core.settings import Profile
from pool.core.states import CLAIMED, MoveReason, Outcome, State
from pool.lifecycle import retiring
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import transaction
from pool.passes.pod_view import PodView
from pool.passes.running import STALE_AFTER_S, Run
from pool.store import Tx, breakers, builds, lock_reconcile, rollouts, targets, workers
from pool.store.builds import Old
from pool.store.rollouts import WantedRevision


def adopt(run: Run, tx: Tx, profile: Profile) -> bool:
    """Return whether this process's build of the profile is the wanted one.

    If not, another process with a later build is at work.
    """
    if run.dry_run:
        return True
    wanted = WantedRevision(
        profile=ProfileName(profile.name),
        revision=run.deps.revisions[ProfileName(profile.name)],
        image=profile.image,
    )
    decide = rollouts.adopt if run.deps.changes_builds else rollouts.is_wanted
    ours = decide(tx, wanted)
    if not ours:
        run.did("stood_back")
    return ours


def replacement(run: Run, tx: Tx, profile: Profile, pods: PodView) -> planning.Replacement:
    """Return what to do for this profile, as this transaction sees it."""
    name, wanted = ProfileName(profile.name), profiles.revision(profile)
    if not builds.others_live(tx, name, wanted):
        return planning.Replacement()
    if not run.dry_run and builds.has_been_ready(tx, name, wanted):
        rollouts.prove(tx, name)
    return planning.replacement(_builds(tx, run.deps, profile, pods))


def replace(run: Run, profile: Profile, pods: PodView) -> None:
    """Drain old workers of one profile: slots that this process cannot fill, idle workers that the
    supply can spare, then parked workers.
    """
    deps, name, wanted = run.deps, ProfileName(profile.name), profiles.revision(profile)
    with deps.store.write() as tx:
        lock_reconcile(tx, name)
        if not adopt(run, tx, profile) or not builds.others_live(tx, name, wanted):
            return
        plan = replacement(run, tx, profile, pods)
        target = planning.clamped_target(targets.of(tx, profile), deps.settings.pool.max_workers)
        old = builds.others_unclaimed(tx, name, wanted)
    by = deps.by(MoveReason.ROLLOUT, f"{profile.image} replaces it")
    slots = [w for w in old if w.state is State.SPAWNING and not w.has_pod]
    parked = [w for w in old if w.state is State.HOT_IDLE]
    _drain_all(run, [*slots, *parked[: plan.parked_go]], by, least_idle=0)
    idle = sorted((w for w in old if w.state is State.IDLE), key=lambda w: (w.id in pods.usable, w.ready_at))
    _drain_all(run, idle[: plan.idle_go], by, least_idle=target)


def _drain_all(run: Run, chosen: Sequence[Old], by: By, *, least_idle: int) -> None:
    """Drain the chosen workers that still have their state, in order, as many as fit one run."""
    some = run.bounded(chosen)
    with run.deps.store.read() as tx:
        now = workers.get_many(tx, [w.id for w in some]) if some else {}
    for old in some:
        if (worker := now.get(old.id)) is not None and worker.state is old.state:
            _drain_one(run, worker, by, least_idle=least_idle)


def _drain_one(run: Run, worker: SeenWorker, by: By, *, least_idle: int) -> None:
    """Drain one worker if at least `least_idle` idle workers remain.

    Acquires continue in the meantime, so each worker is checked.
    """

    def drain() -> None:
        outcome = Outcome.FENCED
        with transaction(run.deps) as (tx, after):
            lock_reconcile(tx, worker.profile)
            if not least_idle or workers.count(tx, worker.profile, State.IDLE) > least_idle:
                outcome = retiring.drain(tx, after, worker, by)
        if outcome is not Outcome.MOVED:
            run.actions["old_worker_replaced"] -= 1

    run.step("old_worker_replaced", worker.id, drain)


def _builds(tx: Tx, deps: Deps, profile: Profile, pods: PodView) -> planning.Builds:
    pool, name, wanted = deps.settings.pool, ProfileName(profile.name), profiles.revision(profile)
    counts = builds.by_state(tx, name)
    build_of = dict(builds.of_idle(tx, name))
    idle = pods.standing(build_of, workers.just_ready(tx, name, within_s=STALE_AFTER_S))
    new = {w for w in idle if build_of[w] == wanted}
    # A worker that this view does not show yet is under way: no old worker is drained for it.
    fresh = workers.just_ready(tx, name, within_s=pool.rollout_ready_s) | (new - pods.usable)
    old = {s: sum(n for (r, at), n in counts.items() if at is s and r != wanted) for s in State}
    known = rollouts.get(tx, name)
    return planning.Builds(
        target=planning.clamped_target(targets.of(tx, profile), pool.max_workers),
        step=planning.step_of(sum(counts.values()), pool.rollout_step_percent),
        old_idle=len(idle) - len(new),
        old_parked=old[State.HOT_IDLE],
        old_busy=sum(old[s] for s in CLAIMED),
        new_idle=len(new - fresh),
        new_fresh=len(new & fresh),
        new_spawning=counts.get((wanted, State.SPAWNING), 0),
        proven=known is not None and known.proven_at is not None,
        failing=name in breakers.every(tx),
    )
