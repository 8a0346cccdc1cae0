"""A world that can be put back, so that a thousand cases begin from one moment without making it anew each time. Ids are never put back: what
is new in two cases has two names."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select, text

from pool.store import Store, connect, migrations, schema
from tests.support.world import World

_names = itertools.count(1)


def memory_store() -> Store:
    """A fresh database of its own, gone with its last connection."""
    store = connect(f"sqlite:///file:wp{next(_names)}?mode=memory&cache=shared&uri=true", connections=2)
    migrations.upgrade(store)
    return store


@dataclass(frozen=True)
class Kept:
    """One moment of a world."""

    database: sqlite3.Connection | dict[str, list[dict[str, Any]]]
    pods: dict[str, Any]
    secrets: dict[str, str]
    words: dict[str, Any]
    sent: list[Any]
    nudged: set[str]


def keep(world: World) -> Kept:
    """This moment, to be come back to."""
    driver, broker = world.driver, world.broker
    database = _read(world.store) if world.store.is_postgres else _copy(world.store)
    words, sent, nudged = dict(driver.words), list(broker.sent), set(broker.nudged)
    return Kept(database, dict(driver.pods), dict(driver.secrets), words, sent, nudged)


def restore(world: World, kept: Kept) -> None:
    """Back to that moment."""
    if isinstance(kept.database, dict):
        _write(world.store, kept.database)
    else:
        with _connection(world.store) as connection:
            kept.database.backup(connection)
    driver, broker = world.driver, world.broker
    driver.pods, driver.secrets, driver.words = dict(kept.pods), dict(kept.secrets), dict(kept.words)
    driver.drain_events()
    broker.sent, broker.nudged, broker.replies = list(kept.sent), set(kept.nudged), []


def _copy(store: Store) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    with _connection(store) as connection:
        connection.backup(copy)
    return copy


def _read(store: Store) -> dict[str, list[dict[str, Any]]]:
    with store.read() as tx:
        tables = schema.metadata.tables.items()
        return {name: [dict(r._mapping) for r in tx.execute(select(t))] for name, t in tables}


def _write(store: Store, rows: dict[str, list[dict[str, Any]]]) -> None:
    """As they were: the triggers, which would refuse rows that begin in the midst of life, are told to look away."""
    with store.write() as tx:
        tx.execute(text("SET LOCAL session_replication_role = replica"))
        tx.execute(text(f"TRUNCATE {', '.join(rows)} RESTART IDENTITY"))
        for name, kept in rows.items():
            if kept:
                tx.execute(insert(schema.metadata.tables[name]), kept)
        tx.execute(text("SELECT setval('journal_id_seq', 1 + (SELECT coalesce(max(id), 0) FROM journal))"))


@contextmanager
def _connection(store: Store) -> Iterator[sqlite3.Connection]:
    connection = store.engine.raw_connection()
    try:
        yield connection.driver_connection  # type: ignore[misc]
    finally:
        connection.close()
