"""64 clients that never rest, on one lane after the other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench.ground import CallerProcess
from bench.lane_load import CLIENTS, PROCESSES
from bench.lanes import BenchLane
from bench.measuring import Effort, Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLoad:
    """The clients of one lane, and how many workers one call uses up."""

    name: str
    lane: BenchLane
    callers: Sequence[CallerProcess]
    workers_a_call: int = 0


def in_turns(loads: Sequence[TurnLoad], effort: Effort) -> Measured:
    """Return seconds per call of each load, one figure per round. Each round has a new order: work
    that one load leaves behind its answers falls to the next one.
    """
    order, shuffled = list(loads), random.Random(1)
    rounds: dict[str, list[list[float]]] = {load.name: [] for load in loads}
    for number in range(effort.rounds + 1):
        calls = effort.calls if number else effort.warm_up
        shuffled.shuffle(order)
        for load in order:
            taken = _seconds_a_call(load.callers, calls)
            load.lane.put_right(calls * CLIENTS * load.workers_a_call)
            if number:
                rounds[load.name].append([taken])
    return Measured(rounds=rounds)


def _seconds_a_call(callers: Sequence[CallerProcess], calls: int) -> float:
    """The total time divided by the number of calls."""
    share = CLIENTS // PROCESSES
    for caller in callers:
        caller.begin([0.0] * (calls * share), share)
    return max(s for caller in callers for s in caller.seconds()) / (calls * CLIENTS)
