"""One fence, removed in a copy of the code, and the tests of which one must fail."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_SQL = "pool/store/migrations/versions/v0001_initial.sql"
RULES = "pool/store/sql/"

CLAIMING = "tests/integration/test_claiming.py"
FLEET = "tests/integration/test_fleet.py"
INTERLEAVINGS = "tests/integration/test_interleavings.py"
PASSES = "tests/integration/test_passes.py"
RULES_TESTS = "tests/integration/test_rules.py"
RUNNING = "tests/integration/test_running.py"
SCHEMA = "tests/integration/test_schema.py"
SERVING = "tests/integration/test_serving.py"
STORE = "tests/integration/test_store.py"
WAITING = "tests/integration/test_waiting.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """`was` occurs in the file exactly once."""

    file: str
    was: str
    becomes: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is broken, as a sentence."""

    promise: int
    says: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def broken(promise: int, says: str, file: str, was: str, becomes: str, *tests: str) -> Mutant:
    """The common case: one edit."""
    return Mutant(promise, says, (Edit(file=file, was=was, becomes=becomes),), tests)
