"""Whether a refill slows acquires: random arrivals (open-loop, measured from when each was due), in
turns with and without a refill. As many workers are created as are taken. Pods are entries of a
dict, because a real cluster's nodes and API server are other machines; the database work of the
refill is real.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.ground import BenchGround, ground
from bench.lane_load import RATE, CallerLoad, callers
from bench.measuring import BenchReport, Effort, Measured
from tests.support.system import ROOT

# The approximate number of calls per round; a p99 needs many of them. The warm-up is whole rounds.
FULL = Effort(rounds=9, calls=640, warm_up=1)
QUICK = Effort(rounds=5, calls=160, warm_up=1)
MOST = 1.2


class Refill:
    """The refilling process."""

    def __init__(self, place: BenchGround, rate: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.refiller", place.database, str(rate)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError("the refill could not be started")

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def run(effort: Effort) -> BenchReport:
    """Start everything, measure in turns, end everything."""
    with (
        tempfile.TemporaryDirectory(prefix="warmpool-bench-") as folder,
        ground(Path(folder)) as place,
        ExitStack() as stack,
    ):
        load = CallerLoad(place, "lane", callers(stack, "lane", place.url))
        refill = Refill(place, RATE)
        stack.callback(refill.close)
        rounds: dict[str, list[list[float]]] = {"alone": [], "alone (again)": [], "beside a refill": []}
        order = list(rounds)
        for number in range(effort.warm_up + effort.rounds):
            for name in order[number % 3 :] + order[: number % 3]:
                refill.say("go" if name == "beside a refill" else "rest")
                load.forget()
                load.poisson(RATE, seed=number, over_s=effort.calls / RATE)
                (seconds,) = (found for kept in load.rounds.values() for found in kept)
                if number >= effort.warm_up:
                    rounds[name].append(seconds)
    measured = Measured(rounds=rounds)
    figures = (
        measured.ratio(
            "p99: beside a refill to alone", "beside a refill", "alone", q=99, most=MOST, gate=3.0
        ),
        measured.ratio("p50: beside a refill to alone", "beside a refill", "alone"),
        measured.ratio("p99: alone to itself (the noise)", "alone (again)", "alone", q=99),
    )
    return BenchReport(bench="refilling", figures=figures, measured=measured)
