"""What commands need that change the pool: a name for who asks, and the pool's own dependencies, with a broker that sends tasks."""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pool.operating import Operator
from pool.settings import Settings

if TYPE_CHECKING:
    from pool.deps import Deps


def operator(why: str = "") -> Operator:
    """Who sits at this terminal. A container's user may have no name."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = f"uid {os.getuid()}"
    return Operator(name=name, way="cli", why=why)


def lasting(settings: Settings) -> Deps:
    """Dependencies of the pool, as its own workers have them, for the rest of this process. Celery is imported here and only here."""
    from tasks.app import app as celery

    celery.role, celery.settings = "cli", settings
    return celery.deps


@contextmanager
def working(settings: Settings) -> Iterator[Deps]:
    """The same for one command: what it sends is sent when the block ends."""
    from pool import logs
    from tasks.app import app as celery

    logs.set_up(logging.WARNING)
    deps = lasting(settings)
    try:
        yield deps
    finally:
        celery.pool_broker.close()
        deps.close()
