"""Run chaos and print the report; exit code 1 if a promise was broken."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos.report import page
from tests.chaos.running import Chaos
from tests.chaos.schedule import FaultKind


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="The real system under a seeded schedule of faults."
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same schedule")
    parser.add_argument("--minutes", type=float, default=10, help="how long faults go on (default 10)")
    parser.add_argument(
        "--pods", choices=["local", "kubernetes"], default="local",
        help="processes, or pods on a real API server, which then is away at times (needs the servers of `make test-kube`)",
    )  # fmt: skip
    parser.add_argument(
        "--servers", choices=["single", "replicated"], default="single",
        help="one Redis and one Postgres, or replicated ones that fail over, a PgBouncer, and processes of the previous version",
    )  # fmt: skip
    parser.add_argument(
        "--only", action="append", default=[], metavar="KIND", help="only this kind of fault; repeatable"
    )
    parser.add_argument("--keep", type=Path, help="keep logs and the clients' files in this folder")
    parser.add_argument("--list", action="store_true", help="print the schedule and do nothing")
    asked = parser.parse_args()
    kinds = frozenset(FaultKind(kind) for kind in asked.only) or None
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    chaos = Chaos(asked.seed, asked.minutes, asked.pods, kinds, asked.servers)
    if asked.list:
        print("\n".join(map(str, chaos.steps())))
        return 0
    with tempfile.TemporaryDirectory(prefix="warmpool-chaos-") as folder:
        # A folder for this run only: any process that names it afterwards was left behind.
        place = (
            Path(tempfile.mkdtemp(prefix=f"seed-{asked.seed}-", dir=asked.keep))
            if asked.keep
            else Path(folder)
        )
        verdict = chaos.run(place)
    print(page(verdict))
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
