"""Who a client is: the name of its reply list, and what Flower shows as the origin of its tasks."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, replace

from pool.core.errors import InvalidInput
from pool.core.ids import RandomIds, new_task_id
from pool.core.names import ACQUIRE, REPLY_PREFIX, queue_of, task_prefix_of
from pool.core.signing import OrgKey

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Of one client in one process; a fork's child has another."""

    client_id: str
    origin: str
    # With a queue for each org, what the names of its own keys begin with.
    prefix: str = ""
    queue: str = ACQUIRE

    @property
    def reply_to(self) -> str:
        return f"{REPLY_PREFIX}{self.prefix}{self.client_id}"

    def task_id(self) -> str:
        """The id of a new task."""
        return f"{self.prefix}{new_task_id()}"


def named(name: str | None) -> str:
    """The name, checked. It ends at a dot in the reply list's name, so that one ACL pattern matches one service only."""
    if name is None:
        return "client"
    if not _NAME.match(name):
        raise InvalidInput("name", f"must be 1 to 64 letters, digits, dashes or underscores, got {name!r}")
    return name


def identity(name: str, key: OrgKey | None = None) -> Identity:
    """A new identity: no two clients read one reply list."""
    made = Identity(
        client_id=f"{name}.{RandomIds().token()}", origin=f"{name}{os.getpid()}@{socket.gethostname()}"
    )
    if key is None or not key.own_queue:
        return made
    return replace(made, prefix=task_prefix_of(key.org), queue=queue_of(key.org))
