"""Run the mutants: `python -m tests.mutants [--promise N ...] [--jobs N] [--kube]`. First the tests that they name on the code as it is, which have to pass;
then each mutant in a copy of its own, where one of its tests has to fail. Exits with 1 if one was not noticed."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
_LONGEST_S = 900
_PASSED, _FAILED = 0, 1
_NOT_COPIED = shutil.ignore_patterns(
    ".git",
    ".venv",
    "build",
    "dist",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What pytest said."""

    code: int
    took_s: float
    tail: str


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--promise", type=int, nargs="+", help="only the mutants of these promises")
    parser.add_argument("--jobs", type=int, default=2, help="so many at a time (2)")
    parser.add_argument("--kube", action="store_true", help="those that need a Kubernetes API server, too")
    args = parser.parse_args(argv)
    chosen = [
        m
        for m in MUTANTS
        if (not args.promise or m.promise in args.promise) and (args.kube or not _needs_cluster(m))
    ]
    with tempfile.TemporaryDirectory(prefix="warmpool-mutants-") as folder:
        named = sorted({test for m in chosen for test in m.tests})
        print(f"{len(chosen)} mutants; their {len(named)} tests on the code as it is ...", flush=True)
        before = _tested(ROOT, named, "-n", str(args.jobs), "--dist", "loadgroup")
        if before.code != _PASSED:
            print(f"they do not pass to begin with:\n{before.tail}")
            return 1
        print(f"pass, in {before.took_s:.0f} s", flush=True)
        with ThreadPoolExecutor(args.jobs) as threads:
            survived = [
                m
                for m, noticed in threads.map(
                    lambda n: _tried(n[1], Path(folder) / str(n[0])), enumerate(chosen)
                )
                if not noticed
            ]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} noticed")
    for mutant in survived:
        print(f"  not noticed: {mutant.promise}: {mutant.says}")
    return 1 if survived else 0


def _needs_cluster(mutant: Mutant) -> bool:
    return any(test.startswith("tests/kube/") for test in mutant.tests)


def _tried(mutant: Mutant, folder: Path) -> tuple[Mutant, bool]:
    shutil.copytree(ROOT, folder, ignore=_NOT_COPIED)
    for edit in mutant.edits:
        file = folder / edit.file
        file.write_text(file.read_text().replace(edit.was, edit.becomes))
    result = _tested(folder, mutant.tests, "-x")
    shutil.rmtree(folder)
    noticed = result.code == _FAILED
    print(
        f"{'noticed' if noticed else 'NOT NOTICED'} {mutant.promise:3} {mutant.says} ({result.took_s:.0f} s)",
        flush=True,
    )
    if not noticed:
        print(f"pytest ended with {result.code}:\n{result.tail}", flush=True)
    return mutant, noticed


def _tested(folder: Path, tests: Sequence[str], *options: str) -> Result:
    """Everything that the tests start imports the copy: the folder comes before what is installed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Result(code=-1, took_s=time.monotonic() - began, tail="it took too long")
    tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
    return Result(code=done.returncode, took_s=time.monotonic() - began, tail=tail)


if __name__ == "__main__":
    sys.exit(main())
