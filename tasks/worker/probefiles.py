"""Readiness and liveness of a process: files that it touches while it is well. Ready: it has served once, and is well. Alive: it is well, or
waits for a broker that is away; a restart would not help then."""

from __future__ import annotations

import os
from pathlib import Path

from pool.core.names import ENV_ALIVE_FILE, ENV_READY_FILE


def touch() -> None:
    """Say that this process is ready and well, if somebody wants to know."""
    _touch(ENV_READY_FILE)
    touch_alive()


def touch_alive() -> None:
    """Say that it is well, and not yet ready."""
    _touch(ENV_ALIVE_FILE)


def _touch(variable: str) -> None:
    if path := os.environ.get(variable):
        Path(path).touch()
