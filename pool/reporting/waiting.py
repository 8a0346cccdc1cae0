"""Why a request waits, in one sentence. Pure: the first thing that holds it back, in the order in which the pool would trip over it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Hindrance(StrEnum):
    """What a waiter waits for."""

    ORG_CAP = "org_cap"
    SPAWN_FAILING = "spawn_failing"
    POOL_CAP = "pool_cap"
    NO_SUPPLY = "no_supply"
    STARTING = "starting"
    MATCHING = "matching"


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What stands around a request of one org for one profile."""

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
    """The reason for programs, and the sentence for people."""
    if a.org_cap and a.org_in_use >= a.org_cap:
        return (
            Hindrance.ORG_CAP,
            f"{a.org} holds {a.org_in_use} of its {a.org_cap} workers; it waits until one is released",
        )
    if a.idle:
        return Hindrance.MATCHING, f"{a.idle} {a.profile} idle; reconcile_warm matches them within 5 s"
    if a.trouble:
        return Hindrance.SPAWN_FAILING, f"{a.profile} workers can not be started: {a.trouble}"
    if a.spawning:
        return Hindrance.STARTING, f"{a.spawning} {a.profile} being started"
    if a.pool_cap and a.pool_live >= a.pool_cap:
        return Hindrance.POOL_CAP, f"the pool is at its cap of {a.pool_cap} workers and nobody gives way"
    if a.supply_stopped:
        return Hindrance.NO_SUPPLY, f"nobody makes workers: {a.supply_stopped}"
    return Hindrance.STARTING, f"no {a.profile} worker yet; reconcile_warm makes one within 5 s"
