"""Which tests call which functions of the pool: a pytest plugin that numbers the tests, and the map
that is read from what the processes wrote (`recording/sitecustomize.py`).
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "random-mutants"
_FOLDER = "MUTANTS_CALLS"
# Tests of pictures, browsers, clusters and hours are too slow to run once per mutant.
RECORDED = ("tests/unit", "tests/integration", "tests/model", "tests/faults")
_LEFT_OUT = (
    "integration/test_browser.py",
    "integration/test_pictures.py",
    "integration/test_up.py",
    "faults/test_drill.py",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One test that passed, its duration and the functions it called (`FILE::FUNCTION`)."""

    test: str
    took_s: float
    calls: frozenset[str]

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


class Numbering:
    """The plugin: numbers tests in the order of their start and keeps the result of each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tests: list[str] = []
        self._took: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tests.append(nodeid)
        with (self._folder / "current").open("r+b") as file:
            file.write(struct.pack("=i", len(self._tests)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[report.nodeid] += report.duration
        if not report.passed:
            self._failed.add(report.nodeid)
        if report.when == "teardown":
            line = {
                "number": len(self._tests),
                "test": report.nodeid,
                "took_s": round(self._took[report.nodeid], 2),
            }
            if report.nodeid not in self._failed:
                with (self._folder / "tests").open("a") as file:
                    file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Numbering(Path(os.environ[_FOLDER])), "numbering")


def record(tests: Sequence[str]) -> None:
    """Run tests once on the unchanged code and keep what each of them calls."""
    with tempfile.TemporaryDirectory(prefix="warmpool-calls-") as place:
        folder = Path(place)
        (folder / "current").write_bytes(struct.pack("=i", 0))
        env = {**os.environ, _FOLDER: place, "PYTHONPATH": str(Path(__file__).parent / "recording")}
        ignored = [f"--ignore=tests/{name}" for name in _LEFT_OUT]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.mutants.calls",
        ]
        subprocess.run([*command, *ignored, *tests], cwd=ROOT, env=env)
        _keep(read(folder))


def read(folder: Path) -> list[Seen]:
    """Return what was written into a folder of calls."""
    calls: defaultdict[int, set[str]] = defaultdict(set)
    for file in folder.glob("*.calls"):
        for line in file.read_text().splitlines():
            number, _, name = line.partition(" ")
            calls[int(number)].add(name)
    tests = [json.loads(line) for line in (folder / "tests").read_text().splitlines()]
    return [Seen(test=t["test"], took_s=t["took_s"], calls=frozenset(calls[t["number"]])) for t in tests]


def _keep(seen: Sequence[Seen]) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = {each.test: each for each in load()} | {each.test: each for each in seen}
    lines = [{"test": s.test, "took_s": s.took_s, "calls": sorted(s.calls)} for s in kept.values()]
    (KEPT / "calls.json").write_text("\n".join(json.dumps(line) for line in lines))


def load() -> list[Seen]:
    """Return what was recorded before."""
    file = KEPT / "calls.json"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [Seen(test=s["test"], took_s=s["took_s"], calls=frozenset(s["calls"])) for s in lines]
