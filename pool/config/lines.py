"""Find the line of each key in a TOML text, which `tomllib` does not report. Only for valid TOML. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

Path = tuple[str, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({_KEY})[ \t]*\]")
_ASSIGNMENT = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
# The relevant tokens of a value: string delimiters, comments, and brackets outside both.
_TOKEN = re.compile(r'''"""|\'\'\'|"(?:[^"\\]|\\.)*"|'[^']*'|\#.*|[\[\]{}]''')
_LONG_END = {
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*"{3,5}', re.DOTALL),
    "'''": re.compile(r"(?:[^']|'(?!''))*'{3,5}"),
}


def lines_of(text: str) -> dict[Path, int]:
    """Return the line of every table and key, the first one of a repeated name. Omits keys of
    inline tables.
    """
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
    """Return the line of `path`, else of its first child (`[orgs.acme]` for `orgs`), else of its parent."""
    inside = [number for known, number in lines.items() if known[: len(path)] == path]
    if inside:
        return lines.get(path, min(inside))
    return nearest(lines, path[:-1]) if path else 1


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line of each statement, with its number."""
    lines = text.replace("\r\n", "\n").split("\n")
    index = 0
    while index < len(lines):
        yield index + 1, lines[index]
        index += _height(lines, index)


def _height(lines: list[str], start: int) -> int:
    """Return the number of lines of the statement that begins at `start`."""
    if _HEADER.match(lines[start]):
        return 1
    depth, opened = 0, ""
    for index in range(start, len(lines)):
        depth, opened = _after(lines[index], depth, opened)
        if depth <= 0 and not opened:
            return index - start + 1
    return len(lines) - start


def _after(line: str, depth: int, opened: str) -> tuple[int, str]:
    """Return the bracket depth and the open multi-line string at the end of `line`."""
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
    """Return the parts of a dotted key, parsed as TOML."""
    parts: list[str] = []
    node: object = tomllib.loads(f"{key} = 0")
    while isinstance(node, dict):
        ((part, node),) = node.items()
        parts.append(part)
    return tuple(parts)
