"""The last hour as stacked areas for an SVG. Pure. Colours are classes, because the board allows no inline
styles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pool.core.states import State

WIDTH, HEIGHT = 600, 120
# From the bottom: in use, kept, starting, leaving.
STACK = (
    State.HOT, State.ACTIVATING, State.RESERVED, State.HOT_IDLE, State.IDLE, State.SPAWNING, State.DRAINING,
)  # fmt: skip


def areas(samples: Sequence[dict[str, int]], *, minutes: int) -> dict[str, Any]:
    """Return a path for each state, and the scale. A history shorter than `minutes` is drawn at the right."""
    top = max([1, *(sum(s.values()) for s in samples)])
    step = WIDTH / minutes
    start = WIDTH - step * (len(samples) - 1)
    below = [0] * len(samples)
    paths = []
    for state in STACK:
        above = [b + s.get(state, 0) for b, s in zip(below, samples, strict=True)]
        if above != below:
            paths.append({"state": str(state), "d": _outline(start, step, below, above, top)})
        below = above
    return {"width": WIDTH, "height": HEIGHT, "top": top, "paths": paths}


def _outline(start: float, step: float, below: list[int], above: list[int], top: int) -> str:
    def point(i: int, n: int) -> str:
        return f"{start + i * step:.1f} {HEIGHT - n * HEIGHT / top:.1f}"

    there = [point(i, n) for i, n in enumerate(above)]
    back = [point(i, n) for i, n in reversed(list(enumerate(below)))]
    return f"M{'L'.join([*there, *back])}Z"
