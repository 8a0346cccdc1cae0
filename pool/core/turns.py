"""Select items in turns when there are more than one run may handle."""

from __future__ import annotations

_GOLDEN = (5**0.5 - 1) / 2


def begins_at(turn: int, length: int) -> int:
    """Return where a window over `length` items begins in this turn.

    Each turn steps by the golden ratio, which never repeats in a cycle, so over time every item is
    covered even if turns are skipped regularly.
    """
    return int(turn * _GOLDEN % 1.0 * length)
