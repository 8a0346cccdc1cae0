"""Run the mutants: `python -m tests.mutants [--promise N ...] [--jobs N] [--kube] [--quick]`. First
run the tests that they name on the unchanged code, which must pass; then each mutant in its own
copy, where one of its tests must fail. Exit with 1 if a mutant was not noticed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.mutants import MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.testing import FAILED, PASSED, ROOT, copy_code, run_tests

_CLUSTERS = ("tests/kube/",)
# Tests that start many real processes.
_POOLS = (
    "tests/faults/",
    "tests/integration/test_end_to_end.py",
    "tests/integration/test_queue_per_org.py",
    "tests/integration/test_signed.py",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--promise", type=int, nargs="+", help="only the mutants of these promises")
    parser.add_argument("--jobs", type=int, default=2, help="number of mutants that run in parallel (2)")
    parser.add_argument("--kube", action="store_true", help="those that need a Kubernetes API server, too")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the tests have passed; and only mutants whose tests start no pool",
    )
    parser.add_argument("--every", type=int, default=1, help="only each Nth of them, from the first on (1)")
    args = parser.parse_args(argv)
    left_out = (*(() if args.kube else _CLUSTERS), *(_POOLS if args.quick else ()))
    asked = [m for m in MUTANTS if not args.promise or m.promise in args.promise]
    lighter = [
        replace(m, tests=tuple(test for test in m.tests if not test.startswith(left_out))) for m in asked
    ]
    chosen = [m for m in lighter if m.tests][:: args.every]
    if not args.quick and not _pass_to_begin_with(chosen, args.jobs):
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="warmpool-mutants-") as folder,
        ThreadPoolExecutor(args.jobs) as threads,
    ):
        folders = [Path(folder) / str(number) for number in range(len(chosen))]
        survived = [m for m, noticed in threads.map(_tried, chosen, folders) if not noticed]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} noticed")
    for mutant in survived:
        print(f"  not noticed: {mutant.promise}: {mutant.says}")
    return 1 if survived else 0


def _pass_to_begin_with(chosen: Sequence[Mutant], jobs: int) -> bool:
    named = sorted({test for m in chosen for test in m.tests})
    print(f"{len(chosen)} mutants; their {len(named)} tests on the code as it is ...", flush=True)
    before = run_tests(ROOT, named, "-n", str(jobs), "--dist", "loadgroup")
    if before.code != PASSED:
        print(f"they do not pass to begin with:\n{before.tail}")
        return False
    print(f"pass, in {before.took_s:.0f} s", flush=True)
    return True


def _tried(mutant: Mutant, folder: Path) -> tuple[Mutant, bool]:
    copy_code(folder)
    for edit in mutant.edits:
        file = folder / edit.file
        file.write_text(file.read_text().replace(edit.was, edit.becomes))
    result = run_tests(folder, mutant.tests, "-x")
    shutil.rmtree(folder, ignore_errors=True)
    noticed = result.code == FAILED and result.failed > 0
    print(
        f"{'noticed' if noticed else 'NOT NOTICED'} {mutant.promise:3} {mutant.says} ({result.took_s:.0f} s)",
        flush=True,
    )
    if not noticed:
        print(f"pytest ended with {result.code}:\n{result.tail}", flush=True)
    return mutant, noticed


if __name__ == "__main__":
    sys.exit(main())
