"""reconcile_warm: as many workers as are wanted. Waiters are matched first, then slots are made for what is missing, in one transaction
per profile, so that runs that overlap make no more than one would. At the pool's cap others give way to waiters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pool.core import planning, profiles
from pool.core.ids import ProfileName
from pool.core.records import SeenWorker
from pool.core.settings import Profile
from pool.core.states import MoveReason, Outcome
from pool.drivers.port import PodPhase
from pool.lifecycle import claiming, retiring
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import Effects, transaction
from pool.passes import rolling, unconfigured
from pool.passes.running import STALE_AFTER_S, Pass, Run
from pool.store import (
    Tx,
    breakers,
    lock_reconcile,
    orgs,
    passes,
    requests,
    row_scans,
    targets,
    workers,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """What the driver says of pods, by name."""

    usable: frozenset[str]
    going: frozenset[str]
    unschedulable: frozenset[str]

    @classmethod
    def seen_by(cls, run: Run) -> PodView:
        pods = run.cluster().named().values()
        return cls(
            usable=frozenset(p.name for p in pods if p.usable),
            going=frozenset(p.name for p in pods if p.terminating or p.leaving or p.phase is PodPhase.ENDED),
            unschedulable=frozenset(p.name for p in pods if p.unschedulable),
        )


def run(run: Run) -> None:
    """All profiles. The pods come before the rows: a row is warm only if its pod was there."""
    pods = PodView.seen_by(run)
    for name, profile in run.deps.settings.profiles.items():
        run.spare("reconciled", name, partial(reconcile, run, ProfileName(name), profile, pods))
        run.spare("replaced", name, partial(rolling.replace, run, profile, pods.usable))
    unconfigured.retire(run)


def reconcile(run: Run, name: ProfileName, profile: Profile, pods: PodView) -> None:
    """One profile."""
    if not run.dry_run:
        run.did("waiter_matched", claiming.match(run.deps, name))
    with transaction(run.deps) as (tx, after):
        lock_reconcile(tx, name)
        short = _make_slots(run, tx, after, profile, pods) if rolling.adopt(run, tx, profile) else 0
        if short:
            _make_room(run, tx, after, short)


def supply(tx: Tx, deps: Deps, profile: Profile, pods: PodView, *, misses: int) -> planning.Supply:
    """What one profile needs and has, as this transaction sees it."""
    pool, name = deps.settings.pool, ProfileName(profile.name)
    # Another process has seen them become ready a moment ago, and our view may be older than that.
    just_ready = workers.just_ready(tx, name, within_s=STALE_AFTER_S) - pods.going
    return planning.Supply(
        target=planning.clamped_target(targets.of(tx, profile), pool.max_workers),
        waiters=requests.count_waiting(tx, name),
        misses=misses,
        warm=sum(1 for i in row_scans.idle_ids(tx, name) if i in pods.usable or i in just_ready),
        spawning=_on_their_way(tx, deps, name, pods),
    )


def _make_slots(run: Run, tx: Tx, after: Effects, profile: Profile, pods: PodView) -> int:
    """Slots for what is missing. How many waiters stay without one because the pool is at its cap."""
    deps, name = run.deps, ProfileName(profile.name)
    run.must_go_on()
    if breakers.is_open(tx, name):
        return 0
    # Locked, to be consumed with the slots that are made for them, or with what is there for them already.
    misses = requests.fresh_misses(tx, name, fresh_s=deps.settings.pool.miss_fresh_s)
    seen = supply(tx, deps, profile, pods, misses=len(misses))
    wanted = max(planning.slots_wanted(seen), rolling.replacement(run, tx, profile, pods.usable).slots)
    if run.dry_run:
        run.did("slots_made", wanted)
        return 0
    granted = orgs.reserve_slots(tx, min(wanted, run.limit), deps.settings.pool.max_workers)
    ids = [deps.new_worker() for _ in range(granted)]
    detail = f"target {seen.target}, {seen.waiters} waiting, {seen.misses} missed, {seen.warm} warm, {seen.spawning} spawning"
    workers.insert_slots(tx, profile, profiles.revision(profile), ids, deps.by(MoveReason.DEMAND, detail))
    requests.consume_misses(tx, misses[: max(0, len(misses) - (wanted - granted))])
    after.spawn.extend(ids)
    run.did("slots_made", granted)
    return min(wanted - granted, seen.waiters)


def _make_room(run: Run, tx: Tx, after: Effects, wanted: int) -> None:
    """At the cap a waiter comes before what nobody uses: first idle workers above their profile's target, then the parked ones that
    have been parked longest, above their org's floor."""
    freed, by = 0, run.deps.by(MoveReason.GAVE_WAY)
    for worker in _those_who_give_way(run.deps, tx, wanted):
        if freed >= wanted or not run.acts("gave_way"):
            return
        if retiring.drain(tx, after, worker, by, above_floor=True) is Outcome.MOVED:
            freed += 1


def _those_who_give_way(deps: Deps, tx: Tx, wanted: int) -> Iterator[SeenWorker]:
    surplus: list[SeenWorker] = []
    for name, profile in deps.settings.profiles.items():
        idle = workers.count_idle_since(tx, ProfileName(name), older_than_s=0)
        most = min(planning.spare(idle, targets.of(tx, profile)), wanted)
        if most:
            surplus.extend(workers.idle_since(tx, ProfileName(name), older_than_s=0, limit=most))
    yield from sorted(surplus, key=lambda w: (w.ready_at or w.created_at, w.id))
    # One that was taken meanwhile does not count, so more of them are looked at than are wanted.
    yield from workers.parked_and_spare(tx, limit=max(wanted, deps.settings.pool.pass_limit))


def refill_once(deps: Deps, name: ProfileName) -> dict[str, Any]:
    """One profile, because of an event. Needs no lock: what runs beside it is serialised by the table."""
    profile = deps.profile(name)
    with deps.store.read() as tx:
        paused = passes.get(tx, "reconcile_warm").paused
    if profile is None or paused:
        return {"outcome": "paused" if paused else "unknown_profile"}
    event = Run(deps=deps, name="reconcile_warm")
    reconcile(event, name, profile, PodView.seen_by(event))
    return {"outcome": "ok", "actions": dict(event.actions)}


def _on_their_way(tx: Tx, deps: Deps, name: ProfileName, pods: PodView) -> int:
    """Slots that may still become workers: the young ones, and those that find no node and are kept for a while."""
    pool = deps.settings.pool
    young = workers.young_slots(tx, name, younger_than_s=pool.stuck_cutoff_s)
    if not pods.unschedulable:
        return len(young)
    kept = workers.young_slots(tx, name, younger_than_s=max(pool.unschedulable_limit_s, pool.stuck_cutoff_s))
    return len(young) + sum(1 for i in kept if i in pods.unschedulable and i not in young)


RECONCILE_WARM = Pass(name="reconcile_warm", run=run)
