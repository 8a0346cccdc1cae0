"""Bounds for untrusted input: depth and digits of JSON, length and characters of names and text. Pure."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any, TypeGuard

MOST_LEVELS = 32
MOST_DIGITS = 20
MOST_TEXT = 256
_NAME = re.compile(rf"[!-~]{{1,{MOST_TEXT}}}")
_UNPRINTABLE = re.compile(r"[^ -~]")


class TooDeep(ValueError):
    """The JSON is nested deeper than any valid message."""


def is_name(value: object) -> TypeGuard[str]:
    """Return whether it can be an id or a key: printable ASCII without spaces."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def cleaned(value: object, most: int = MOST_TEXT) -> str:
    """Return untrusted text as it may be logged and shown: printable ASCII of bounded length."""
    return _UNPRINTABLE.sub("?", value[:most]) if isinstance(value, str) else ""


def _argument(digits: str) -> int | float:
    """Parse an integer. With more digits than any field accepts it becomes a float, which every
    field refuses.
    """
    return int(digits) if len(digits) <= MOST_DIGITS else float(digits)


def _in_the_frame(digits: str) -> int:
    """Parse an integer outside the arguments. Celery and kombu may parse it again, so it must be bounded."""
    if len(digits) > MOST_DIGITS:
        raise ValueError("a number has too many digits")
    return int(digits)


def _fraction(digits: str) -> float:
    found = float(digits)
    if not isfinite(found):
        raise ValueError(f"{digits[:MOST_DIGITS]} is not a JSON number")
    return found


FRAME = json.JSONDecoder(parse_int=_in_the_frame, parse_float=_fraction, parse_constant=_fraction)
ARGUMENTS = json.JSONDecoder(parse_int=_argument)


def decoded(content: bytes | str, decoder: json.JSONDecoder) -> Any:
    """Return the value, parsed by one of the decoders above. Raise `ValueError` if it is not JSON
    or exceeds a bound.
    """
    text = content if isinstance(content, str) else content.decode()
    try:
        found = decoder.decode(text)
    except RecursionError:
        raise TooDeep from None
    # A message with few brackets cannot be deep. Nearly all messages are like that.
    if text.count("[") + text.count("{") > MOST_LEVELS and _is_deep(found):
        raise TooDeep
    return found


def _is_deep(found: Any) -> bool:
    level = [found]
    for _ in range(MOST_LEVELS):
        level = [
            child
            for each in level
            if isinstance(each, list | dict)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True
