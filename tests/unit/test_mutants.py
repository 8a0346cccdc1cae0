"""The list of mutants matches the current code and tests. `make mutants` runs it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.mutants import MUTANTS

ROOT = Path(__file__).parents[2]


@cache
def _text(file: str) -> str:
    return (ROOT / file).read_text()


# Contract suites are defined once and run under other names.
CONTRACTS = "".join(path.read_text() for path in (ROOT / "tests" / "contracts").glob("*.py"))


def test_the_text_that_a_mutant_changes_occurs_once_in_the_code() -> None:
    edits = [(str(m), edit) for m in MUTANTS for edit in m.edits]
    assert [(m, edit) for m, edit in edits if _text(edit.file).count(edit.was) != 1] == []
    assert [(m, edit) for m, edit in edits if edit.becomes == edit.was] == []


def test_the_tests_that_a_mutant_names_exist() -> None:
    assert [str(m) for m in MUTANTS if not m.tests] == []
    named = [(str(m), *test.split("::")) for m in MUTANTS for test in m.tests]
    absent = [
        (m, name)
        for m, file, *_, name in named
        if f"def {name}(" not in _text(file) and f"def {name}(" not in CONTRACTS
    ]
    assert absent == []


def test_every_promise_of_the_first_list_has_mutants() -> None:
    assert {m.promise for m in MUTANTS} >= set(range(1, 40))


def test_no_mutant_is_listed_twice() -> None:
    told = [(m.promise, m.says) for m in MUTANTS]
    assert [each for each in told if told.count(each) > 1] == []
    assert not [m.says for m in MUTANTS if not re.fullmatch(r"[^.]+", m.says)]
