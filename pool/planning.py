"""Decisions without effects: what is observed comes in, what is to be done goes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """One profile's demand and what is there to meet it."""

    target: int
    waiters: int
    misses: int
    warm: int
    spawning: int


def slots_wanted(supply: Supply) -> int:
    """How many new slots meet the demand: none once they are made, whoever asks again."""
    return max(0, supply.target + supply.waiters + supply.misses - supply.warm - supply.spawning)


def surplus(idle_long: Sequence[T], target: int) -> Sequence[T]:
    """Which of the workers that have been idle for the whole of the surplus time are above the target: oldest first. All of them
    were idle all that time, so the pool was above its target all that time by their number."""
    return idle_long[: max(0, len(idle_long) - target)]


def clamped_target(target: int, max_workers: int) -> int:
    """A warm target above a cap is clamped only if there is a cap."""
    return min(target, max_workers) if max_workers else target
