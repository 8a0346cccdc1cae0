"""docs/promises.md, docs/passes.md and ARCHITECTURE.md name tests, functions, constraints and files
of this tree: each of them exists.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/promises.md", "docs/passes.md", "ARCHITECTURE.md")
_FILE = re.compile(r"[\w./-]+\.(py|sql|md|yaml|toml)")
_ATTRIBUTE = re.compile(r"(\w+)\.(\w+)")
_WORD = re.compile(r"\w+")


@cache
def _sources() -> dict[Path, str]:
    """Return every file that may define a function, a constraint, a setting, a task or a constant."""
    found = [
        p for part in ("pool", "tasks") for kind in ("py", "sql") for p in (ROOT / part).rglob(f"*.{kind}")
    ]
    return {path: path.read_text() for path in (*found, ROOT / "Makefile", ROOT / "pyproject.toml")}


@cache
def _files() -> frozenset[str]:
    folders = ("pool", "tasks", "tests", "charts", "docs")
    inside = [p for folder in folders for p in (ROOT / folder).rglob("*") if "__pycache__" not in p.parts]
    return frozenset(
        path.relative_to(ROOT).as_posix() for path in (*inside, *ROOT.iterdir()) if path.is_file()
    )


@cache
def _tests() -> frozenset[str]:
    texts = (path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    return frozenset(name for text in texts for name in re.findall(r"^ *def (test_\w+)", text, re.M))


@cache
def _words() -> frozenset[str]:
    return frozenset(word for text in _sources().values() for word in _WORD.findall(text))


@cache
def _attributes() -> frozenset[str]:
    """Return every `owner.member` in the sources."""
    dotted = (found for text in _sources().values() for found in re.findall(r"\w+(?:\.\w+)+", text))
    return frozenset(".".join(pair) for words in dotted for pair in pairwise(words.split(".")))


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(_sources()[path])))


def _defines(owner: str, member: str) -> bool:
    """Return whether a module or a class of this name defines it."""
    for path, text in _sources().items():
        module = path.parent.name if path.stem == "__init__" else path.stem
        if path.suffix != ".py" or not (module == owner or f"class {owner}" in text):
            continue
        for node in _nodes(path):
            if module == owner and member in _names(node):
                return True
            if isinstance(node, ast.ClassDef) and node.name == owner:
                return any(member in _names(inner) for inner in node.body)
    return False


def _names(node: ast.AST) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
    return set()


def _exists(name: str) -> bool:
    if name.startswith("test_") and _WORD.fullmatch(name):
        return name in _tests()
    if _FILE.fullmatch(name):
        return name in _files() or any(file.endswith(f"/{name}") for file in _files())
    if found := _ATTRIBUTE.fullmatch(name):
        return name in _attributes() or _defines(*found.groups())
    if _WORD.fullmatch(name):
        return name in _words()
    return True


@pytest.mark.parametrize("page", PAGES)
def test_names_in_the_docs_exist(page: str) -> None:
    named = set(re.findall(r"`([^`\n]+)`", (ROOT / page).read_text()))
    assert len(named) > 10
    assert sorted(name for name in named if not _exists(name)) == []


def test_name_that_does_not_exist_is_found() -> None:
    for name in ("test_of_nothing", "pool/nothing.py", "claiming.nothing", "no_such_constraint"):
        assert not _exists(name), name
