"""Which lines a random run changes, and which tests could notice each change."""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from tests.mutants import MUTANTS, lines, sql_lines
from tests.mutants.calls import Seen
from tests.mutants.lines import Change
from tests.mutants.testing import ROOT

RULES = "pool/store/sql"
# Rooms whose every survivor needs a reason come first.
FIRST = ("lifecycle", "passes", "store", RULES.removeprefix("pool/"), "tasks")
_NOT_CHANGED = ("pool/store/migrations/versions/",)
_FEW = 5
_RULE = re.compile(r"warmpool_(\w+)")


def room_of(file: str) -> str:
    """Return the room of a file: `store`, `store/sql`, `tasks`; `wiring` for the module itself."""
    if file.startswith(RULES):
        return RULES.removeprefix("pool/")
    parts = file.split("/")
    return parts[0] if parts[0] == "tasks" else parts[1].removesuffix(".py")


def modules() -> dict[str, list[str]]:
    """Return the files of each room, the first rooms first."""
    found: dict[str, list[str]] = {room: [] for room in FIRST}
    paths = (
        p for part in ("pool", "tasks") for kind in ("py", "sql") for p in (ROOT / part).rglob(f"*.{kind}")
    )
    for file in sorted(path.relative_to(ROOT).as_posix() for path in paths):
        if not file.startswith(_NOT_CHANGED):
            found.setdefault(room_of(file), []).append(file)
    return found


def chosen(file: str, *, seed: int, most: int) -> Iterator[Change]:
    """Choose up to `most` lines of a file, and one change of each. A larger number adds lines
    to those of a smaller one.
    """
    text = (ROOT / file).read_text()
    dice = random.Random(f"{seed} {file}")
    by_line: defaultdict[int, list[Change]] = defaultdict(list)
    for change in (sql_lines if file.endswith(".sql") else lines).changes(file, text):
        by_line[change.number].append(change)
    numbers = sorted(by_line)
    dice.shuffle(numbers)
    for number in numbers[:most]:
        change = dice.choice(by_line[number])
        if file.endswith(".sql") or lines.compiles(change.applied(text)):
            yield change


class Noticing:
    """The tests that could notice a change, from what each test called."""

    def __init__(self, seen: Sequence[Seen]) -> None:
        # The first test of a file is the one that started what all of them use.
        start_s: dict[str, float] = {}
        for s in seen:
            start_s.setdefault(s.file, s.took_s)
        self._seen = sorted(
            seen, key=lambda s: (not s.file.startswith("tests/unit"), s.took_s + start_s[s.file])
        )

    def tests(self, change: Change) -> list[Seen]:
        """Return tests that run the changed function; for a line outside of functions, or one that
        few tests run, also the tests that run any function of the file or import it. Unit tests
        come first, then the fastest. Of the many tests that call a rule, those that have a word of
        its name come first.
        """
        named = _named_by_mutants(change)
        if change.file.endswith(".sql"):
            callers = _callers_of_rule(change.function)
            words = set(change.function.removeprefix("warmpool_").split("_"))
            found = [s for s in self._seen if callers & s.calls or s.test in named]
            return sorted(found, key=lambda s: s.test not in named and not any(w in s.test for w in words))
        names = {change.function} if change.function else _users(change.file, change.number)
        runs = {f"{change.file}::{name}" for name in names}
        found = [s for s in self._seen if runs & s.calls or s.test in named]
        if len(found) < _FEW:
            found += [s for s in self._seen if s not in found and self._is_near(s, change.file)]
        return found

    @staticmethod
    def _is_near(seen: Seen, file: str) -> bool:
        return file in _imported(seen.file) or any(call.startswith(f"{file}::") for call in seen.calls)


def _named_by_mutants(change: Change) -> frozenset[str]:
    """Return the tests of mutants written by hand that change the same line."""
    return frozenset(
        test
        for mutant in MUTANTS
        for edit in mutant.edits
        if edit.file == change.file and change.line in edit.was
        for test in mutant.tests
    )


@cache
def _users(file: str, number: int) -> frozenset[str]:
    """Return the functions of a module that use the constant of a line, directly or through others."""
    body = ast.parse((ROOT / file).read_text()).body
    constants = [node for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]
    names = {
        n for node in constants if node.lineno <= number <= (node.end_lineno or 0) for n in _assigned(node)
    }
    for node in constants:
        if names & _names_in(node):
            names |= _assigned(node)
    return frozenset(name for name, node in _named(body, "") if names & _names_in(node))


def _assigned(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


@cache
def _imported(test_file: str) -> frozenset[str]:
    """Return the modules that a test file imports, as files."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / test_file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(f"{name.replace('.', '/')}.py" for name in found)


@cache
def _callers_of_rule(rule: str) -> frozenset[str]:
    """Return the Python functions that call a rule, or a rule that calls it."""
    reached, texts = {rule}, _rule_texts()
    while more := {name for name, text in texts.items() if reached & set(_called(text))} - reached:
        reached |= more
    words = {name.removeprefix("warmpool_") for name in reached}
    return frozenset(f"{file}::{function}" for file, function, constants in _functions() if words & constants)


def _called(text: str) -> Iterator[str]:
    return (hit.group() for hit in _RULE.finditer(text))


@cache
def _rule_texts() -> Mapping[str, str]:
    texts = "\n;;\n".join(path.read_text() for path in sorted((ROOT / RULES).glob("*.sql"))).split("\n;;\n")
    named = ((re.search(r"CREATE (?:FUNCTION|TYPE|AGGREGATE) (\w+)", text), text) for text in texts)
    return {hit.group(1): text for hit, text in named if hit}


@cache
def _functions() -> tuple[tuple[str, str, frozenset[str]], ...]:
    """Return the functions of the pool that call rules, with the texts in each."""
    return tuple(
        (path.relative_to(ROOT).as_posix(), name, _constants(node))
        for path in (ROOT / "pool").rglob("*.py")
        for name, node in _named(ast.parse(path.read_text()).body, "")
        if "rules.call" in ast.unparse(node)
    )


def _named(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _named(node.body, f"{prefix}{node.name}.")


def _constants(node: ast.AST) -> frozenset[str]:
    return frozenset(
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )
