"""On which line of a TOML text each key stands; `tomllib` does not say. Pure, and meant for text that `tomllib` took."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

Path = tuple[str, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({_KEY})[ \t]*\]")
_ASSIGNMENT = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
# What matters of a value: where texts begin and end, comments, and brackets outside both.
_TOKEN = re.compile(r'''"""|\'\'\'|"(?:[^"\\]|\\.)*"|'[^']*'|\#.*|[\[\]{}]''')
_LONG_END = {
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*"{3,5}', re.DOTALL),
    "'''": re.compile(r"(?:[^']|'(?!''))*'{3,5}"),
}


def lines_of(text: str) -> dict[Path, int]:
    """The line of every table and key, the first where one is named twice. Keys inside inline tables are not listed."""
    found: dict[Path, int] = {}
    table: Path = ()
    for number, line in _statements(text):
        if header := _HEADER.match(line):
            table = _path(header.group(1))
            found.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            found.setdefault(table + _path(assignment.group(1)), number)
    return found


def nearest(lines: Mapping[Path, int], path: Path) -> int:
    """The line of `path`; else of the first thing in it, as `[orgs.acme]` for `orgs`; else of what it stands in."""
    inside = [number for known, number in lines.items() if known[: len(path)] == path]
    if inside:
        return lines.get(path, min(inside))
    return nearest(lines, path[:-1]) if path else 1


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The lines that begin something, without those inside a long text or a list that goes on."""
    lines = text.replace("\r\n", "\n").split("\n")
    index = 0
    while index < len(lines):
        yield index + 1, lines[index]
        index += _height(lines, index)


def _height(lines: list[str], start: int) -> int:
    """How many lines the statement that begins at `start` takes."""
    if _HEADER.match(lines[start]):
        return 1
    depth, opened = 0, ""
    for index in range(start, len(lines)):
        depth, opened = _after(lines[index], depth, opened)
        if depth <= 0 and not opened:
            return index - start + 1
    return len(lines) - start


def _after(line: str, depth: int, opened: str) -> tuple[int, str]:
    """How deep in brackets, and in which long text, the end of `line` is."""
    at = 0
    while True:
        if opened:
            end = _LONG_END[opened].match(line, at)
            if end is None:
                return depth, opened
            at, opened = end.end(), ""
        token = _TOKEN.search(line, at)
        if token is None:
            return depth, ""
        at = token.end()
        if token.group() in _LONG_END:
            opened = token.group()
        depth += (token.group() in "[{") - (token.group() in "]}")


def _path(key: str) -> Path:
    """The parts of a dotted key, read by TOML's own rules."""
    parts: list[str] = []
    node: object = tomllib.loads(f"{key} = 0")
    while isinstance(node, dict):
        ((part, node),) = node.items()
        parts.append(part)
    return tuple(parts)
