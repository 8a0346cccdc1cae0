"""Change lines at random and see whether a test notices: `python -m tests.mutants.random_lines
[--seed N] [--room ROOM ...] [--per-module N] [--elsewhere N] [--record]`.

Each change is made alone, in a copy of the code, and the tests that run the changed function are
run until one fails: unit tests first, then the fastest. The first run records which functions each
test calls; `--record` does so again. Results are kept in `build/random-mutants/`; a change that was
noticed is not tried again while its file stays the same. Writes the figures by room into
docs/promises.md. Exit with 1 if a change was not noticed and `survivors.toml` has no reason for it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.mutants import calls
from tests.mutants.choosing import FIRST, Noticing, chosen, modules, room_of
from tests.mutants.figures import Figures, write
from tests.mutants.lines import Change
from tests.mutants.survivors import known
from tests.mutants.testing import PASSED, ROOT, copy_code, run_tests

_RESULTS = calls.KEPT / "results.jsonl"
# Seconds of tests, as recorded: first the fastest, then, for a change that none of them noticed, more.
_BUDGETS_S = (20.0, 90.0)
_SLOWNESS = 4
_QUICK = {"WARMPOOL_TEST_QUICK": "1"}
# A test that hangs fails, and its servers are ended.
_OPTIONS = ("-x", "-o", "timeout=60", "-o", "timeout_method=signal")
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.M)
_NO_SQL = ("SyntaxError", "syntax error at")


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
    parser.add_argument("--elsewhere", type=int, default=1, help="lines of each other module (1)")
    parser.add_argument("--record", action="store_true", help="record again which test calls what")
    args = parser.parse_args(argv)
    if args.record or not calls.load():
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
    trials = [trial for trial in _tried(changes) if trial.fate is not Fate.INVALID]
    return _report(rooms, trials, args.seed)


def _tried(changes: Sequence[Change]) -> Iterator[Trial]:
    noticing, before = Noticing(calls.load()), _kept()
    with tempfile.TemporaryDirectory(prefix="warmpool-mutants-") as place:
        folder = Path(place) / "copy"
        copy_code(folder)
        for number, change in enumerate(changes, 1):
            if by := before.get(_key(change)):
                yield Trial(change=change, fate=Fate.NOTICED, by=by, tests=0)
                continue
            trial = _try(folder, change, noticing)
            _keep(trial)
            where = f"{change.file}:{change.number} {change.what}"
            print(f"{number:4} {trial.fate} {where}  [{trial.by or trial.tests}]", flush=True)
            yield trial


def _try(folder: Path, change: Change, noticing: Noticing) -> Trial:
    file = folder / change.file
    text = (ROOT / change.file).read_text()
    remaining = noticing.tests(change)
    ran = 0
    file.write_text(change.applied(text))
    try:
        for budget_s, env in zip(_BUDGETS_S, (_QUICK, {}), strict=True):
            part: list[str] = []
            total = 0.0
            while remaining and (not part or total + remaining[0].took_s <= budget_s):
                total += remaining[0].took_s
                part.append(remaining.pop(0).test)
            if not part:
                break
            ran += len(part)
            result = run_tests(folder, part, *_OPTIONS, within_s=60 + _SLOWNESS * total, env=env)
            if result.code != PASSED:
                invalid = change.file.endswith(".sql") and any(word in result.output for word in _NO_SQL)
                failed = _FAILED_TEST.search(result.output)
                by = failed.group(1) if failed else f"pytest ended with {result.code}"
                fate = Fate.INVALID if invalid else Fate.NOTICED
                return Trial(change=change, fate=fate, by=by, tests=ran)
    finally:
        file.write_text(text)
    return Trial(change=change, fate=Fate.SURVIVED, by="", tests=ran)


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


def _kept() -> dict[str, str]:
    """Return what noticed each change in an earlier run."""
    lines = [json.loads(line) for line in _RESULTS.read_text().splitlines()] if _RESULTS.exists() else []
    return {line["key"]: line["by"] for line in lines if line["fate"] == Fate.NOTICED}


if __name__ == "__main__":
    sys.exit(main())
