"""Change lines at random and see whether a test notices: `python -m tests.mutants.random_lines
[--seed N] [--room ROOM ...] [--per-module N] [--elsewhere N] [--minutes N] [--record TEST ...]`.

Each change is made alone, in a copy of the code, and the tests that run the changed function are
run until one fails: unit tests first, then the fastest. The first run records which functions each
test calls; `--record` does so again for some tests. Results are kept in `build/random-mutants/`; a change that was
noticed is not tried again while its file stays the same. Writes the figures by room into
docs/promises.md. Exit with 1 if a change was not noticed and `survivors.toml` has no reason for it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.mutants import calls, forked
from tests.mutants.calls import Seen
from tests.mutants.choosing import FIRST, Noticing, chosen, modules, room_of
from tests.mutants.figures import Figures, write
from tests.mutants.lines import Change
from tests.mutants.survivors import known
from tests.mutants.testing import PASSED, ROOT, copy_code

_RESULTS = calls.KEPT / "results.jsonl"
# Seconds of tests, as recorded: first the fastest, with a tenth of their generated examples; then, for a
# change that none of them noticed, more.
_STAGES: tuple[tuple[float, Mapping[str, str]], ...] = ((15.0, {"WARMPOOL_TEST_QUICK": "1"}), (150.0, {}))
_SLOWNESS = 4
# To import the tests of one file.
_FILE_S = 1.0
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.M)
_NO_SQL = "psycopg.errors.SyntaxError"


class Fate(StrEnum):
    NOTICED = "noticed"
    SURVIVED = "survived"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of one change, and the test that noticed it."""

    change: Change
    fate: Fate
    by: str
    tests: int


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.random_lines", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--room", nargs="+", help="only these rooms (lifecycle, store, store/sql, tasks, ...)"
    )
    parser.add_argument(
        "--per-module", type=int, default=3, help=f"lines of each module of {', '.join(FIRST)} (3)"
    )
    parser.add_argument(
        "--minutes", type=float, default=600, help="then only report what has been tried (600)"
    )
    parser.add_argument("--elsewhere", type=int, default=1, help="lines of each other module (1)")
    parser.add_argument(
        "--record", nargs="+", default=[], help="tests, also new ones, whose calls are recorded first"
    )
    args = parser.parse_args(argv)
    if args.record:
        calls.record(args.record)
    elif not calls.load():
        for tests in calls.RECORDED:
            calls.record([tests])
    rooms = [room for room in modules() if not args.room or room in args.room]
    changes = [
        change
        for room in rooms
        for file in modules()[room]
        for change in chosen(file, seed=args.seed, most=args.per_module if room in FIRST else args.elsewhere)
    ]
    print(f"{len(changes)} changes", flush=True)
    trials = [trial for trial in _tried(changes, args.minutes) if trial.fate is not Fate.INVALID]
    return _report(rooms, trials, args.seed)


def _tried(changes: Sequence[Change], minutes: float) -> Iterator[Trial]:
    """Try the changes that were not noticed before, and after the time take earlier results."""
    noticing, before = Noticing(calls.load()), _kept()
    until = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="warmpool-random-") as place:
        folder = Path(place) / "copy"
        copy_code(folder)
        for number, change in enumerate(changes, 1):
            kept = before.get(_key(change))
            late = time.monotonic() > until
            if kept is not None and (late or kept["fate"] == Fate.NOTICED):
                yield Trial(change=change, fate=Fate(kept["fate"]), by=kept["by"], tests=kept["tests"])
            if late or (kept is not None and kept["fate"] == Fate.NOTICED):
                continue
            trial = _try(folder, change, noticing)
            _keep(trial)
            where = f"{change.file}:{change.number} {change.what}"
            print(f"{number:4} {trial.fate} {where}  [{trial.by or trial.tests}]", flush=True)
            yield trial


def _try(folder: Path, change: Change, noticing: Noticing) -> Trial:
    text = (ROOT / change.file).read_text()
    remaining = noticing.tests(change)
    ran = 0
    _write(folder / change.file, change.applied(text))
    try:
        for budget_s, env in _STAGES:
            part = list(_within(remaining, budget_s))
            del remaining[: len(part)]
            ran += len(part)
            if part and (by := _noticed_twice_by(folder, part, env)):
                fate = Fate.INVALID if by == _NO_SQL else Fate.NOTICED
                return Trial(change=change, fate=fate, by=by, tests=ran)
    finally:
        _write(folder / change.file, text)
    return Trial(change=change, fate=Fate.SURVIVED, by="", tests=ran)


def _within(tests: Sequence[Seen], budget_s: float) -> Iterator[Seen]:
    """Yield the first tests that fit into a time, at least one."""
    total, files = 0.0, set[str]()
    for number, seen in enumerate(tests):
        total += seen.took_s + (0.0 if seen.file in files else _FILE_S)
        files.add(seen.file)
        if number and total > budget_s:
            return
        yield seen


def _noticed_twice_by(folder: Path, tests: Sequence[Seen], env: Mapping[str, str]) -> str:
    """Return the first test that fails and then fails again alone: a test of whole processes may fail
    once because the machine is busy, and that proves nothing.
    """
    while tests and (by := _noticed_by(folder, tests, env)):
        again = [seen for seen in tests if seen.test == by]
        if not again or _noticed_by(folder, again, env):
            return by
        tests = tests[tests.index(again[0]) + 1 :]
    return ""


def _noticed_by(folder: Path, tests: Sequence[Seen], env: Mapping[str, str]) -> str:
    """Return the first test that fails, or an empty text."""
    within_s = 60 + _SLOWNESS * sum(seen.took_s for seen in tests)
    ended = forked.run(folder, [seen.test for seen in tests], within_s=within_s, env=env)
    if ended.code == PASSED:
        return ""
    if _NO_SQL in ended.output:
        return _NO_SQL
    if failed := _FAILED_TEST.search(ended.output):
        return failed.group(1)
    if ended.late:
        return "no end"
    raise RuntimeError(f"pytest ended with {ended.code}:\n{ended.output[-3000:]}")


def _write(file: Path, text: str) -> None:
    """Write a file with a time of its own, by which Python knows that its bytecode is outdated."""
    since = file.stat().st_mtime
    file.write_text(text)
    os.utime(file, (since + 10, since + 10))


def _report(rooms: Sequence[str], trials: Sequence[Trial], seed: int) -> int:
    survivors = [trial for trial in trials if trial.fate is Fate.SURVIVED]
    listed = known()
    unknown = [t for t in survivors if not any(each.covers(t.change) for each in listed)]
    tried = Counter(room_of(t.change.file) for t in trials)
    left = Counter(room_of(t.change.file) for t in survivors)
    unexplained = Counter(room_of(t.change.file) for t in unknown)
    figures = [
        Figures(room=r, seed=seed, tried=tried[r], survived=left[r], unexplained=unexplained[r])
        for r in rooms
    ]
    print(write(figures))
    for trial in unknown:
        c = trial.change
        print(f"not noticed by {trial.tests} tests: {c.file}:{c.number}: {c.line}\n    {c.what}")
    return 1 if unknown else 0


def _key(change: Change) -> str:
    """The change and the text of its file."""
    words = (change.file, str(change.start), change.what, (ROOT / change.file).read_text())
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _keep(trial: Trial) -> None:
    c = trial.change
    line = {
        "key": _key(c), "fate": trial.fate, "by": trial.by, "tests": trial.tests,
        "file": c.file, "number": c.number, "line": c.line, "what": c.what,
    }  # fmt: skip
    calls.KEPT.mkdir(parents=True, exist_ok=True)
    with _RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _kept() -> dict[str, dict[str, Any]]:
    """Return the latest result of each change that was tried before."""
    lines = [json.loads(line) for line in _RESULTS.read_text().splitlines()] if _RESULTS.exists() else []
    return {line["key"]: line for line in lines}


if __name__ == "__main__":
    sys.exit(main())
