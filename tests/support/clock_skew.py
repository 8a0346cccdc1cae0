"""A process whose clock is wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent / "skewed"


def skewed(env: Mapping[str, str], seconds: float) -> dict[str, str]:
    """Return an environment in which Python's time of day is off by `seconds`."""
    path = os.pathsep.join(filter(None, [str(_FOLDER), env.get("PYTHONPATH", "")]))
    return {**env, "PYTHONPATH": path, "CLOCK_SKEW_S": str(seconds)}
