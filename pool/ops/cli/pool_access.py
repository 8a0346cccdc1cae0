"""What commands that change the pool need: the operator's name, and the pool's dependencies with a broker."""

from __future__ import annotations

import getpass
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from pool.core.errors import PoolError
from pool.core.settings import Settings
from pool.ops.operating import Operator

if TYPE_CHECKING:
    from pool.lifecycle.deps import Deps


def operator(why: str = "") -> Operator:
    """Return the operator: the name of the current user, or its uid if it has no name (in a container)."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = f"uid {os.getuid()}"
    return Operator(name=name, way="cli", why=why)


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal; without one, `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise PoolError(f"{question} The input is not a terminal: add --yes to confirm")
    typer.confirm(question, abort=True)


def process_deps(settings: Settings) -> Deps:
    """Return the pool's dependencies for the rest of this process. Among the commands, only this module
    imports Celery."""
    from tasks.app import app as celery

    celery.role, celery.settings = "cli", settings
    return celery.deps


@contextmanager
def pool_deps(settings: Settings) -> Iterator[Deps]:
    """Provide the pool's dependencies for one command; messages are sent by the end of the block."""
    from pool.config import logs
    from tasks.app import app as celery

    logs.set_up(logging.WARNING)
    deps = process_deps(settings)
    try:
        yield deps
    finally:
        celery.pool_broker.close()
        deps.close()
