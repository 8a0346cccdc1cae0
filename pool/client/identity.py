"""The identity of a client: the name of its reply list, and the origin of its tasks, which the pool shows with each claim."""

from __future__ import annotations

import os
import re
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from pool.core.errors import InvalidInput
from pool.core.ids import RandomIds, new_task_id
from pool.core.names import ACQUIRE, REPLY_PREFIX, queue_of, task_prefix_of
from pool.core.signing import OrgKey

UNNAMED = "client"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of one client in one process. The child of a fork has another one."""

    client_id: str
    origin: str
    # Prefix of the names of the org's own keys, if the org has its own queue.
    prefix: str = ""
    queue: str = ACQUIRE

    @property
    def reply_to(self) -> str:
        return f"{REPLY_PREFIX}{self.prefix}{self.client_id}"

    def task_id(self) -> str:
        """Return the id for a new task."""
        return f"{self.prefix}{new_task_id()}"


def named(name: str | None) -> str:
    """Return the checked name. In the name of the reply list a dot ends it, so that one ACL pattern
    matches only one service.
    """
    if name is None:
        return UNNAMED
    if not _NAME.match(name):
        raise InvalidInput("name", f"must be 1 to 64 letters, digits, dashes or underscores, got {name!r}")
    return name


def _program() -> str:
    """Return the name of the running program, for a client without a name."""
    name = Path(sys.argv[0] if sys.argv else "").stem
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)[:64].strip("-") or UNNAMED


def identity(name: str, key: OrgKey | None = None) -> Identity:
    """Return a new identity. Each has its own reply list."""
    made = Identity(
        client_id=f"{name}.{RandomIds().token()}",
        origin=f"{name if name != UNNAMED else _program()}:{os.getpid()}@{socket.gethostname()}",
    )
    if key is None or not key.own_queue:
        return made
    return replace(made, prefix=task_prefix_of(key.org), queue=queue_of(key.org))
