"""What `reconcile_warm` does while a profile's build changes: workers of the new one are made first, a few at a time, then old ones go, and the
warm supply never falls below its target for it. `planning.replacement` decides; here it is counted and carried out."""

from __future__ import annotations

from collections.abc import Collection

from pool import answering, planning, profiles, retiring
from pool.after import After
from pool.deps import Deps
from pool.ids import ProfileName
from pool.passes.running import Run
from pool.records import Seen
from pool.settings import Profile
from pool.states import CLAIMED, Outcome, State
from pool.store import Tx, breakers, lock_reconcile, rollouts, targets, workers
from pool.store.rollouts import Wanted


def rules(run: Run, tx: Tx, profile: Profile) -> bool:
    """Whether this process's idea of the profile is the one to go by. If not, one that was configured later is at work beside it."""
    if run.dry_run:
        return True
    wanted = Wanted(
        profile=ProfileName(profile.name),
        revision=profiles.revision(profile),
        image=profile.image,
        started_at=run.deps.started_at,
    )
    ours = rollouts.rules(tx, wanted)
    if not ours:
        run.did("stood_back")
    return ours


def replacement(run: Run, tx: Tx, profile: Profile, usable: Collection[str]) -> planning.Replacement:
    """What is to be done for this profile, as this transaction sees it."""
    name, wanted = ProfileName(profile.name), profiles.revision(profile)
    counts = workers.builds(tx, name)
    if all(revision == wanted for revision, _ in counts):
        return planning.Replacement()
    if not run.dry_run and workers.has_been_ready(tx, name, wanted):
        rollouts.prove(tx, name)
    return planning.replacement(_builds(tx, run.deps, profile, usable, counts))


def replace(run: Run, profile: Profile, usable: Collection[str]) -> None:
    """Let old workers of one profile go: slots that nobody here can fill, idle ones that the supply can spare, then parked ones."""
    deps, name, wanted = run.deps, ProfileName(profile.name), profiles.revision(profile)
    with deps.store.write() as tx:
        lock_reconcile(tx, name)
        if not rules(run, tx, profile):
            return
        plan = replacement(run, tx, profile, usable)
        target = planning.clamped_target(targets.of(tx, profile), deps.settings.pool.max_workers)
        old = [w for w in workers.live(tx, states=_UNCLAIMED, profile=name) if w.revision != wanted]
    why = f"{profile.image} replaces it"
    slots = [w for w in old if w.state is State.SPAWNING and w.pod_uid is None]
    parked = [w for w in old if w.state is State.HOT_IDLE]
    for worker in run.bounded([*slots, *parked[: plan.parked_go]]):
        _let_go(run, worker, why, least_idle=0)
    idle = [w for w in old if w.state is State.IDLE]
    for worker in run.bounded(
        sorted(idle, key=lambda w: (w.id in usable, w.ready_at or w.created_at))[: plan.idle_go]
    ):
        _let_go(run, worker, why, least_idle=target)


_UNCLAIMED = frozenset({State.SPAWNING, State.IDLE, State.HOT_IDLE})


def _let_go(run: Run, worker: Seen, why: str, *, least_idle: int) -> None:
    """One at a time, each only if as many idle ones are left without it: acquires go on meanwhile."""
    if not run.acts("old_worker_replaced"):
        return
    after, outcome = After(), Outcome.FENCED
    with run.deps.store.write() as tx:
        lock_reconcile(tx, worker.profile)
        if not least_idle or workers.count(tx, worker.profile, State.IDLE) > least_idle:
            outcome = retiring.drain(tx, after, worker, run.deps.by(why))
    if outcome is not Outcome.MOVED:
        run.actions["old_worker_replaced"] -= 1
    answering.carry_out(run.deps, after)


def _builds(
    tx: Tx, deps: Deps, profile: Profile, usable: Collection[str], counts: dict[tuple[str, State], int]
) -> planning.Builds:
    pool, name, wanted = deps.settings.pool, ProfileName(profile.name), profiles.revision(profile)
    idle = [w for w in workers.live(tx, states=frozenset({State.IDLE}), profile=name) if w.id in usable]
    fresh = workers.fresh(tx, name, ready_s=pool.rollout_ready_s)
    new = [w for w in idle if w.revision == wanted]
    old = {s: sum(n for (r, at), n in counts.items() if at is s and r != wanted) for s in State}
    known = rollouts.get(tx, name)
    return planning.Builds(
        target=planning.clamped_target(targets.of(tx, profile), pool.max_workers),
        step=planning.step_of(sum(counts.values()), pool.rollout_step_percent),
        old_idle=len(idle) - len(new),
        old_parked=old[State.HOT_IDLE],
        old_busy=sum(old[s] for s in CLAIMED),
        new_idle=sum(1 for w in new if w.id not in fresh),
        new_fresh=sum(1 for w in new if w.id in fresh),
        new_spawning=counts.get((wanted, State.SPAWNING), 0),
        proven=known is not None and known.proven_at is not None,
        failing=name in breakers.every(tx),
    )
