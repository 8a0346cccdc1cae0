"""The Python command of child processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pool


def interpreter() -> tuple[str, ...]:
    """Return the Python command. Outside our source tree it ignores the current directory, which may contain
    a `pool` or a `tasks` of its own."""
    at_home = Path(pool.__file__).parents[1] == Path.cwd()
    return (sys.executable,) if at_home else (sys.executable, "-P")
