"""Readiness and liveness of a process: a file that it touches while it is well."""

from __future__ import annotations

import os
from pathlib import Path

READY_FILE = "WARMPOOL_RUN_READY_FILE"


def touch() -> None:
    """Say that this process is well, if somebody wants to know."""
    if path := os.environ.get(READY_FILE):
        Path(path).touch()
