"""Remove the local pods. They survive the processes that created them, so stopping the pool must
remove them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pool.core.clock import Clock
from pool.core.errors import PoolError
from pool.drivers.port import Driver

GRACE_S = 2
_LIMIT_S = 20.0
_POLL_S = 0.1


def clear(driver: Driver, *, clock: Clock, hurried: Callable[[], bool]) -> str:
    """Delete every pod, wait until none is left or the time limit is reached, and return a line about it.

    Deletes are repeated while it waits: this never extends a grace period, and shortens it if the
    stop becomes urgent.
    """
    deadline = clock.monotonic() + _LIMIT_S
    most = 0
    while True:
        left, trouble = _delete_all(driver, grace_s=0 if hurried() else GRACE_S)
        most = max(most, left)
        if not left and not trouble:
            return f"{'pods':<9}{most} removed" if most else ""
        if clock.monotonic() >= deadline:
            return f"{'pods':<9}{left} could not be removed {trouble}".rstrip()
        clock.wait(threading.Event(), _POLL_S)


def _delete_all(driver: Driver, *, grace_s: int) -> tuple[int, str]:
    """Delete every pod; return how many there were, and an error text."""
    left = 0
    try:
        pods = driver.list().pods
        left = len(pods)
        for pod in pods:
            driver.delete(pod.name, pod.uid, grace_s=grace_s)
    except PoolError as exc:
        return left, f"({exc})"
    return left, ""
