"""The address of the database for SQLAlchemy."""

from __future__ import annotations

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pool.core.database_url import TAKES, parsed
from pool.core.errors import PoolError

_SESSION = "target_session_attrs"


def address(url: str) -> URL:
    """Return the URL for the installed driver.

    With several hosts and without `target_session_attrs`, a connection needs a server that accepts
    writes: after a failover the old primary may come back as a standby.
    """
    parts = parsed(url)
    if parts is None:
        raise PoolError(f"database_url: must be {TAKES}")
    user = "" if parts.user is None else f"{parts.user}@"
    host = parts.hosts[0] if len(parts.hosts) == 1 else ""
    try:
        made = make_url(f"postgresql+psycopg://{user}{host}{parts.rest}")
    except (ArgumentError, ValueError) as exc:
        raise PoolError(f"database_url: cannot be parsed; it must be {TAKES}") from exc
    if host or not parts.hosts:
        return made
    if _SESSION not in made.query:
        made = made.update_query_dict({_SESSION: "read-write"})
    return made.update_query_dict({"host": list(parts.hosts)})
