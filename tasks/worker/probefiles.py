"""The files for readiness and liveness probes, touched while the process is healthy.

Ready: it has served once and is healthy. Alive: it is healthy, or waits for a broker that is down,
when a restart would not help.
"""

from __future__ import annotations

import os
from pathlib import Path

from pool.core.names import ENV_ALIVE_FILE, ENV_READY_FILE


def touch() -> None:
    """Report that this process is ready and healthy, if the files are configured."""
    _touch(ENV_READY_FILE)
    touch_alive()


def touch_alive() -> None:
    """Report that it is alive but not ready yet."""
    _touch(ENV_ALIVE_FILE)


def _touch(variable: str) -> None:
    if path := os.environ.get(variable):
        Path(path).touch()
