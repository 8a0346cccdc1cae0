"""Real servers, once per session; a fresh database per test."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

# How fast examples are made and tried is the machine's matter.
settings.register_profile(
    "house", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")

# Before anybody imports them: their assertions are to tell as much as a test's own.
for _module in (
    "contracts.driver",
    "contracts.passes",
    "contracts.pool",
    "support.local_ground",
    "support.kube_ground",
    "support.scene",
    "support.convergence",
    "support.pushing",
    "support.standing",
    "support.write_refusing",
    "support.system",
    "support.world",
    "support.waiting",
):
    pytest.register_assert_rewrite(f"tests.{_module}")

# Whoever started us in the background may have left SIGINT ignored; tests that press Ctrl-C need it as it is at a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Files whose few tests take minutes, since they start whole pools: begun first, so that none of them is left over when all else is done.
_LONG = (
    "test_local_pool", "test_lock_losses", "test_up", "test_running", "test_wrong_clocks", "test_metrics_live", "test_outages",
    "test_process_faults", "test_message_fuzzer", "test_hostile_messages", "test_hostile_neighbours", "test_write_refusing_redis", "test_bad_input", "test_race", "test_end_to_end", "test_rollout_of_an_image", "test_parallel_spawns",
    "test_signed", "test_queue_per_org", "test_master_key", "test_crash_points", "test_pairs", "test_model", "test_negative", "test_supervisor", "test_browser", "test_local_passes",
)  # fmt: skip

_ALONE = ("test_pairs", "test_crash_points")

from pool.store import Store, connect, migrations
from tests.support.leftovers import Ground, Watch
from tests.support.postgres_server import PostgresServer, empty
from tests.support.world import World


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Watch(Ground()), "leftovers")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order within a file stays. A file is run by one process, since its tests share what takes long to start; those of `_ALONE` share nothing."""
    for item in items:
        if item.path.stem not in _ALONE:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    items.sort(key=lambda item: _LONG.index(item.path.stem) if item.path.stem in _LONG else len(_LONG))


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
    empty(one_postgres)
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


@pytest.fixture
def quiet() -> Iterator[None]:
    """Thousands of runs need not tell what each of them does."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()
