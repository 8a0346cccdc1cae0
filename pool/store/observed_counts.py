"""What passes saw when they last looked, as counts: the exporter has no view of the cluster of its own. Beside them what happened to the pool from
outside (Redis emptied, a verb forbidden), counted with the moment of the last time, since nothing else in the table would show it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.dialects import postgresql

from pool.store.engine import Tx
from pool.store.schema import sightings as T
from pool.store.sql import now, younger_than

# Where what happened from outside is kept, beside the names of passes.
_OUTSIDE = "outside"
_EMPTIED = "broker_emptied"
_FORBIDDEN = "forbidden "


class ForbiddenVerb(NamedTuple):
    """A call that the API server said no to."""

    what: str
    at: datetime


def record(tx: Tx, name: str, seen: Mapping[str, int]) -> None:
    """In place of what this pass saw before."""
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
    """The newest count of everything that was ever looked for."""
    return {r.what: int(r._mapping["count"]) for r in tx.execute(select(T))}


def broker_found_empty(tx: Tx) -> None:
    """Redis has nothing of ours. The first time that is how it should be; after that somebody has emptied it."""
    statement = postgresql.insert(T).values({"pass": _OUTSIDE, "what": _EMPTIED, "count": 0, "at": now()})
    tx.execute(
        statement.on_conflict_do_update(
            index_elements=["pass", "what"], set_={"count": T.c["count"] + 1, "at": statement.excluded["at"]}
        )
    )


def forbidden(tx: Tx, verb: str, resource: str) -> None:
    """The API server has just said that we may not."""
    record(tx, _OUTSIDE, {f"{_FORBIDDEN}{verb} {resource}": 1})


def broker_emptied_at(tx: Tx) -> datetime | None:
    """When Redis was last found emptied."""
    found = select(T.c.at).where(T.c["pass"] == _OUTSIDE, T.c.what == _EMPTIED, T.c["count"] > 0)
    at: datetime | None = tx.execute(found).scalar_one_or_none()
    return at


def forbidden_within(tx: Tx, seconds: float) -> list[ForbiddenVerb]:
    """What the API server has forbidden lately, by verb and resource."""
    found = select(T.c.what, T.c.at).where(
        T.c["pass"] == _OUTSIDE, T.c.what.startswith(_FORBIDDEN), younger_than(T.c.at, seconds)
    )
    return [
        ForbiddenVerb(r.what.removeprefix(_FORBIDDEN), r.at) for r in tx.execute(found.order_by(T.c.what))
    ]
