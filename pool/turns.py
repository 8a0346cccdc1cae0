"""Whose turn it is, where more is found than one run may handle."""

from __future__ import annotations

_GOLDEN = (5**0.5 - 1) / 2


def begins_at(turn: int, length: int) -> int:
    """Return where a window over `length` things begins in this turn. Turns that come at any steady pace, skipped ones too, begin everywhere in
    time: a step by the golden ratio never falls into a cycle."""
    return int(turn * _GOLDEN % 1.0 * length)
