"""The schedule of faults. Pure: the same seed, length and ground give the same schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """A fault, by its effect."""

    KILL = "kill -9"
    FREEZE = "freeze"
    SKEW = "clock wrong"
    CUT_BROKER = "cut from the broker"
    CUT_DATABASE = "cut from the database"
    BROKER_RESTART = "broker restart"
    BROKER_CRASH = "broker crash"
    BROKER_FLUSH = "broker emptied"
    BROKER_REFUSES = "write-refusing Redis"
    DATABASE_RESTART = "database restart"
    DATABASE_CRASH = "database crash"
    DATABASE_REFUSES = "write-refusing Postgres"
    API_AWAY = "API server away"
    POD_KILL = "worker killed"
    CLIENT_KILL = "client killed"
    THREAD_KILL = "thread killed"
    REDIS_FAILOVER = "redis failover"
    POSTGRES_FAILOVER = "postgres failover"
    PGBOUNCER_RESTART = "pgbouncer restart"
    ROLLING_UPGRADE = "rolling upgrade"


# Faults that need replicated servers, or the previous version.
REPLICATED_KINDS = frozenset(
    {
        FaultKind.REDIS_FAILOVER,
        FaultKind.POSTGRES_FAILOVER,
        FaultKind.PGBOUNCER_RESTART,
        FaultKind.ROLLING_UPGRADE,
    }
)
ON_PARTS = frozenset({FaultKind.KILL, FaultKind.FREEZE, FaultKind.THREAD_KILL, FaultKind.ROLLING_UPGRADE})
ON_SECONDS = frozenset({FaultKind.SKEW, FaultKind.CUT_BROKER, FaultKind.CUT_DATABASE})
ON_BROKER = frozenset(
    {FaultKind.BROKER_RESTART, FaultKind.BROKER_CRASH, FaultKind.BROKER_FLUSH, FaultKind.BROKER_REFUSES}
    | {FaultKind.REDIS_FAILOVER}
)
ON_DATABASE = frozenset(
    {FaultKind.DATABASE_RESTART, FaultKind.DATABASE_CRASH, FaultKind.DATABASE_REFUSES}
    | {FaultKind.POSTGRES_FAILOVER, FaultKind.PGBOUNCER_RESTART}
)

# Shortest and longest duration, in seconds; faults without duration have none.
LASTS_S: dict[FaultKind, tuple[float, float]] = {
    FaultKind.KILL: (0.5, 4),
    FaultKind.FREEZE: (2, 20),
    FaultKind.SKEW: (15, 30),
    FaultKind.CUT_BROKER: (3, 20),
    FaultKind.CUT_DATABASE: (3, 20),
    FaultKind.BROKER_RESTART: (0.5, 8),
    FaultKind.BROKER_CRASH: (0.5, 8),
    FaultKind.BROKER_REFUSES: (2, 6),
    FaultKind.DATABASE_RESTART: (0.5, 6),
    FaultKind.DATABASE_CRASH: (0.5, 6),
    FaultKind.DATABASE_REFUSES: (2, 8),
    FaultKind.API_AWAY: (3, 20),
    FaultKind.REDIS_FAILOVER: (2, 8),
    FaultKind.POSTGRES_FAILOVER: (1, 5),
    FaultKind.PGBOUNCER_RESTART: (0.5, 6),
    FaultKind.ROLLING_UPGRADE: (4, 12),
}
PAUSE_S = (2.0, 7.0)
# A restarted part needs some time before the next fault meets a running part.
RECOVERY_S = 6.0
SKEWS_S = (-600, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultGround:
    """The parts that can be broken. `seconds` are parts with a second replica, reached through its
    own proxy.
    """

    parts: tuple[str, ...]
    seconds: tuple[str, ...]
    clients: int
    kinds: frozenset[FaultKind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One fault: from `at_s` after the start, for `lasts_s`."""

    at_s: float
    kind: FaultKind
    target: str
    lasts_s: float = 0.0
    amount: int = 0

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        amount = f" by {self.amount:+d} s" if self.kind is FaultKind.SKEW else ""
        return f"{self.at_s:7.1f} s  {self.kind}: {self.target}{amount}{lasts}"


def schedule(seed: int, seconds: float, ground: FaultGround) -> list[Step]:
    """Return faults that may overlap, but never two on one target; each kind comes once before any
    comes again.
    """
    chance = random.Random(seed)
    free_at: dict[str, float] = {}
    deck: list[FaultKind] = []
    steps: list[Step] = []
    now = chance.uniform(*PAUSE_S)
    while now < seconds:
        if not deck:
            deck = sorted(ground.kinds)
            chance.shuffle(deck)
        kind = deck.pop()
        lasts = chance.uniform(*LASTS_S[kind]) if kind in LASTS_S else 0.0
        lasts = min(lasts, max(0.5, seconds - now))
        free = [t for t in targets(kind, ground) if free_at.get(t, 0.0) <= now]
        if free:
            target = chance.choice(free)
            amount = chance.choice(SKEWS_S) if kind is FaultKind.SKEW else chance.randrange(1_000_000)
            steps.append(Step(at_s=now, kind=kind, target=target, lasts_s=lasts, amount=amount))
            free_at[target] = now + lasts + RECOVERY_S
        else:
            deck.insert(0, kind)
        now += chance.uniform(*PAUSE_S)
    return steps


def targets(kind: FaultKind, ground: FaultGround) -> Sequence[str]:
    """Return the possible targets of a kind of fault."""
    if kind in ON_PARTS:
        return ground.parts
    if kind in ON_SECONDS:
        return ground.seconds
    if kind in ON_BROKER:
        return ("broker",)
    if kind in ON_DATABASE:
        return ("database",)
    if kind is FaultKind.API_AWAY:
        return ("API server",)
    if kind is FaultKind.POD_KILL:
        return ("a worker",)
    return tuple(f"client-{i}" for i in range(ground.clients))
