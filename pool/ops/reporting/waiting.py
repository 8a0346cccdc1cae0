"""Why a request waits, in one sentence. Pure: the first obstacle, in the order in which the pool
checks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Hindrance(StrEnum):
    """What a waiting request waits for."""

    ORG_CAP = "org_cap"
    SPAWN_FAILING = "spawn_failing"
    POOL_CAP = "pool_cap"
    NO_SUPPLY = "no_supply"
    STARTING = "starting"
    MATCHING = "matching"


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The state of the pool that a request of one org for one profile depends on."""

    org: str
    profile: str
    org_cap: int = 0
    org_in_use: int = 0
    pool_cap: int = 0
    pool_live: int = 0
    idle: int = 0
    spawning: int = 0
    trouble: str = ""
    supply_stopped: str = ""


def why_it_waits(a: Around) -> tuple[Hindrance, str]:
    """Return the reason for programs, and the sentence for people."""
    if a.org_cap and a.org_in_use >= a.org_cap:
        return (
            Hindrance.ORG_CAP,
            (
                f"{a.org} is at its cap ({a.org_in_use} of {a.org_cap} workers); it waits until "
                f"{a.org} releases one"
            ),
        )
    if a.idle:
        return (
            Hindrance.MATCHING,
            f"{a.profile} workers idle: {a.idle}; reconcile_warm assigns one within 5 s",
        )
    if a.trouble:
        return Hindrance.SPAWN_FAILING, f"{a.profile} workers cannot be started: {a.trouble}"
    if a.spawning:
        return Hindrance.STARTING, f"{a.profile} workers starting: {a.spawning}"
    if a.pool_cap and a.pool_live >= a.pool_cap:
        return (
            Hindrance.POOL_CAP,
            f"the pool is at its cap of {a.pool_cap} workers; it waits until one is released or removed",
        )
    if a.supply_stopped:
        return Hindrance.NO_SUPPLY, f"no workers are created: {a.supply_stopped}"
    return Hindrance.STARTING, f"there is no {a.profile} worker yet; reconcile_warm creates one within 5 s"
