"""The list of mutants matches the current code and tests. `make mutants` runs it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]


@cache
def _text(file: str) -> str:
    return (ROOT / file).read_text()


# Contract suites are defined once and run under other names.
CONTRACTS = "".join(path.read_text() for path in (ROOT / "tests" / "contracts").glob("*.py"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.promise}: {m.says}")
def test_the_text_that_a_mutant_changes_occurs_once_in_the_code(mutant: Mutant) -> None:
    for edit in mutant.edits:
        assert _text(edit.file).count(edit.was) == 1, edit
        assert edit.becomes != edit.was


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.promise}: {m.says}")
def test_the_tests_that_a_mutant_names_exist(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests:
        file, *_, name = test.split("::")
        assert f"def {name}(" in _text(file) or f"def {name}(" in CONTRACTS, test


def test_every_promise_of_the_first_list_has_mutants() -> None:
    assert {m.promise for m in MUTANTS} >= set(range(1, 40))


def test_no_mutant_is_listed_twice() -> None:
    told = [(m.promise, m.says) for m in MUTANTS]
    assert [each for each in told if told.count(each) > 1] == []
    assert not [m.says for m in MUTANTS if not re.fullmatch(r"[^.]+", m.says)]
