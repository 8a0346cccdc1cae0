"""Real servers, once per session; a fresh database per test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool.store import Store, connect, migrations
from tests.support.postgres_server import PostgresServer
from tests.support.world import World

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One real Postgres for all tests."""
    server = PostgresServer().start()
    yield server
    server.destroy()


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """A database with the schema, to be copied: a copy costs a tenth of a migration."""
    store = connect(postgres.create_database("template_pool"))
    migrations.upgrade(store)
    store.close()
    return "template_pool"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "pool.db"
    store = connect(f"sqlite:///{path}")
    migrations.upgrade(store)
    with store.read() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    return path


@pytest.fixture
def postgres_store(postgres: PostgresServer, postgres_template: str) -> Iterator[Store]:
    name = f"pool_{next(_numbers)}"
    store = connect(postgres.create_database(name, template=postgres_template), connections=10)
    yield store
    store.close()
    postgres.drop_database(name)


@pytest.fixture
def sqlite_store(sqlite_template: Path, tmp_path: Path) -> Iterator[Store]:
    path = tmp_path / "pool.db"
    path.write_bytes(sqlite_template.read_bytes())
    store = connect(f"sqlite:///{path}", connections=10)
    yield store
    store.close()


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    """Each backend in turn: one contract for both."""
    found: Store = request.getfixturevalue(f"{request.param}_store")
    return found


@pytest.fixture
def world(store: Store) -> Iterator[World]:
    """A pool in one process on each backend; what must hold at any moment is checked at the end."""
    made = World(store)
    yield made
    made.check()
