"""The parts of a Postgres URL, which may name several hosts. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

TAKES = "postgresql://USER:PASSWORD@HOST/NAME, with several hosts HOST1:PORT,HOST2:PORT"
_SCHEMES = frozenset({"postgresql", "postgresql+psycopg", "postgres"})
_PARTS = re.compile(r"(?P<scheme>[^:/]+)://(?:(?P<user>[^/?#]*)@)?(?P<hosts>[^@/?#]*)(?P<rest>.*)", re.DOTALL)
_HOST = re.compile(r"(?:[^:,\[\]\s]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseUrl:
    """A URL without its scheme. No host: a socket, or the default of the client library."""

    user: str | None
    hosts: tuple[str, ...]
    rest: str


def parsed(url: str) -> DatabaseUrl | None:
    """Return the parts; None if it is no Postgres URL or a host or port is malformed."""
    found = _PARTS.fullmatch(url)
    if found is None or found["scheme"] not in _SCHEMES:
        return None
    hosts = tuple(found["hosts"].split(",")) if found["hosts"] else ()
    if not all(map(_is_host, hosts)):
        return None
    return DatabaseUrl(user=found["user"], hosts=hosts, rest=found["rest"])


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and (found["port"] is None or 0 < int(found["port"]) < 65536)
