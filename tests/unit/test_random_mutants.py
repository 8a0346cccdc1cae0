"""The random run changes what it should: valid code, no logging, no docstrings, and a list of known
survivors that matches the code.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

from tests.mutants import calls, choosing, lines, sql_lines
from tests.mutants.calls import Seen
from tests.mutants.figures import BEGIN, END, Figures, write
from tests.mutants.survivors import Survivor, known

ROOT = Path(__file__).parents[2]

MODULE = '''\
"""A docstring."""
import os

LIMIT = 3

def f(rows: list[int], *, loud: bool = False) -> list[int]:
    """A docstring."""
    log.warning("never changed", count=1 == 1)
    if TYPE_CHECKING:
        os.sync()
    if not rows and LIMIT < 4:
        return []
    rows.append(
        2,
    )
    self.last = query.where(a, b)
    assert rows == [2], "é"
    return [row for row in rows if row > 1]
'''


def _of(text: str) -> dict[str, str]:
    return {each.what: each.applied(text) for each in lines.changes("m.py", text)}


def test_statements_are_deleted_and_conditions_inverted_or_dropped() -> None:
    assert sorted(_of(MODULE)) == [
        "LIMIT < 4 -> LIMIT >= 4",
        "delete: return []",
        "delete: rows.append(2)",
        "delete: self.last = query.where(a, b)",
        "drop the condition a",
        "drop the condition b",
        "drop the condition row > 1",
        "not rows -> rows",
        "not rows and LIMIT < 4 -> not (not rows and LIMIT < 4)",
        "not rows and LIMIT < 4 -> not rows or LIMIT < 4",
        "row > 1 -> row <= 1",
    ]


def test_a_change_replaces_its_own_text_only() -> None:
    changed = _of(MODULE)
    assert changed["delete: rows.append(2)"] == MODULE.replace("rows.append(\n        2,\n    )", "pass")
    assert changed["drop the condition a"] == MODULE.replace("query.where(a, b)", "query.where(b)")
    assert changed["row > 1 -> row <= 1"] == MODULE.replace("row > 1]", "(row <= 1)]")


def test_changed_modules_compile() -> None:
    for file in (
        "pool/passes/reap.py",
        "pool/store/workers.py",
        "tasks/lane/mailbox.py",
        "pool/client/aio.py",
    ):
        text = (ROOT / file).read_text()
        found = lines.changes(file, text)
        assert len(found) > 20, file
        assert [each for each in found if not lines.compiles(each.applied(text))] == []


def test_rules_are_changed_in_conditions_and_statements_only() -> None:
    text = (
        "-- A = B.\nCREATE FUNCTION warmpool_x() RETURNS integer LANGUAGE plpgsql AS $$\nDECLARE\n"
        "  n integer := 1;\nBEGIN\n  UPDATE t SET a = 1\n    WHERE b = 2 AND c IS NULL;\n"
        "  n := 2;\n  RETURN n;\nEND $$\n"
    )
    assert [(each.number, each.what) for each in sql_lines.changes("x.sql", text)] == [
        (7, "= -> <> at 12"),
        (7, "IS NULL -> IS NOT NULL at 22"),
        (7, "AND -> OR at 16"),
        (8, "delete: n := 2;"),
    ]
    assert {each.function for each in sql_lines.changes("x.sql", text)} == {"warmpool_x"}


def test_the_seed_decides_and_more_lines_contain_fewer() -> None:
    file = "pool/passes/reap.py"
    three, ten = (list(choosing.chosen(file, seed=1, most=most)) for most in (3, 10))
    assert len(ten) == 10
    assert three == ten[:3]
    assert three != list(choosing.chosen(file, seed=2, most=3))


def test_tests_that_run_the_function_are_chosen_unit_tests_first_then_the_fastest() -> None:
    change = next(choosing.chosen("pool/passes/reap.py", seed=1, most=1))
    name = f"{change.file}::{change.function}"
    seen = [
        Seen(test="tests/integration/test_passes.py::slow", took_s=3, calls=frozenset({name})),
        Seen(test="tests/integration/test_passes.py::fast", took_s=1, calls=frozenset({name})),
        Seen(test="tests/unit/test_states.py::unit", took_s=9, calls=frozenset({name})),
        Seen(test="tests/unit/test_states.py::other", took_s=0, calls=frozenset({"pool/core/ids.py::x"})),
    ]
    chosen = [each.test.rpartition("::")[2] for each in choosing.Noticing(seen).tests(change)]
    assert chosen == ["unit", "fast", "slow"]


def test_constant_is_tested_by_what_uses_it() -> None:
    [number] = [
        n
        for n, line in enumerate((ROOT / "pool/store/orgs.py").read_text().splitlines(), 1)
        if line.startswith("_BY_ID =")
    ]
    users = choosing._users("pool/store/orgs.py", number)
    assert {"get"} <= users, users
    assert "every" not in users


def test_rule_is_tested_by_what_calls_it_through_other_rules() -> None:
    callers = choosing._callers_of_rule("warmpool_rebind")
    assert "pool/store/claims.py::end" in callers, sorted(callers)
    assert "pool/passes/reconcile_warm.py::_make_slots" not in callers


def test_recorded_calls_are_read_by_test(tmp_path: Path) -> None:
    (tmp_path / "current").write_bytes(struct.pack("=i", 0))
    (tmp_path / "7.calls").write_text("1 pool/a.py::f\n2 pool/a.py::g\n")
    (tmp_path / "8.calls").write_text("1 pool/b.py::C.h\n")
    (tmp_path / "tests").write_text('{"number": 1, "test": "t::one", "took_s": 0.5}\n')
    [seen] = calls.read(tmp_path)
    assert seen == Seen(test="t::one", took_s=0.5, calls=frozenset({"pool/a.py::f", "pool/b.py::C.h"}))


def test_figures_of_one_room_leave_those_of_others(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    store = Figures(room="store", seed=1, tried=10, survived=2, unexplained=1)
    tasks = Figures(room="tasks", seed=1, tried=4, survived=0, unexplained=0)
    write([store, tasks], page)
    write([Figures(room="tasks", seed=2, tried=8, survived=4, unexplained=0)], page)
    rows = re.findall(r"^\| \w+/ .*$", page.read_text(), re.M)
    assert rows == ["| store/ | 1 | 10 | 8 | 1 | 1 | 80 |", "| tasks/ | 2 | 8 | 4 | 4 | 0 | 50 |"]
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")


def test_known_survivors_are_lines_of_the_code_and_have_reasons() -> None:
    def stands(each: Survivor) -> bool:
        text = (ROOT / each.file).read_text()
        found = (sql_lines if each.file.endswith(".sql") else lines).changes(each.file, text)
        return any(each.covers(change) for change in found)

    assert [each for each in known() if not stands(each)] == []
    assert [each for each in known() if len(each.reason) < 20] == []
