"""Readiness and liveness of a process: files that it touches while it is well. Ready: it has served once, and is well. Alive: it is well, or
waits for a broker that is away; a restart would not help then."""

from __future__ import annotations

import os
from pathlib import Path

READY_FILE = "WARMPOOL_RUN_READY_FILE"
ALIVE_FILE = "WARMPOOL_RUN_ALIVE_FILE"


def touch() -> None:
    """Say that this process is ready and well, if somebody wants to know."""
    _touch(READY_FILE)
    touch_alive()


def touch_alive() -> None:
    """Say that it is well, and not yet ready."""
    _touch(ALIVE_FILE)


def _touch(variable: str) -> None:
    if path := os.environ.get(variable):
        Path(path).touch()
