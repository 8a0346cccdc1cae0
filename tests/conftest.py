"""Real servers, once per session; a fresh database per test."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.examples import examples

# The speed of generating and trying examples depends on the machine.
settings.register_profile(
    "house",
    parent=settings.default,
    max_examples=examples(settings().max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")

# Before the first import, so that their assertions are rewritten like those of tests.
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

# A shell that starts tests in the background may leave SIGINT ignored; tests of Ctrl-C need the
# default handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Files with few tests that take minutes, because they start whole pools. They start first, so that
# none of them remains at the end.
_LONG = (
    "test_up", "test_supervisor", "test_hostile_neighbours", "test_process_faults", "test_killed_threads",
    "test_running", "test_wrong_clocks",
    "test_write_refusing_redis", "test_message_fuzzer", "test_hostile_messages", "test_lock_losses",
    "test_client_wire", "test_local_pool",
    "test_browser", "test_signed", "test_model", "test_redis_keys", "test_outages", "test_end_to_end",
    "test_metrics_live", "test_race", "test_postgres_failover",
    "test_queue_per_org", "test_rollout_of_an_image", "test_master_key", "test_bad_input",
    "test_parallel_spawns", "test_mailbox",
    "test_local_passes", "test_crash_points", "test_pairs", "test_negative",
)  # fmt: skip

_ALONE = ("test_pairs", "test_crash_points")

from tests.support import forking
from tests.support.leftovers import LeftoverWatch, TestFolder

# A unit test needs neither a store nor a server, so fixtures import those libraries themselves.
if TYPE_CHECKING:
    from pool.store import Store
    from tests.support.postgres_server import PostgresServer
    from tests.support.world import World


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(LeftoverWatch(TestFolder()), "leftovers")


def pytest_sessionfinish() -> None:
    forking.end()


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """One process runs a file, because its tests share servers that are slow to start; those of
    `_ALONE` share nothing.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if Path(file).stem in _ALONE else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:
    """xdist's own groups are names appended to a test's id, which pytest 9.2 does not accept."""
    return _ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first. The order within a file stays."""
    items.sort(key=lambda item: _LONG.index(item.path.stem) if item.path.stem in _LONG else len(_LONG))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One real Postgres for all tests."""
    from tests.support.postgres_server import PostgresServer

    server = PostgresServer().start()
    yield server
    server.destroy()


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """A database with the schema, to be copied by tests that need their own."""
    from pool.store import connect, migrations

    store = connect(postgres.create_database("template_pool"))
    migrations.upgrade(store)
    store.close()
    return "template_pool"


@pytest.fixture(scope="session")
def one_postgres(postgres: PostgresServer, postgres_template: str) -> Iterator[Store]:
    """A database that tests use one after the other."""
    from pool.store import connect

    # Tests of interleavings keep transactions open while others run, also on a slow machine.
    url = postgres.create_database("shared", template=postgres_template)
    store = connect(url, connections=10, idle_s=60)
    yield store
    store.close()


@pytest.fixture
def store(one_postgres: Store) -> Store:
    """Emptied before each test, which takes a tenth of the time of a new database."""
    from tests.support.postgres_server import empty

    empty(one_postgres)
    return one_postgres


@pytest.fixture
def world(store: Store) -> Iterator[World]:
    """A pool in one process; its invariants are checked at the end."""
    from tests.support.world import World

    made = World(store)
    yield made
    made.check()


@pytest.fixture
def quiet() -> Iterator[None]:
    """Thousands of runs need no log of each run."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()
