"""Decisions without effects: observations in, actions out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pool.core.turns import begins_at

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The demand for one profile, and its supply."""

    target: int
    waiters: int
    misses: int
    warm: int
    spawning: int


def slots_wanted(supply: Supply) -> int:
    """Return the number of new slots that meet the demand. It is 0 once those slots exist."""
    return max(0, supply.target + supply.waiters + supply.misses - supply.warm - supply.spawning)


def whose_turn(everyone: Sequence[T], urgent: Collection[object], *, most: int, turn: int) -> Sequence[T]:
    """Return up to `most` items: all urgent ones first, the others in turns, so that each gets its turn."""
    first = [each for each in everyone if each in urgent][:most]
    rest = [each for each in everyone if each not in urgent]
    room = min(most - len(first), len(rest))
    if room == 0:
        return first
    begin = begins_at(turn, len(rest))
    return first + (rest + rest)[begin : begin + room]


def surplus(idle_long: Sequence[T], target: int) -> Sequence[T]:
    """Return the workers to retire, oldest first, of those that were idle for the whole surplus time.

    All of them were idle for that time, so the pool was above its target by their number all along.
    """
    return idle_long[: spare(len(idle_long), target)]


def spare(idle_long: int, target: int) -> int:
    """Return the number of workers above the target."""
    return max(0, idle_long - target)


def clamped_target(target: int, max_workers: int) -> int:
    """Return the warm target, limited to the pool's cap if there is one."""
    return min(target, max_workers) if max_workers else target


class RolloutProgress(StrEnum):
    """Progress of a rollout."""

    DONE = "done"
    PROVING = "proving"
    REPLACING = "replacing"
    HALTED = "halted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Builds:
    """The workers of one profile: those of the wanted build (new) and the others (old). Idle
    workers need a usable pod.
    """

    target: int
    step: int
    old_idle: int = 0
    old_parked: int = 0
    old_busy: int = 0
    new_idle: int = 0
    # Ready, but not yet for `rollout_ready_s`.
    new_fresh: int = 0
    new_spawning: int = 0
    proven: bool = False
    failing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """The actions of one run: slots to create for the wanted build, and old workers to retire."""

    slots: int = 0
    idle_go: int = 0
    parked_go: int = 0


def step_of(workers: int, percent: int) -> int:
    """Return the number of workers to replace at a time: a share of the profile's workers, at least one."""
    return max(1, workers * percent // 100)


def progress(seen: Builds) -> RolloutProgress:
    """Return the progress. Halted means that the wanted build fails to start; no old worker is
    retired meanwhile.
    """
    if not seen.old_idle + seen.old_parked + seen.old_busy:
        return RolloutProgress.DONE
    if seen.failing:
        return RolloutProgress.HALTED
    return RolloutProgress.REPLACING if seen.proven else RolloutProgress.PROVING


def replacement(seen: Builds) -> Replacement:
    """Return the actions of one run of a rollout.

    New workers become ready first, one step at a time. Then old workers are retired as long as the
    target stays warm. Until a worker of the wanted build has been ready, and while it fails to
    start, a single slot tries it and no old worker is retired.
    """
    now = progress(seen)
    if now is RolloutProgress.DONE:
        return Replacement()
    moves = now is RolloutProgress.REPLACING
    # A profile with a warm target of 0 also tries its build once before parked workers are retired.
    goal = seen.target if seen.proven else max(1, seen.target)
    under_way = seen.new_spawning + seen.new_fresh
    wanted = goal - seen.new_idle - under_way
    slots = max(0, min((seen.step if moves else 1) - under_way, wanted))
    if not moves:
        return Replacement(slots=slots)
    warm = seen.old_idle + seen.new_idle
    idle_go = max(0, min(seen.step, seen.old_idle, warm - seen.target))
    # The org of a retired parked worker needs a warm one for its next acquire, so the target must be met.
    parked_go = min(seen.step - idle_go, seen.old_parked) if warm >= seen.target else 0
    return Replacement(slots=slots, idle_go=idle_go, parked_go=parked_go)
