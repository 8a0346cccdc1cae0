"""The end of the local pods: they outlive every process that made them, so stopping the pool has to remove them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pool.clock import Clock
from pool.drivers.port import Driver
from pool.errors import PoolError

GRACE_S = 2
_LIMIT_S = 20.0
_POLL_S = 0.1


def clear(driver: Driver, *, clock: Clock, hurried: Callable[[], bool]) -> str:
    """Delete every pod and wait until none is left, for a bounded time; what there is to say about it.

    Deleting is repeated while it waits: repeating never lengthens a grace, and a hurry that comes later shortens it.
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
    """Ask for the end of each; how many there were, and what went wrong."""
    left = 0
    try:
        pods = driver.list().pods
        left = len(pods)
        for pod in pods:
            driver.delete(pod.name, pod.uid, grace_s=grace_s)
    except PoolError as exc:
        return left, f"({exc})"
    return left, ""
