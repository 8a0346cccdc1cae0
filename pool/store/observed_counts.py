"""What passes counted in their last run. The exporter reads it from here, because it does not watch
the cluster itself.

The same table has events from outside of the pool (Redis emptied, a verb forbidden), with their
number and last time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.dialects import postgresql

from pool.store.engine import Tx
from pool.store.schema import sightings as T
from pool.store.sql import now, younger_than

# The value of the column `pass` for events from outside.
_OUTSIDE = "outside"
_EMPTIED = "broker_emptied"
_FORBIDDEN = "forbidden "


class ForbiddenVerb(NamedTuple):
    """A call that the API server refused as forbidden."""

    what: str
    at: datetime


def record(tx: Tx, name: str, seen: Mapping[str, int]) -> None:
    """Replace the counts of this pass."""
    if not seen:
        return
    values = [
        {"pass": name, "what": what, "count": count, "at": now()} for what, count in sorted(seen.items())
    ]
    statement = postgresql.insert(T).values(values)
    tx.execute(
        statement.on_conflict_do_update(
            index_elements=["pass", "what"],
            set_={"count": statement.excluded["count"], "at": statement.excluded["at"]},
        )
    )


def every(tx: Tx) -> dict[str, int]:
    """Return the newest value of every count."""
    return {r.what: int(r._mapping["count"]) for r in tx.execute(select(T))}


def placeholders_of(profile: str) -> str:
    """Return the name of the count of a profile's placeholders."""
    return f"placeholders {profile}"


def settings_of(profile: str) -> str:
    """Return the name of the number that stands for the settings that the running pool has of a profile."""
    return f"settings {profile}"


def broker_found_empty(tx: Tx) -> None:
    """Record that Redis contains no key of the pool.

    This is normal the first time; later it means that Redis was emptied.
    """
    statement = postgresql.insert(T).values({"pass": _OUTSIDE, "what": _EMPTIED, "count": 0, "at": now()})
    tx.execute(
        statement.on_conflict_do_update(
            index_elements=["pass", "what"], set_={"count": T.c["count"] + 1, "at": statement.excluded["at"]}
        )
    )


def forbidden(tx: Tx, verb: str, resource: str) -> None:
    """Record that the API server has forbidden this verb on this resource."""
    record(tx, _OUTSIDE, {f"{_FORBIDDEN}{verb} {resource}": 1})


def broker_emptied_at(tx: Tx) -> datetime | None:
    """Return when Redis was last found empty, except for the first time."""
    found = select(T.c.at).where(T.c["pass"] == _OUTSIDE, T.c.what == _EMPTIED, T.c["count"] > 0)
    at: datetime | None = tx.execute(found).scalar_one_or_none()
    return at


def forbidden_within(tx: Tx, seconds: float) -> list[ForbiddenVerb]:
    """Return the verbs and resources that the API server has forbidden in the last `seconds`."""
    found = select(T.c.what, T.c.at).where(
        T.c["pass"] == _OUTSIDE, T.c.what.startswith(_FORBIDDEN), younger_than(T.c.at, seconds)
    )
    return [
        ForbiddenVerb(r.what.removeprefix(_FORBIDDEN), r.at) for r in tx.execute(found.order_by(T.c.what))
    ]
