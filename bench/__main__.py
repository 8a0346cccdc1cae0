"""`python -m bench`: measure, print ratios, and fail if a goal is missed."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

from bench import claim_cost
from bench.measuring import Effort, Report, lines

# name: (the bench, its full effort, its quick one)
BENCHES: dict[str, tuple[Callable[[Effort], Report], Effort, Effort]] = {
    "claim-cost": (claim_cost.run, claim_cost.FULL, claim_cost.QUICK),
}


def main(arguments: list[str] | None = None) -> int:
    """0 if every goal was met."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure, each figure against a peer in the same run."
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: rougher figures, the same goals")
    parser.add_argument("--only", choices=sorted(BENCHES), help="this bench alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    given = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

    reports = []
    for name, (bench, full, quick) in BENCHES.items():
        if given.only in (None, name):
            print(f"{name}: measuring, which takes minutes", file=sys.stderr, flush=True)
            report = bench(quick if given.quick else full)
            print("\n".join(lines(report)), flush=True)
            reports.append(report)
    if given.json:
        given.json.write_text(json.dumps([r.as_dict() for r in reports], indent=2) + "\n")
    return 1 if any(r.missed for r in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
