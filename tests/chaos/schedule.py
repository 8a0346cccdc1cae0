"""What happens when. Pure: the same seed, length and ground give the same schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A fault, by what it does."""

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
    DISK_FULL = "disk full"
    API_AWAY = "API server away"
    POD_KILL = "worker killed"
    CLIENT_KILL = "client killed"
    THREAD_KILL = "thread killed"


ON_PARTS = frozenset({Kind.KILL, Kind.FREEZE, Kind.THREAD_KILL})
ON_SECONDS = frozenset({Kind.SKEW, Kind.CUT_BROKER, Kind.CUT_DATABASE})
ON_BROKER = frozenset({Kind.BROKER_RESTART, Kind.BROKER_CRASH, Kind.BROKER_FLUSH, Kind.BROKER_REFUSES})
ON_DATABASE = frozenset({Kind.DATABASE_RESTART, Kind.DATABASE_CRASH, Kind.DISK_FULL})

# Shortest and longest, in seconds; what is over at once has none.
LASTS_S: dict[Kind, tuple[float, float]] = {
    Kind.KILL: (0.5, 4),
    Kind.FREEZE: (2, 20),
    Kind.SKEW: (15, 30),
    Kind.CUT_BROKER: (3, 20),
    Kind.CUT_DATABASE: (3, 20),
    Kind.BROKER_RESTART: (0.5, 8),
    Kind.BROKER_CRASH: (0.5, 8),
    Kind.BROKER_REFUSES: (2, 6),
    Kind.DATABASE_RESTART: (0.5, 6),
    Kind.DATABASE_CRASH: (0.5, 6),
    Kind.DISK_FULL: (2, 8),
    Kind.API_AWAY: (3, 20),
}
PAUSE_S = (2.0, 7.0)
# A part that was started again needs some time before the next blow is one to a running part.
RECOVERY_S = 6.0
SKEWS_S = (-600, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What there is to break. `seconds` are parts that have a twin, reached through a proxy of their own."""

    parts: tuple[str, ...]
    seconds: tuple[str, ...]
    clients: int
    kinds: frozenset[Kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One fault: from `at_s` after the start, for `lasts_s`."""

    at_s: float
    kind: Kind
    target: str
    lasts_s: float = 0.0
    amount: int = 0

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        amount = f" by {self.amount:+d} s" if self.kind is Kind.SKEW else ""
        return f"{self.at_s:7.1f} s  {self.kind}: {self.target}{amount}{lasts}"


def schedule(seed: int, seconds: float, ground: Ground) -> list[Step]:
    """Faults one after the other and over each other, but never two on one target; each kind comes once before any comes again."""
    chance = random.Random(seed)
    free_at: dict[str, float] = {}
    deck: list[Kind] = []
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
            amount = chance.choice(SKEWS_S) if kind is Kind.SKEW else chance.randrange(1_000_000)
            steps.append(Step(at_s=now, kind=kind, target=target, lasts_s=lasts, amount=amount))
            free_at[target] = now + lasts + RECOVERY_S
        now += chance.uniform(*PAUSE_S)
    return steps


def targets(kind: Kind, ground: Ground) -> Sequence[str]:
    """What a kind of fault can be done to."""
    if kind in ON_PARTS:
        return ground.parts
    if kind in ON_SECONDS:
        return ground.seconds
    if kind in ON_BROKER:
        return ("broker",)
    if kind in ON_DATABASE:
        return ("database",)
    if kind is Kind.API_AWAY:
        return ("API server",)
    if kind is Kind.POD_KILL:
        return ("a worker",)
    return tuple(f"client-{i}" for i in range(ground.clients))
