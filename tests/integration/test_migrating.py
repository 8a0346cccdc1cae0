"""Migrations while the pool works: what the running release can work with comes before a rollout, the
rest after it; nothing waits long for a lock of a migration.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pool.core.clock import SystemClock
from pool.core.errors import PoolError
from pool.store import Store, connect, migrations, rules
from pool.store.migrations import applying
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import eventually

LONG = os.environ.get("WARMPOOL_TEST_LONG") == "1"
LONGEST_WAIT_S = 0.5
# About a minute of writing and a minute of migrating on two busy cores.
MANY_ROWS = 1_000_000
FEW_ROWS = 20_000
WRITERS_PAUSE_S = 0.005
# The driver prepares a statement that it has executed five times.
OFTEN = 7

_numbers = itertools.count(1)
_MODULE = """from alembic import op

from pool.store.migrations import run_sql

revision = "{name}"
down_revision = "{before}"


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
"""

Publish = Callable[..., None]


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    name = f"migrating_{next(_numbers)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Release code with these versions after the first; without any, the release before."""
    published = Path(migrations.__file__).parent
    releases = itertools.count(1)

    def release(**versions: str) -> None:
        folder = tmp_path / f"release-{next(releases)}"
        shutil.copytree(published, folder)
        before = migrations.versions()[0] if not versions else "v0001_initial"
        for path in (folder / "versions").glob("v[0-9]*"):
            if not path.stem.startswith("v0001_"):
                path.unlink()
        for name, sql in versions.items():
            (folder / "versions" / f"{name}.py").write_text(_MODULE.format(name=name, before=before))
            (folder / "versions" / f"{name}.sql").write_text(sql)
            before = name
        monkeypatch.setattr(migrations, "_HERE", folder)

    return release


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[], Store]]:
    """Open stores as a process of the release in force does."""
    stores: list[Store] = []

    def open_one() -> Store:
        stores.append(connect(url, name=migrations.session_name(), call_timeout_s=2))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


ZONE = {"v0002_zone": "ALTER TABLE workers ADD COLUMN zone TEXT"}
SECOND = {**ZONE, "v0003_post_node": "ALTER TABLE workers DROP COLUMN node"}
THIRD = {**SECOND, "v0004_rack": "ALTER TABLE workers ADD COLUMN rack TEXT"}


def test_a_release_works_with_the_schema_of_the_next_one_until_that_is_finished(
    publish: Publish, opened: Callable[[], Store]
) -> None:
    publish()
    old = opened()
    migrations.upgrade(old)
    publish(**SECOND)
    new = opened()
    with pytest.raises(PoolError, match="is at v0001_initial, this code needs v0002_zone"):
        migrations.assert_current(new)
    assert migrations.upgrade(new) == "v0002_zone"
    assert migrations.pending(new) == ["v0003_post_node"]
    migrations.assert_current(new)
    # The release before starts, and migrating with it (a rollback) changes nothing.
    publish()
    migrations.assert_current(old)
    assert migrations.upgrade(old) == "v0002_zone"
    publish(**SECOND)
    with pytest.raises(PoolError, match=r"v0003_post_node .*connected \(warmpool v0001 rules_\w{12}\)"):
        migrations.finish(new)
    assert _column(new, "SELECT node FROM workers") == []
    old.close()
    assert migrations.finish(new) == "v0003_post_node"
    migrations.assert_current(new)
    publish()
    with pytest.raises(PoolError, match="has v0003_post_node, which is not compatible with this code"):
        migrations.assert_current(opened())
    assert migrations.upgrade(opened()) == "v0003_post_node"


def test_the_next_upgrade_applies_what_was_left_and_a_release_cannot_be_skipped(
    publish: Publish, opened: Callable[[], Store]
) -> None:
    publish()
    first = opened()
    migrations.upgrade(first)
    publish(**SECOND)
    second = opened()
    migrations.upgrade(second)
    publish(**THIRD)
    third = opened()
    # The first release still runs: it would break.
    with pytest.raises(PoolError, match="v0003_post_node is not compatible"):
        migrations.upgrade(third)
    first.close()
    assert migrations.upgrade(third) == "v0004_rack"
    publish(**SECOND)
    migrations.assert_current(second)


def test_an_empty_database_gets_every_version(publish: Publish, opened: Callable[[], Store]) -> None:
    publish(**SECOND)
    store = opened()
    assert migrations.upgrade(store) == "v0003_post_node"
    assert migrations.state(store).floor == "v0003_post_node"


def test_rules_of_connected_processes_are_kept(
    publish: Publish, opened: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed upgrade, then another: the release that runs is not the previous one any more."""
    publish()
    running = opened()
    migrations.upgrade(running)
    with running.read():
        kept = [rules.schema()]
        released = rules.functions()
        try:
            for number in (1, 2, 3):
                more = f"CREATE FUNCTION warmpool_more() RETURNS int LANGUAGE sql AS $$ SELECT {number} $$"
                monkeypatch.setattr(rules, "functions", lambda more=more: (*released, more))
                rules.schema.cache_clear()
                store = opened()
                migrations.upgrade(store)
                kept.append(rules.schema())
                store.close()
        finally:
            monkeypatch.undo()
            rules.schema.cache_clear()
        found = _column(
            running, "SELECT nspname::text FROM pg_namespace WHERE nspname ~ '^rules_' ORDER BY oid"
        )
        assert found == [kept[0], *kept[2:]]


def test_a_migration_that_needs_a_held_table_gives_way_and_tries_again(
    publish: Publish, opened: Callable[[], Store], url: str
) -> None:
    publish()
    store = opened()
    migrations.upgrade(store)
    publish(**ZONE)
    said: list[str] = []
    with psycopg.connect(url) as holder, _Writers(url, "UPDATE workers SET node = 'n'") as writers:
        holder.execute("SELECT count(*) FROM workers")
        done = threading.Thread(target=migrations.upgrade, args=(store, said.append))
        done.start()
        eventually(lambda: sum("trying again" in line for line in said) >= 2, within_s=20)
        holder.commit()
        done.join(30)
    assert migrations.current(store) == "v0002_zone"
    assert writers.longest_s < LONGEST_WAIT_S


def test_a_migration_has_no_time_limit_and_an_unfinished_index_is_built_again(
    publish: Publish, opened: Callable[[], Store], url: str
) -> None:
    index = "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS workers_of_images ON workers (image)"
    publish()
    store = opened()
    migrations.upgrade(store)
    _add_workers(url, 2)
    publish(v0002_index=f"SELECT pg_sleep(2.5)\n;;\n{index}", v0003_slow="SELECT pg_sleep(2.5)")
    with pytest.raises(PoolError, match="workers_of_images"):
        migrations.upgrade(store)
    assert migrations.current(store) == "v0001_initial"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE workers SET node = id")
    publish(v0002_index=index.replace("(image)", "(node)"), v0003_slow="SELECT pg_sleep(2.5)")
    assert migrations.upgrade(store) == "v0003_slow"
    assert _column(
        store, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'workers_of_images'::regclass"
    ) == [True]


def test_processes_that_migrate_at_once_do_not_wait_for_each_others_snapshots(
    publish: Publish, opened: Callable[[], Store], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that is built CONCURRENTLY waits for the transactions that have a snapshot."""
    publish()
    migrations.upgrade(opened())
    publish(v0002_index="CREATE INDEX CONCURRENTLY IF NOT EXISTS workers_by_node ON workers (node)")
    second, third = (threading.Thread(target=migrations.upgrade, args=(opened(),)) for _ in range(2))
    asked: Counter[int] = Counter()

    class Counting(SystemClock):
        def wait(self, stop: threading.Event, seconds: float) -> bool:
            asked[threading.get_ident()] += 1
            return super().wait(stop, seconds)

    monkeypatch.setattr(applying, "SystemClock", Counting)
    with psycopg.connect(url, autocommit=True) as connection:
        with applying.alone(opened(), lambda _: None):
            second.start()
            third.start()
            eventually(lambda: len(asked) == 2 and min(asked.values()) > OFTEN, within_s=60)
        try:
            second.join(30)
            third.join(30)
            assert not second.is_alive()
            assert not third.is_alive()
        finally:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


def test_a_version_by_parts_is_refused_through_a_pooler(publish: Publish, url: str) -> None:
    publish(v0002_index="CREATE INDEX CONCURRENTLY IF NOT EXISTS workers_by_node ON workers (node)")
    store = connect(url, pooler=True, name=migrations.session_name())
    try:
        with pytest.raises(PoolError, match="cannot be applied through a pooler"):
            migrations.upgrade(store)
    finally:
        store.close()


def test_the_server_finds_out_that_the_host_of_a_migration_is_gone(opened: Callable[[], Store]) -> None:
    """Its lock would refuse every other migration until the default of two hours."""
    with opened().write() as tx:
        applying.unlimited(tx)
        assert int(tx.exec_driver_sql("SELECT current_setting('tcp_keepalives_idle')").scalar_one()) == 30


def test_the_second_step_is_refused_through_a_pooler(
    publish: Publish, opened: Callable[[], Store], url: str
) -> None:
    """Processes that are idle have no session of their own behind it."""
    publish()
    migrations.upgrade(opened())
    publish(**SECOND)
    store = connect(url, pooler=True, name=migrations.session_name())
    try:
        assert migrations.upgrade(store) == "v0002_zone"
        with pytest.raises(PoolError, match="v0003_post_node cannot be applied through a pooler"):
            migrations.finish(store)
        assert _column(store, "SELECT node FROM workers") == []
    finally:
        store.close()


@pytest.mark.timeout(900)
def test_a_migration_of_a_large_table_holds_up_no_write(
    publish: Publish, opened: Callable[[], Store], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column, an index and a change of every row of the journal, which every acquire writes to."""
    rows = MANY_ROWS if LONG else FEW_ROWS
    publish()
    store = opened()
    migrations.upgrade(store)
    _add_workers(url, 8)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO journal (at, worker_id, to_state, epoch, who, reason, detail)"
            f" SELECT now(), 'w-' || n % 1000, 'idle', 0, 'a', 'ready', '' FROM generate_series(1, {rows}) n"
        )
    publish(
        v0002_column="ALTER TABLE journal ADD COLUMN zone TEXT, ALTER COLUMN zone SET DEFAULT 'new'",
        v0003_index="CREATE INDEX CONCURRENTLY IF NOT EXISTS journal_by_zone ON journal (zone, id)",
        v0004_values="-- repeat\nUPDATE journal SET zone = 'z' WHERE id IN (SELECT id FROM journal WHERE zone IS NULL"
        " ORDER BY id LIMIT 5000)",
    )
    said: list[str] = []
    with _Writers(url, "UPDATE workers SET epoch = epoch + 1 WHERE id = 'w-{n}'") as writers:
        began = time.monotonic()
        migrations.upgrade(store, said.append)
        took_s = time.monotonic() - began
    with capsys.disabled():
        print(
            f"\na migration of {rows:,} rows took {took_s:.1f} s; {writers.count} single-row updates of workers beside it,"
            f" the longest took {writers.longest_s * 1000:.0f} ms"
        )
    assert _column(store, "SELECT count(*) FROM journal WHERE zone IS NULL") == [0]
    assert f"  {rows} rows" in said
    assert writers.count > 0
    assert writers.longest_s < LONGEST_WAIT_S


# What blocks others for as long as a table is long, or what the running release does not survive.
_LONG_LOCKS = re.compile(
    r"CREATE (UNIQUE )?INDEX (?!CONCURRENTLY IF NOT EXISTS)|ADD CONSTRAINT (?!.*NOT VALID)|SET NOT NULL|ALTER COLUMN \w+ TYPE"
)
_BREAKS_THE_RUNNING = re.compile(r"DROP (TABLE|COLUMN|FUNCTION|TRIGGER)|RENAME ")


# What fails when a version by parts, whose process was killed before it was recorded, is run again.
_NOT_TWICE = re.compile(
    r"(CREATE TABLE|CREATE (UNIQUE )?INDEX( CONCURRENTLY)?|ADD COLUMN|ADD CONSTRAINT"
    r"|DROP (TABLE|COLUMN|CONSTRAINT|TRIGGER|FUNCTION|INDEX( CONCURRENTLY)?)) (?!IF |CONCURRENTLY )"
)
_REPEAT = "-- repeat"


@pytest.mark.parametrize("version", migrations.versions()[1:] or ["none yet"])
def test_published_migrations_lock_briefly_and_break_nothing_that_runs(version: str) -> None:
    path = Path(migrations.__file__).parent / "versions" / f"{version}.sql"
    wrong = wrong_statements(path.read_text(), post=migrations.is_post(version)) if path.exists() else []
    assert wrong == []


@pytest.mark.parametrize(
    ("sql", "wrong"),
    [
        ("CREATE INDEX a ON b (c)", True),
        ("CREATE TABLE new (id TEXT)\n;;\nCREATE INDEX a ON new (id)", False),
        ("CREATE INDEX CONCURRENTLY IF NOT EXISTS a ON b (c)", False),
        ("ALTER TABLE a ADD CONSTRAINT b CHECK (c > 0)", True),
        ("ALTER TABLE a ADD CONSTRAINT b CHECK (c > 0) NOT VALID", False),
        ("ALTER TABLE a DROP COLUMN b", True),
        ("ALTER TABLE a ADD COLUMN b TEXT\n;;\n-- repeat\nUPDATE a SET b = 'c' WHERE b IS NULL", True),
        ("ALTER TABLE a ADD COLUMN IF NOT EXISTS b TEXT\n;;\n-- repeat\nUPDATE a SET b = 'c'", False),
        ("-- Fill it.\n-- repeat\nUPDATE a SET b = 'c' WHERE b IS NULL", True),
    ],
)
def test_statements_that_lock_long_or_break_what_runs_are_found(sql: str, wrong: bool) -> None:
    assert bool(wrong_statements(sql, post=False)) is wrong


def wrong_statements(sql: str, *, post: bool) -> list[str]:
    """Return the statements that a version of this step may not have. A new table is empty."""
    new = set(re.findall(r"CREATE TABLE (\w+)", sql))
    by_parts = "CONCURRENTLY" in sql or _REPEAT in sql
    return [
        each
        for each in sql.split("\n;;\n")
        if (_LONG_LOCKS.search(each) and not new & set(re.findall(r"\w+", each)))
        or (not post and _BREAKS_THE_RUNNING.search(each))
        or (by_parts and _NOT_TWICE.search(each))
        or (_REPEAT in each and not each.strip().startswith(_REPEAT))
    ]


class _Writers:
    """Threads that write, each on its own row, and the longest time that a write took."""

    def __init__(self, url: str, statement: str, threads: int = 3) -> None:
        self._url, self._statement = url, statement
        self._stop = threading.Event()
        self.longest_s = 0.0
        self.count = 0
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def _run(self, number: int) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stop.wait(WRITERS_PAUSE_S):
                began = time.monotonic()
                connection.execute(self._statement.format(n=number))
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.count += 1

    def __enter__(self) -> _Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


def _add_workers(url: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO workers (id, profile, image, revision, cpu_millicores, memory_mib, grace_s, state,"
            " created_at, state_since, moved_by, moved_reason) SELECT 'w-' || n, 'default', 'image', 'rev', 1, 1, 1,"
            f" 'spawning', now(), now(), 'a', 'demand' FROM generate_series(0, {count - 1}) n"
        )


def _column(store: Store, query: str) -> list[Any]:
    with store.read() as tx:
        return list(tx.exec_driver_sql(query).scalars())
