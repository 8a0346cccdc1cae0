"""The rollout of a profile that is in progress, as a value."""

from __future__ import annotations

from typing import Any

from pool.core import planning
from pool.core.contract import instant
from pool.core.states import CLAIMABLE, CLAIMED, State
from pool.store import Tx, breakers, builds, rollouts


def rollout_of(
    tx: Tx, rollout: rollouts.Rollout, failing: breakers.Breaker | None, *, full: bool
) -> dict[str, Any] | None:
    """Return the progress of a rollout; None if all workers of the profile have the wanted revision."""
    counts = builds.by_state(tx, rollout.profile)
    old = {s: sum(n for (r, at), n in counts.items() if at is s and r != rollout.revision) for s in State}
    new = {s: counts.get((rollout.revision, s), 0) for s in State}
    seen = planning.Builds(
        target=0,
        step=1,
        old_idle=old[State.IDLE],
        old_parked=old[State.HOT_IDLE],
        old_busy=sum(old[s] for s in CLAIMED),
        proven=rollout.proven_at is not None,
        failing=failing is not None,
    )
    progress = planning.progress(seen)
    if progress is planning.RolloutProgress.DONE:
        return None
    return {
        "image": rollout.image,
        "since": instant(rollout.since),
        "progress": str(progress),
        "why": failing.why if failing is not None else None,
        "old": {"idle": seen.old_idle, "hot_idle": seen.old_parked, "busy": seen.old_busy},
        "new": sum(new[s] for s in CLAIMABLE | CLAIMED),
        "no_room": full and not new[State.SPAWNING],
    }
