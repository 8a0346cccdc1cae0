"""Changes of single lines of the rules in SQL: a statement deleted, a condition inverted."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutants.lines import Change

_FUNCTION = re.compile(r"CREATE FUNCTION (\w+)")
_OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_COMPARED = re.compile(r" (=|<>|<=|>=|<|>) ")
_NEGATED = re.compile(r"\b(?:IF|ELSIF|AND|OR|WHEN|WHERE) (NOT )")
_EXISTS = re.compile(r"\b(?:IF|ELSIF|AND|OR|WHEN|WHERE) (EXISTS)\b")
_NULL = re.compile(r"\bIS (NOT )?NULL\b")
_JOINED = re.compile(r" (AND|OR) ")
# Words after which an expression is a condition, and words after which it is not.
_WORDS = re.compile(
    r"\b(WHERE|AND|OR|IF|ELSIF|WHEN|ON|WHILE|SET|THEN|ELSE|USING|DIAGNOSTICS|LOOP|BEGIN|SELECT|BETWEEN)\b|;"
)
_CONDITION = frozenset({"WHERE", "AND", "OR", "IF", "ELSIF", "WHEN", "ON", "WHILE"})
_STATEMENT = re.compile(
    r"\s*(PERFORM|UPDATE|DELETE|INSERT|RETURN|CONTINUE|EXIT|[\w.\[\]]+ :=) [^;]*;\s*(--.*)?"
)
_BEGINS_AFTER = re.compile(r"(;|\bTHEN|\bLOOP|\bELSE|\bBEGIN|--.*)$")


def changes(file: str, text: str) -> list[Change]:
    """Return the changes of a file of rules. A few are no valid SQL; Postgres refuses these."""
    found: list[Change] = []
    function, declares, start = "", False, 0
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if named := _FUNCTION.search(line):
            function = named.group(1)
        declares = line.strip() == "DECLARE" or (declares and line.strip() != "BEGIN")
        code = line.partition("--")[0]
        before = "".join(each.partition("--")[0] for each in lines[: number - 1])
        found.extend(
            Change(
                file=file,
                number=number,
                line=line.strip(),
                what=what,
                function=function,
                start=start + len(line[:first].encode()),
                end=start + len(line[:last].encode()),
                becomes=becomes,
            )
            for first, last, becomes, what in _of_line(code, before, declares=declares)
        )
        after = lines[number].strip() if number < len(lines) else ""
        if not declares and _is_statement(lines, number) and not after.startswith("END $$"):
            first = len(line) - len(line.lstrip())
            found.append(
                Change(
                    file=file, number=number, line=line.strip(), what=f"delete: {code.strip()}", function=function,
                    start=start + first, end=start + len(code.rstrip().encode()), becomes="NULL;",
                )
            )  # fmt: skip
        start += len(line.encode())
    return found


def _is_statement(lines: list[str], number: int) -> bool:
    return bool(
        _STATEMENT.fullmatch(lines[number - 1].rstrip("\n"))
        and number > 1
        and _BEGINS_AFTER.search(lines[number - 2].rstrip())
    )


def _of_line(code: str, before: str, *, declares: bool) -> Iterator[tuple[int, int, str, str]]:
    """Yield the first and the last character of each change, its text, and what it does."""
    if declares:
        return
    for pattern in (_COMPARED, _NULL, _JOINED):
        for hit in pattern.finditer(code):
            if not _in_a_condition(before + code[: hit.start()]):
                continue
            if pattern is _COMPARED:
                becomes = _OPPOSITE[hit.group(1)]
                yield *hit.span(1), becomes, f"{hit.group(1)} -> {becomes} at {hit.start(1)}"
            elif pattern is _NULL:
                becomes = "IS NULL" if hit.group(1) else "IS NOT NULL"
                yield *hit.span(), becomes, f"{hit.group()} -> {becomes} at {hit.start()}"
            else:
                becomes = "OR" if hit.group(1) == "AND" else "AND"
                yield *hit.span(1), becomes, f"{hit.group(1)} -> {becomes} at {hit.start(1)}"
    for hit in _NEGATED.finditer(code):
        yield *hit.span(1), "", f"drop NOT at {hit.start(1)}"
    for hit in _EXISTS.finditer(code):
        yield *hit.span(1), "NOT EXISTS", f"EXISTS -> NOT EXISTS at {hit.start(1)}"


def _in_a_condition(text: str) -> bool:
    words = [hit.group() for hit in _WORDS.finditer(text[-2000:])]
    return bool(words) and words[-1] in _CONDITION
