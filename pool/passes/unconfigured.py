"""Drain workers of a profile that was removed from the configuration: no caller can request them.

A busy one drains when it is released. This happens only after no run has known the profile for a
minute, because during an update an old replica does not know a new profile yet.
"""

from __future__ import annotations

from functools import partial

from pool.core.ids import ProfileName
from pool.core.records import SeenWorker
from pool.core.states import ENTRY, MoveReason, Outcome
from pool.lifecycle import retiring
from pool.lifecycle.effects import transaction
from pool.passes.running import Run
from pool.passes.suspecting import seen_again
from pool.store import workers
from pool.store.suspects import SuspectKind

UNKNOWN_FOR_S = 60.0


def retire(run: Run) -> None:
    """Drain as many workers of removed profiles as fit one run."""
    known = run.deps.settings.profiles
    with run.deps.store.read() as tx:
        removed = {p for p in workers.profiles(tx) if p not in known}
        unknown = {p for p in removed if workers.live(tx, states=ENTRY, profile=p, limit=1)}
    seen = seen_again(run, SuspectKind.PROFILE, {p: f"profile {p} is no longer configured" for p in unknown})
    gone = sorted(ProfileName(p) for p, suspicion in seen.items() if suspicion.age_s >= UNKNOWN_FOR_S)
    with run.deps.store.read() as tx:
        found = [w for p in gone for w in workers.live(tx, states=ENTRY, profile=p, limit=run.limit + 1)]
    for worker in run.bounded(found):
        run.step("unconfigured_drained", worker.id, partial(_drain, run, worker))


def _drain(run: Run, worker: SeenWorker) -> None:
    with transaction(run.deps) as (tx, after):
        by = run.deps.by(MoveReason.UNCONFIGURED, f"profile {worker.profile} is no longer configured")
        outcome = retiring.drain(tx, after, worker, by)
    if outcome is not Outcome.MOVED:
        run.actions["unconfigured_drained"] -= 1
