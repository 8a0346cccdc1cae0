"""Format values and names for findings, each on one line. Pure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST = 80


def shown(value: object) -> str:
    """Return a value on one line, shortened, and in TOML syntax where possible."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    text = _spelt(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _spelt(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=not value.isprintable())
    if isinstance(value, bool):
        return str(value).lower()
    # Python refuses to print numbers of thousands of digits.
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 128 bits"
    return str(value)


def dotted(path: Iterable[str]) -> str:
    """Return the full name of a key, quoted where TOML requires it."""
    return ".".join(part if _BARE.fullmatch(part) else shown(part) for part in path)


def one_line(text: str) -> str:
    """Return the text with all unprintable characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a sentence about an unknown word, or "" if no known word is
    similar.
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
