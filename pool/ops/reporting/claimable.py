"""Whether a worker can be claimed now, by which org, and if not, why not. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pool.core.contract import instant
from pool.core.records import Org, SeenWorker
from pool.core.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimableContext:
    """What decides it besides the worker's row."""

    paused: bool
    configured: bool
    org: Org | None = None
    in_use: int = 0


def claimable(w: SeenWorker, around: ClaimableContext) -> dict[str, Any]:
    """Return `can` for programs and `why` for people."""
    why = _why_not(w, around)
    if why:
        return {"can": False, "why": why}
    if w.state is State.IDLE:
        return {
            "can": True,
            "why": f"by any org that requests a {w.profile} worker: it is warm and unclaimed",
        }
    until = f" until {instant(w.hot_idle_until)}" if w.hot_idle_until else ""
    return {"can": True, "why": f"only by {w.org}, for which it was activated: parked{until}"}


def _why_not(w: SeenWorker, around: ClaimableContext) -> str:
    by_state = {
        State.SPAWNING: "its pod is not ready yet" if w.pod_uid else "its pod has not been created yet",
        State.RESERVED: f"{w.org} has claimed it (claim {w.claim_id}), and its activation has not started",
        State.ACTIVATING: f"{w.org} has claimed it (claim {w.claim_id}), and it is being activated",
        State.HOT: f"{w.org} is using it (claim {w.claim_id})",
        State.DRAINING: "it is draining, and its pod will be deleted",
        State.RETIRED: "it is retired, and a retired worker is never used again",
        State.LOST: "it is lost, and a lost worker is never used again",
    }
    if w.state in by_state:
        return by_state[w.state]
    if around.paused:
        return "the pool is paused"
    if not around.configured:
        return f"profile {w.profile} is no longer configured"
    if around.org is not None and around.org.cap and around.in_use >= around.org.cap:
        return (
            f"only {w.org} can claim it, and {w.org} is at its cap ({around.in_use} of "
            f"{around.org.cap} workers)"
        )
    return ""
