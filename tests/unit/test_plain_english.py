"""Texts are plain English: strings, docstrings, comments, chart files and documentation pages avoid
banned words.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from pool.core.settings import KubernetesSettings, OrgDefaults, PoolSettings, Profile

ROOT = Path(__file__).parents[2]
# Folders and files whose texts have been rewritten. Every file in them is checked.
DONE = (
    "beat_schedule.py",
    "pool/broker",
    "pool/client",
    "pool/config",
    "pool/core",
    "pool/drivers",
    "pool/lifecycle",
    "pool/metrics",
    "pool/ops",
    "pool/passes",
    "pool/store",
    "pool/wiring.py",
    "tasks",
    "charts",
    "deploy",
    "examples",
    "docker-compose.yml",
    "Dockerfile",
    "docs",
    "tests",
    "bench",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "Makefile",
    ".ci/run",
)
# Each pattern with the words to use instead.
BANNED = {
    r"whoever|somebody|someone else|nobody|anybody": "the caller, the holder, another process, no worker",
    r"he|his|him|she|her": "it, its",
    r"told|tells": "reported, notified, returns",
    r"(?<!\.)says": "reports, returns, contains",
    r"(?:is|are) (?:known|asked|meant|well)": "exists, is queried, matches, is healthy",
    r"for so long|so long|so often|so many": "N seconds, every N seconds, up to N",
    r"can not": "cannot",
    r"c[ao]me to nothing": "failed",
    r"counts? on": "orphaned pods",
    r"at hand": "free, available",
    r"in a row": "consecutive",
    r"on (?:its|their) way": "being started",
    r"(?<!INTO )deeds?(?!\.\w)|letters? (?:to|from)|desk": "audit entry, message, authenticator",
    r"made (?:under|anew)|honoured": "created, generated, accepted",
}
_BANNED = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): instead for words, instead in BANNED.items()}
_ANY = re.compile("|".join(pattern.pattern for pattern in _BANNED), re.IGNORECASE)
# A published migration is never changed, and the triggers that it created keep their text.
_PUBLISHED = ROOT / "pool/store/migrations/versions"
_PUBLISHED_COMMENTS = {
    line.strip()
    for path in _PUBLISHED.glob("*.sql")
    for line in path.read_text().splitlines()
    if line.strip().startswith("--")
}
# Names in the database and in reports that cannot change.
_NAMES = {"deeds"}
_ALLOWED = _PUBLISHED_COMMENTS | _NAMES
_TEXT_SUFFIXES = {".css", ".js", ".json", ".md", ".tpl", ".toml", ".txt", ".yaml", ".yml", ""}
# This file lists the banned words. Recorded figures are data.
_NOT_CHECKED = {Path(__file__), ROOT / "docs/performance.json"}
# Names in code: a code span of Markdown, a string that is one identifier.
_CODE_SPAN = re.compile(r"`[^`\n]*`")


def files(done: str) -> list[Path]:
    path = ROOT / done
    inside = sorted(path.rglob("*")) if path.is_dir() else [path]
    found = [p for p in inside if p.suffix in {".py", ".sql"} or (p.suffix in _TEXT_SUFFIXES and p.is_file())]
    return [
        p for p in found if p not in _NOT_CHECKED and (p.suffix != ".sql" or not p.is_relative_to(_PUBLISHED))
    ]


def texts(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Yield each text of a file and its line.

    Comments and strings of Python and SQL, every line of other files. A string that is one identifier
    is a name, such as a key of JSON, and is left out.
    """
    if path.suffix == ".sql":
        for number, line in enumerate(source.splitlines(), 1):
            yield from ((number, text) for text in re.findall(r"--.*|'[^']*'", line))
        return
    if path.suffix != ".py":
        source = _CODE_SPAN.sub("", source) if path.suffix == ".md" else source
        yield from enumerate(source.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not node.value.isidentifier():
            yield from enumerate(node.value.splitlines(), node.lineno)


def findings(path: Path, source: str) -> list[str]:
    # Most files have no banned word at all: they need not be parsed.
    if not _ANY.search(source):
        return []
    return [
        f"{path.name}:{line}: {found[0]!r} in {text.strip()!r}; write: {instead}"
        for line, text in texts(path, source)
        if _ANY.search(text) and text.strip() not in _ALLOWED
        for pattern, instead in _BANNED.items()
        if (found := pattern.search(text))
    ]


@pytest.mark.parametrize("done", DONE)
def test_texts_use_no_banned_word(done: str) -> None:
    inside = files(done)
    assert inside
    assert [found for path in inside for found in findings(path, path.read_text())] == []


def test_names_of_tests_use_no_banned_word() -> None:
    names = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(names) > 1000
    assert [n for n in sorted(names) if any(p.search(n.replace("_", " ")) for p in _BANNED)] == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", '"""Whoever calls it."""\n'),
        ("a.py", "x = 1  # nobody\n"),
        ("a.py", 'raise ValueError(f"{x} can not be")\n'),
        ("a.py", 'x = """First line.\n\nIt is told.\n"""\n'),
        ("a.sql", "SELECT 1  -- nobody\n"),
        ("a.sql", "SELECT format('%s can not be', x)\n"),
        ("a.yaml", "# idle for so long goes\n"),
        ("a.md", "Pods that no row counts on\n"),
    ],
)
def test_a_banned_word_is_found_in_every_kind_of_text(name: str, source: str) -> None:
    assert len(findings(Path(name), source)) == 1


def test_names_in_code_are_no_text() -> None:
    assert findings(Path("a.py"), "def told(he: int) -> int:\n    return he\n") == []
    assert findings(Path("a.py"), 'report["deeds"]\n') == []
    assert findings(Path("a.py"), 'table = "deeds"\n') == []
    assert findings(Path("a.md"), "The table is `deeds`.\n") == []


UNITS = {
    "_s": "seconds",
    "_mib": "MiB",
    "_bytes": "bytes",
    "_millicores": "millicores",
    "_percent": "percent",
}
SETTINGS = [
    pytest.param(f, id=f"{cls.__name__}.{f.name}")
    for cls in (PoolSettings, KubernetesSettings, Profile, OrgDefaults)
    for f in fields(cls)
]


@pytest.mark.parametrize("field", SETTINGS)
def test_the_description_of_a_setting_is_a_sentence_with_its_unit(field: Field[Any]) -> None:
    description = field.metadata["doc"]
    assert re.fullmatch(r"[A-Z].*\.", description)
    for suffix, unit in UNITS.items():
        if field.name.endswith(suffix):
            assert unit in description
