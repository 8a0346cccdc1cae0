"""`python -m bench`: measure, print ratios, and fail if a goal is missed. A quick run fails only
beyond the gates, which are wider.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

from bench import (
    claim_cost,
    documenting,
    growth,
    hand_over,
    lane_latency,
    lane_load,
    listing,
    pressure,
    protecting,
    refilling,
    refusals,
    spawning,
    waiting,
)
from bench.measuring import BenchReport, Effort, lines
from bench.plotting import plot
from tests.support.kube_binaries import Missing

# name: (the bench, its full effort, its quick one)
BENCHES: dict[str, tuple[Callable[[Effort], BenchReport], Effort, Effort]] = {
    "lane-latency": (lane_latency.run, lane_latency.FULL, lane_latency.QUICK),
    "lane-load": (lane_load.run, lane_load.FULL, lane_load.QUICK),
    "pressure": (pressure.run, pressure.FULL, pressure.QUICK),
    "refusals": (refusals.run, refusals.FULL, refusals.QUICK),
    "hand-over": (hand_over.run, hand_over.FULL, hand_over.QUICK),
    "waiting": (waiting.run, waiting.FULL, waiting.QUICK),
    "claim-cost": (claim_cost.run, claim_cost.FULL, claim_cost.QUICK),
    "growth": (growth.run, growth.FULL, growth.QUICK),
    "refilling": (refilling.run, refilling.FULL, refilling.QUICK),
    "protecting": (protecting.run, protecting.FULL, protecting.QUICK),
    "spawning": (spawning.run, spawning.FULL, spawning.QUICK),
    "listing": (listing.run, listing.FULL, listing.QUICK),
}


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if every goal was met."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure, each figure against a peer in the same run."
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds: rougher figures, judged by their gates"
    )
    parser.add_argument("--only", choices=sorted(BENCHES), help="this bench alone")
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="draw them into this folder, a PNG a bench"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    parser.add_argument(
        "--docs", type=Path, metavar="FOLDER", help="write tables, pictures and figures into these docs"
    )
    given = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

    reports = []
    for name, (bench, full, quick) in BENCHES.items():
        if given.only in (None, name):
            print(f"{name}: measuring, which takes minutes", file=sys.stderr, flush=True)
            try:
                report = bench(quick if given.quick else full)
            except Missing as exc:
                # Locally it is skipped, like the tests that need it.
                if os.environ.get("CI"):
                    raise
                print(f"{name}: left out: {exc}", file=sys.stderr, flush=True)
                continue
            print("\n".join(lines(report)), flush=True)
            reports.append(report)
            if given.plots:
                given.plots.mkdir(parents=True, exist_ok=True)
                plot(report, given.plots / f"{name}.png")
    if given.json:
        given.json.write_text(json.dumps([r.as_dict() for r in reports], indent=2) + "\n")
    if given.docs:
        documenting.write(reports, given.docs)
    return 1 if any(r.shut if given.quick else r.missed for r in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
