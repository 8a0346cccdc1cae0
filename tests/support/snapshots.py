"""A world that can be restored, so that a thousand cases start from one state without creating it
each time. Ids are never restored: new objects of two cases have different names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pool.store import Store, schema
from tests.support.world import World

_TABLES = tuple(schema.metadata.tables)
_COUNTED = ("journal", "deeds")


@dataclass(frozen=True)
class Kept:
    """One state of a world."""

    database: str
    pods: dict[str, Any]
    secrets: dict[str, str]
    words: dict[str, Any]
    sent: list[Any]
    nudged: set[str]


def keep(world: World) -> Kept:
    """Save the current state."""
    driver, broker = world.driver, world.broker
    words, sent, nudged = dict(driver.words), list(broker.sent), set(broker.nudged)
    return Kept(script(world.store), dict(driver.pods), dict(driver.secrets), words, sent, nudged)


def restore(world: World, kept: Kept) -> None:
    """Restore that state."""
    put_back(world.store, kept.database)
    driver, broker = world.driver, world.broker
    driver.pods, driver.secrets, driver.words = dict(kept.pods), dict(kept.secrets), dict(kept.words)
    driver.drain_events()
    broker.sent, broker.nudged, broker.replies = list(kept.sent), set(kept.nudged), []


def script(store: Store) -> str:
    """Return the statements that restore the current rows. Triggers, which refuse rows that begin
    in a later state, do not run in a session with the replica role.
    """
    parts = ["SET LOCAL session_replication_role = replica", *(f"DELETE FROM {name}" for name in _TABLES)]
    with store.snapshot() as tx:
        for name in _TABLES:
            rows = tx.exec_driver_sql(f"SELECT json_agg({name})::text FROM {name}").scalar_one()
            if rows:
                parts.append(
                    f"INSERT INTO {name} SELECT * FROM json_populate_recordset(NULL::{name}, $kept${rows}$kept$)"
                )
    parts += [
        f"SELECT setval('{name}_id_seq', (SELECT coalesce(max(id), 0) + 1 FROM {name}), false)"
        for name in _COUNTED
    ]
    return ";\n".join(parts).replace("%", "%%")


def put_back(store: Store, kept: str) -> None:
    """Restore the rows in one round trip."""
    with store.write() as tx:
        tx.exec_driver_sql(kept)
