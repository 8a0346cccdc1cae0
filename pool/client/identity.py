"""Who a client is: the name of its reply list, and what Flower shows as the origin of its tasks."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass

from pool.errors import InvalidInput
from pool.ids import RandomIds

REPLY_PREFIX = "warmpool.reply."
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Of one client in one process; a fork's child has another."""

    client_id: str
    origin: str

    @property
    def reply_to(self) -> str:
        return REPLY_PREFIX + self.client_id


def named(name: str | None) -> str:
    """The name, checked. It ends at a dot in the reply list's name, so that one ACL pattern matches one service only."""
    if name is None:
        return "client"
    if not _NAME.match(name):
        raise InvalidInput("name", f"must be 1 to 64 letters, digits, dashes or underscores, got {name!r}")
    return name


def identity(name: str) -> Identity:
    """A new identity: no two clients read one reply list."""
    return Identity(
        client_id=f"{name}.{RandomIds().token()}", origin=f"{name}{os.getpid()}@{socket.gethostname()}"
    )
