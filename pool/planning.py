"""Decisions without effects: what is observed comes in, what is to be done goes out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pool.turns import begins_at

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


def whose_turn(everyone: Sequence[T], urgent: Collection[object], *, most: int, turn: int) -> Sequence[T]:
    """So many of them: who is urgent always, the others one after the other with each turn, so that nobody is left out for ever."""
    first = [each for each in everyone if each in urgent][:most]
    rest = [each for each in everyone if each not in urgent]
    room = min(most - len(first), len(rest))
    if room == 0:
        return first
    begin = begins_at(turn, len(rest))
    return first + (rest + rest)[begin : begin + room]


def surplus(idle_long: Sequence[T], target: int) -> Sequence[T]:
    """Which of the workers that have been idle for the whole of the surplus time are above the target: oldest first. All of them
    were idle all that time, so the pool was above its target all that time by their number."""
    return idle_long[: spare(len(idle_long), target)]


def spare(idle_long: int, target: int) -> int:
    """How many those are."""
    return max(0, idle_long - target)


def clamped_target(target: int, max_workers: int) -> int:
    """A warm target above a cap is clamped only if there is a cap."""
    return min(target, max_workers) if max_workers else target


class Progress(StrEnum):
    """How far the change of a profile's build has come."""

    DONE = "done"
    PROVING = "proving"
    REPLACING = "replacing"
    HALTED = "halted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Builds:
    """One profile's workers, those of the wanted build apart from the others. Idle ones count only with a usable pod."""

    target: int
    step: int
    old_idle: int = 0
    old_parked: int = 0
    old_busy: int = 0
    new_idle: int = 0
    # Ready, but not yet for as long as is asked of a replacement.
    new_fresh: int = 0
    new_spawning: int = 0
    proven: bool = False
    failing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What one run does about it: slots of the wanted build, and workers of others that go."""

    slots: int = 0
    idle_go: int = 0
    parked_go: int = 0


def step_of(workers: int, percent: int) -> int:
    """How many workers are replaced at a time: a share of the profile's, and always one."""
    return max(1, workers * percent // 100)


def progress(seen: Builds) -> Progress:
    """Halted: the wanted build fails to start, and nothing more is given up for it until it does."""
    if not seen.old_idle + seen.old_parked + seen.old_busy:
        return Progress.DONE
    if seen.failing:
        return Progress.HALTED
    return Progress.REPLACING if seen.proven else Progress.PROVING


def replacement(seen: Builds) -> Replacement:
    """New ones become ready first, a step at a time; then as many old ones go as leave the target warm. Until one of the wanted build has been
    ready, and whenever it fails to start, a single slot tries it and nothing old goes."""
    now = progress(seen)
    if now is Progress.DONE:
        return Replacement()
    moves = now is Progress.REPLACING
    # A profile that keeps nothing warm tries its build all the same, once, before what is parked goes for it.
    goal = seen.target if seen.proven else max(1, seen.target)
    under_way = seen.new_spawning + seen.new_fresh
    wanted = goal - seen.new_idle - under_way
    slots = max(0, min((seen.step if moves else 1) - under_way, wanted))
    if not moves:
        return Replacement(slots=slots)
    warm = seen.old_idle + seen.new_idle
    idle_go = max(0, min(seen.step, seen.old_idle, warm - seen.target))
    # The org of a parked one takes a warm one next time, so these have to be there.
    parked_go = min(seen.step - idle_go, seen.old_parked) if warm >= seen.target else 0
    return Replacement(slots=slots, idle_go=idle_go, parked_go=parked_go)
