"""Bounds of what strangers send: JSON in depth and digits, names and text in length and characters. Pure."""

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
    """It nests deeper than any message of ours."""


def is_name(value: object) -> TypeGuard[str]:
    """Whether it can be an id or a key: printable ASCII without blanks."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def cleaned(value: object, most: int = MOST_TEXT) -> str:
    """Text of a stranger as it may be written and shown: printable ASCII, of bounded length."""
    return _UNPRINTABLE.sub("?", value[:most]) if isinstance(value, str) else ""


def _argument(digits: str) -> int | float:
    """A number of more digits than any field takes becomes a float, which is bounded and which every field refuses."""
    return int(digits) if len(digits) <= MOST_DIGITS else float(digits)


def _in_the_frame(digits: str) -> int:
    """A number around the arguments. Celery and kombu may read it again, which fails for one without bound."""
    if len(digits) > MOST_DIGITS:
        raise ValueError("a number of too many digits")
    return int(digits)


def _fraction(digits: str) -> float:
    found = float(digits)
    if not isfinite(found):
        raise ValueError(f"{digits[:MOST_DIGITS]} is no number of JSON")
    return found


FRAME = json.JSONDecoder(parse_int=_in_the_frame, parse_float=_fraction, parse_constant=_fraction)
ARGUMENTS = json.JSONDecoder(parse_int=_argument)


def decoded(content: bytes | str, decoder: json.JSONDecoder) -> Any:
    """The value, read by one of the decoders above. `ValueError` if it is not JSON or exceeds a bound."""
    text = content if isinstance(content, str) else content.decode()
    try:
        found = decoder.decode(text)
    except RecursionError:
        raise TooDeep from None
    # A message with so few brackets cannot be deep, and nearly all are of that kind.
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
