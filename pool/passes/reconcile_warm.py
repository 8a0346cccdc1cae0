"""reconcile_warm: create as many workers as are wanted.

Waiters are matched first; then slots are created, in one transaction per profile, so that
concurrent runs create no more than one run would. At the cap of the pool, idle and parked workers
are drained to serve waiters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pool.core import planning, profiles
from pool.core.errors import BrokenPromise
from pool.core.ids import ProfileName
from pool.core.records import SeenWorker
from pool.core.settings import Profile
from pool.core.states import MoveReason, Outcome
from pool.lifecycle import claiming, retiring
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import Effects, transaction
from pool.passes import rolling, unconfigured
from pool.passes.pod_view import PodView
from pool.passes.running import STALE_AFTER_S, Pass, Run
from pool.store import (
    Tx,
    breakers,
    lock_reconcile,
    observed_counts,
    orgs,
    passes,
    requests,
    rules,
    targets,
    workers,
)
from pool.store import supply as counting


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The pool's free places that one profile may use, and the number of workers that are being deleted."""

    places: int
    going: int

    @classmethod
    def of(cls, tx: Tx, deps: Deps, name: ProfileName) -> Room:
        """Return the room for a profile. Waiters of all profiles share it by the weights of their orgs."""
        if not deps.settings.pool.max_workers:
            return cls(places=sys.maxsize, going=0)
        found = rules.call(rules.Within(tx), "places", deps.rule_argument(profile=name))
        if found is None:
            raise BrokenPromise("the database function that shares the pool's room returned nothing")
        return cls(**found)


def run(run: Run) -> None:
    """Reconcile all profiles.

    Pods are read before rows: a row counts as warm only if its pod exists.
    """
    pods = PodView.seen_by(run)
    for name, profile in run.deps.settings.profiles.items():
        # For `status`, whose configuration file may have changed since.
        run.record_count(observed_counts.settings_of(name), profiles.settings_number(profile))
        run.try_item("reconciled", name, partial(reconcile, run, ProfileName(name), profile, pods))
        run.try_item("replaced", name, partial(rolling.replace, run, profile, pods))
    unconfigured.retire(run)


def reconcile(run: Run, name: ProfileName, profile: Profile, pods: PodView) -> None:
    """Reconcile one profile."""
    if not run.dry_run:
        run.did("waiter_matched", claiming.match(run.deps, name))
    with transaction(run.deps) as (tx, after):
        lock_reconcile(tx, name)
        short = _make_slots(run, tx, after, profile, pods) if rolling.adopt(run, tx, profile) else 0
        if short > 0:
            _make_room(run, tx, after, short)


def supply(tx: Tx, deps: Deps, profile: Profile, pods: PodView, *, misses: int) -> planning.Supply:
    """What one profile needs and has, of one moment."""
    pool = deps.settings.pool
    ages = counting.SupplyAges(
        just_ready_s=STALE_AFTER_S,
        young_s=pool.stuck_cutoff_s,
        node_wait_s=max(pool.unschedulable_limit_s, pool.stuck_cutoff_s),
    )
    counted = counting.count(tx, ProfileName(profile.name), deps.settings.profiles, ages)
    return planning.Supply(
        target=planning.clamped_target(targets.of(tx, profile), pool.max_workers),
        waiters=counted.waiters,
        misses=misses,
        warm=len(pods.standing(counted.idle, counted.just_ready)),
        # The young ones, and those that find no node and are kept for a while.
        spawning=len(counted.young | (counted.waiting_for_a_node & pods.unschedulable)),
    )


def _make_slots(run: Run, tx: Tx, after: Effects, profile: Profile, pods: PodView) -> int:
    """Create slots for what is missing, at the pool's cap only those whose turn it is.

    Return for how many waiters no room is free or becomes free.
    """
    deps, name = run.deps, ProfileName(profile.name)
    run.raise_if_interrupted()
    if breakers.is_open(tx, name):
        return 0
    # Locked, to be consumed with the slots that are made for them, or with what is there for them already.
    misses = counting.fresh_misses(
        tx, name, deps.settings.profiles, fresh_s=deps.settings.pool.miss_fresh_s, most=run.limit
    )
    seen = supply(tx, deps, profile, pods, misses=len(misses))
    wanted = max(planning.slots_wanted(seen), rolling.replacement(run, tx, profile, pods).slots)
    if run.dry_run:
        run.did("slots_made", wanted)
        return 0
    room = Room.of(tx, deps, name)
    granted = orgs.reserve_slots(tx, min(wanted, room.places, run.limit), deps.settings.pool.max_workers)
    ids = [deps.new_worker() for _ in range(granted)]
    detail = (
        f"target {seen.target}, {seen.waiters} waiting, {seen.misses} missed,"
        f" {seen.warm} warm, {seen.spawning} spawning"
    )
    workers.insert_slots(tx, profile, profiles.revision(profile), ids, deps.by(MoveReason.DEMAND, detail))
    requests.consume_misses(tx, misses[: max(0, len(misses) - (wanted - granted))])
    after.spawn.extend(ids)
    run.did("slots_made", granted)
    return min(wanted - granted, seen.waiters) - room.going


def _make_room(run: Run, tx: Tx, after: Effects, wanted: int) -> None:
    """Drain workers at the cap of the pool, because waiters come before unused workers: first idle
    workers above their profile's target, then parked workers above their org's floor, longest
    parked first.
    """
    freed, by = 0, run.deps.by(MoveReason.GAVE_WAY)
    for worker in _unused_workers(run.deps, tx, wanted):
        if freed >= wanted or not run.acts("gave_way"):
            return
        if retiring.drain(tx, after, worker, by, above_floor=True) is Outcome.MOVED:
            freed += 1


def _unused_workers(deps: Deps, tx: Tx, wanted: int) -> Iterator[SeenWorker]:
    surplus: list[SeenWorker] = []
    for name, profile in deps.settings.profiles.items():
        idle = workers.count_idle_since(tx, ProfileName(name), older_than_s=0)
        most = min(planning.spare(idle, targets.of(tx, profile)), wanted)
        if most:
            surplus.extend(workers.idle_since(tx, ProfileName(name), older_than_s=0, limit=most))
    yield from sorted(surplus, key=lambda w: (w.ready_at or w.created_at, w.id))
    # A worker that was claimed in the meantime does not count, so more are read than are wanted.
    yield from workers.parked_and_spare(tx, limit=max(wanted, deps.settings.pool.pass_limit))


def refill_once(deps: Deps, name: ProfileName) -> dict[str, Any]:
    """Reconcile one profile because of an event.

    Needs no lock: the table serialises concurrent runs.
    """
    profile = deps.profile(name)
    with deps.store.read() as tx:
        paused = passes.get(tx, "reconcile_warm").paused
    if profile is None or paused:
        return {"outcome": "paused" if paused else "unknown_profile"}
    event = Run(deps=deps, name="reconcile_warm")
    reconcile(event, name, profile, PodView.seen_by(event))
    return {"outcome": "ok", "actions": dict(event.actions)}


RECONCILE_WARM = Pass(name="reconcile_warm", run=run)
