"""Many concurrent clients: 64 that call again at once, a burst of 300, and random arrivals. All but
the first are open-loop: a call is measured from when it was due.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.ground import BenchGround, CallerProcess, ground
from bench.measuring import BenchReport, Effort, Figure, Measured

FULL = Effort(rounds=7, calls=20, warm_up=5)
QUICK = Effort(rounds=3, calls=10, warm_up=3)
PROCESSES, CLIENTS, BURST, RATE, OVER_S = 4, 64, 300, 40.0, 4.0
KINDS = {"lane": "lane", "cycle": "lane", "stock": "stock"}


@dataclass
class CallerLoad:
    """The callers of one kind, and what they measured."""

    place: BenchGround
    kind: str
    callers: Sequence[CallerProcess]
    rounds: dict[str, list[list[float]]] = field(default_factory=dict)

    def closed(self, calls: int) -> None:
        """64 clients that call again as soon as they are answered. The result is the total time
        divided by the number of calls: seconds per call.
        """
        share = CLIENTS // PROCESSES
        plans = [[0.0] * (calls * share) for _ in self.callers]
        last = max(self._run(plans, share))
        self._keep(f"{CLIENTS} clients", [last / (calls * CLIENTS)])

    def burst(self) -> None:
        each = BURST // PROCESSES
        self._keep(f"burst of {BURST}", self._run([[0.0] * each for _ in self.callers], each))

    def poisson(self, rate: float, seed: int, over_s: float = OVER_S) -> None:
        """Arrivals that do not wait for each other."""
        dice = random.Random(seed)
        plans = []
        for _ in self.callers:
            at, plan = 0.0, []
            while (at := at + dice.expovariate(rate / PROCESSES)) < over_s:
                plan.append(at)
            plans.append(plan)
        self._keep(f"{rate:g} a second", self._run(plans, CLIENTS // PROCESSES))

    def forget(self) -> None:
        self.rounds.clear()

    def _keep(self, what: str, seconds: list[float]) -> None:
        self.rounds.setdefault(what, []).append(seconds)

    def _run(self, plans: Sequence[Sequence[float]], threads: int) -> list[float]:
        for caller, plan in zip(self.callers, plans, strict=True):
            caller.begin(plan, threads)
        seconds = [s for caller in self.callers for s in caller.seconds()]
        self.place.used(KINDS[self.kind], len(seconds))
        self.place.put_right()
        return seconds


def run(effort: Effort) -> BenchReport:
    """Start everything, measure in turns, end everything."""
    with (
        tempfile.TemporaryDirectory(prefix="warmpool-bench-") as folder,
        ground(Path(folder)) as place,
        ExitStack() as stack,
    ):
        loads = [CallerLoad(place, kind, callers(stack, kind, place.url)) for kind in KINDS]
        compared = [load for load in loads if load.kind != "cycle"]
        for number in range(effort.rounds + 1):
            # One load after the other on each kind, so that compared figures are measured within
            # seconds.
            for load in loads:
                load.closed(effort.calls if number else effort.warm_up)
            for load in compared:
                load.burst()
            for load in compared:
                load.poisson(RATE, seed=number)
            loads[0].poisson(10 * RATE, seed=number)
            if not number:
                for load in loads:
                    load.forget()
    measured = Measured(
        rounds={f"{load.kind}, {what}": rounds for load in loads for what, rounds in load.rounds.items()}
    )
    return BenchReport(bench="lane-load", figures=_figures(measured), measured=measured)


def _figures(measured: Measured) -> tuple[Figure, ...]:
    clients, burst, rate = f"{CLIENTS} clients", f"burst of {BURST}", f"{RATE:g} a second"
    return (
        measured.ratio(
            f"{clients}, time an acquire: lane to stock claim (8 x the rate is 0.125)",
            f"lane, {clients}",
            f"stock, {clients}",
            most=0.125,
            gate=0.3,
        ),
        measured.ratio(
            f"{clients}, time a cycle with release: lane to stock claim",
            f"cycle, {clients}",
            f"stock, {clients}",
        ),
        measured.ratio(
            f"{burst}, p99: lane to stock", f"lane, {burst}", f"stock, {burst}", q=99, most=0.2, gate=0.4
        ),
        measured.ratio(f"{rate}, p50: lane to stock", f"lane, {rate}", f"stock, {rate}"),
        measured.ratio(f"{rate}, p99: lane to stock", f"lane, {rate}", f"stock, {rate}", q=99),
        measured.ratio(
            f"p99: lane at {10 * RATE:g} a second to stock at {RATE:g}",
            f"lane, {10 * RATE:g} a second",
            f"stock, {rate}",
            q=99,
        ),
    )


def callers(stack: ExitStack, kind: str, url: str) -> list[CallerProcess]:
    callers = [CallerProcess(kind, url) for _ in range(PROCESSES)]
    for caller in callers:
        stack.callback(caller.close)
    for caller in callers:
        caller.wait_ready()
    return callers
