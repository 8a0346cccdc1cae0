"""Whether a worker can be claimed now, by whom, and if not, why not. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pool.contract import instant
from pool.records import Org, Seen
from pool.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What beside its own row decides it."""

    paused: bool
    configured: bool
    org: Org | None = None
    in_use: int = 0


def claimable(w: Seen, around: Surroundings) -> dict[str, Any]:
    """`can` for programs, `why` for people."""
    why = _why_not(w, around)
    if why:
        return {"can": False, "why": why}
    if w.state is State.IDLE:
        return {"can": True, "why": f"by any org that asks for {w.profile}: it is warm and nobody's yet"}
    until = f" until {instant(w.hot_idle_until)}" if w.hot_idle_until else ""
    return {"can": True, "why": f"by {w.org} alone, whose configuration it has: parked{until}"}


def _why_not(w: Seen, around: Surroundings) -> str:
    by_state = {
        State.SPAWNING: "its pod is not ready yet" if w.pod_uid else "its pod is not made yet",
        State.RESERVED: f"{w.org} has it (claim {w.claim_id}), its activation has not begun",
        State.ACTIVATING: f"{w.org} has it (claim {w.claim_id}), it is being activated",
        State.HOT: f"{w.org} is using it (claim {w.claim_id})",
        State.DRAINING: "it is on its way out: only its pod's deletion is left",
        State.RETIRED: "it has ended, and ended workers never come back",
        State.LOST: "it was lost, and lost workers never come back",
    }
    if w.state in by_state:
        return by_state[w.state]
    if around.paused:
        return "the pool is paused"
    if not around.configured:
        return f"profile {w.profile} is no longer configured"
    if around.org is not None and around.org.cap and around.in_use >= around.org.cap:
        return f"only {w.org} may have it, and {w.org} holds {around.in_use} of its {around.org.cap} workers"
    return ""
