"""Changes of single lines of Python: a statement deleted, a condition inverted or dropped. Docstrings,
imports, annotations, decorators, defaults, logging and assertions stay.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip
_LOGS = frozenset({"log", "_log", "logger", "logging", "structlog", "warnings"})
# Their value changes nothing that a test could see in a pool that works.
_KEYWORDS = frozenset({"check", "daemon", "exist_ok", "flush", "missing_ok", "strict", "text"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change: the line where it begins, what it does, and the bytes that it replaces."""

    file: str
    number: int
    line: str
    what: str
    function: str
    start: int
    end: int
    becomes: str

    def applied(self, text: str) -> str:
        """Return the text of the file with this change."""
        data = text.encode()
        return (data[: self.start] + self.becomes.encode() + data[self.end :]).decode()


def changes(file: str, text: str) -> list[Change]:
    """Return all changes of a module."""
    finder = _Finder(file, text)
    finder.visit(ast.parse(text))
    return finder.found


def compiles(text: str) -> bool:
    """Return whether a changed module is still Python."""
    try:
        compile(text, "changed", "exec")
    except SyntaxError:
        return False
    return True


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, text: str) -> None:
        self.found: list[Change] = []
        self._file = file
        self._text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._scope: list[str] = []
        self._function = ""

    # What is found.

    def _add(self, node: ast.expr | ast.stmt, becomes: str, what: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        self.found.append(
            Change(
                file=self._file,
                number=node.lineno,
                line=self._lines[node.lineno - 1].strip(),
                what=what,
                function=self._function,
                start=self._starts[node.lineno - 1] + node.col_offset,
                end=self._starts[node.end_lineno - 1] + node.end_col_offset,
                becomes=becomes,
            )
        )

    def _delete(self, node: ast.stmt) -> None:
        self._add(node, "pass", f"delete: {_short(node)}")

    def _replace(self, node: ast.expr, by: ast.expr) -> None:
        self._add(node, f"({ast.unparse(by)})", f"{_short(node)} -> {_short(by)}")

    # Where it is.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        self._visit_all(node.body)
        self._scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outermost = not self._function
        if outermost:
            self._function = ".".join((*self._scope, node.name))
        for position, statement in enumerate(node.body):
            last = position == len(node.body) - 1
            if last and isinstance(statement, ast.Return):
                self.generic_visit(statement)  # without it, most functions raise at once
            else:
                self.visit(statement)
        if outermost:
            self._function = ""

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def _visit_all(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            self.visit(node)

    # Statements.

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _logs(node.value):
            return
        if isinstance(node.value, ast.Call | ast.Await):
            self._delete(node)
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        kept = all(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
        if not kept and not self._function.endswith("__init__") and self._function:
            self._delete(node)
        self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and self._function:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is None or "NotImplementedError" not in ast.unparse(node.exc):
            self._delete(node)

    def _deleted(self, node: ast.AugAssign | ast.Return | ast.Continue | ast.Break | ast.Delete) -> None:
        self._delete(node)
        self.generic_visit(node)

    visit_AugAssign = visit_Return = visit_Continue = visit_Break = visit_Delete = _deleted  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        condition = ast.unparse(node.test)
        if "TYPE_CHECKING" in condition or "__name__" in condition:
            return
        self._condition(node.test)
        self._visit_all(node.body)
        self._visit_all(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._condition(node.test)
        self._visit_all(node.body)
        self._visit_all(node.orelse)

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self._condition(node.guard)
        self._visit_all(node.body)

    def _stays(self, node: ast.AST) -> None:
        """An assertion, or an import; the places inside an f-string are unknown to Python 3.11."""

    visit_Assert = visit_Import = visit_ImportFrom = visit_JoinedStr = _stays  # noqa: N815

    # Expressions.

    def _condition(self, node: ast.expr) -> None:
        simple = isinstance(node, ast.UnaryOp) or (isinstance(node, ast.Compare) and len(node.ops) == 1)
        if not simple:
            self._replace(node, ast.UnaryOp(op=ast.Not(), operand=node))
        self.visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            opposite = _OPPOSITE[type(node.ops[0])]()
            self._replace(node, ast.Compare(left=node.left, ops=[opposite], comparators=node.comparators))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._replace(node, ast.BoolOp(op=other, values=node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace(node, node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, ast.Constant(not node.value))

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in _KEYWORDS:
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr in {"where", "having"}:
            for position in range(len(node.args)):
                self._add(
                    node,
                    ast.unparse(_without(node, position)),
                    f"drop the condition {_short(node.args[position])}",
                )
        self.generic_visit(node)

    def _filtered(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        for number, loop in enumerate(node.generators):
            for position, condition in enumerate(loop.ifs):
                fewer = deepcopy(node)
                del fewer.generators[number].ifs[position]
                self._add(node, f"({ast.unparse(fewer)})", f"drop the condition {_short(condition)}")
        self.generic_visit(node)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _filtered  # noqa: N815


def _without(node: ast.Call, position: int) -> ast.expr:
    """Return the call without one of its arguments, or what it was called on."""
    fewer = [each for n, each in enumerate(node.args) if n != position]
    assert isinstance(node.func, ast.Attribute)
    return ast.Call(func=node.func, args=fewer, keywords=node.keywords) if fewer else node.func.value


def _logs(node: ast.expr) -> bool:
    """Return whether a call begins with a logger's name, or is one of `self._log`."""
    if not isinstance(node, ast.Call):
        return False
    return bool(_LOGS & set(_names_of(node.func)))


def _names_of(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute | ast.Call):
        if isinstance(node, ast.Attribute):
            yield node.attr
            node = node.value
        else:
            node = node.func
    if isinstance(node, ast.Name):
        yield node.id


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 90 else f"{text[:87]}..."
