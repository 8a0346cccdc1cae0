"""Real servers, once per session; a fresh database per test."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anybody imports them: their assertions are to tell as much as a test's own.
for _module in (
    "contracts.driver",
    "support.local_ground",
    "support.kube_ground",
    "support.system",
    "support.world",
    "support.waiting",
):
    pytest.register_assert_rewrite(f"tests.{_module}")

# Whoever started us in the background may have left SIGINT ignored; tests that press Ctrl-C need it as it is at a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

from sqlalchemy import text, update

from pool.store import Store, connect, migrations, schema
from pool.store.sql import now
from tests.support.postgres_server import PostgresServer
from tests.support.world import World


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One real Postgres for all tests."""
    server = PostgresServer().start()
    yield server
    server.destroy()


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """A database with the schema, to be copied by those who need one of their own."""
    store = connect(postgres.create_database("template_pool"))
    migrations.upgrade(store)
    store.close()
    return "template_pool"


@pytest.fixture(scope="session")
def one_postgres(postgres: PostgresServer, postgres_template: str) -> Iterator[Store]:
    """A database that tests share one after the other."""
    # Tests of interleavings keep transactions open while others run, however slow the machine is.
    url = postgres.create_database("shared", template=postgres_template)
    store = connect(url, connections=10, idle_s=60)
    yield store
    store.close()


@pytest.fixture
def postgres_store(one_postgres: Store) -> Store:
    """Emptied before each test: that costs a tenth of a new database."""
    emptied = [t for t in schema.metadata.tables if t not in {"clock", "pool"}]
    with one_postgres.write() as tx:
        tx.execute(text(f"TRUNCATE {', '.join(emptied)} RESTART IDENTITY"))
        tx.execute(update(schema.clock).values(shift_s=0))
        tx.execute(update(schema.pool).values(live=0, paused=False, lane_open_since=now(), canary_at=now()))
    return one_postgres


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
