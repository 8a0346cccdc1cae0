"""What passes saw when they last looked, as counts: the exporter has no view of the cluster of its own."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from pool.store.engine import Tx
from pool.store.schema import sightings as T
from pool.store.sql import now


def record(tx: Tx, name: str, seen: Mapping[str, int]) -> None:
    """In place of what this pass saw before."""
    if not seen:
        return
    dialect = postgresql if tx.dialect.name == "postgresql" else sqlite
    values = [
        {"pass": name, "what": what, "count": count, "at": now()} for what, count in sorted(seen.items())
    ]
    statement = dialect.insert(T).values(values)
    tx.execute(
        statement.on_conflict_do_update(
            index_elements=["pass", "what"],
            set_={"count": statement.excluded["count"], "at": statement.excluded["at"]},
        )
    )


def every(tx: Tx) -> dict[str, int]:
    """The newest count of everything that was ever looked for."""
    return {r.what: int(r._mapping["count"]) for r in tx.execute(select(T))}
