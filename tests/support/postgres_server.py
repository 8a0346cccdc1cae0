"""A real Postgres on a free loopback port, with the binaries and the account of the embedded one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg
from sqlalchemy import update

from pool.ops.up import pgbinaries
from pool.ops.up.account import privileges, unprivileged
from pool.ops.up.ports import free_port
from pool.store import Store, schema
from pool.store.sql import now
from tests.support.waiting import eventually

_KEPT = Path.home() / ".cache" / "warmpool"
# Causes of a failed start that succeed a moment later: processes of the server before still run, or
# its port is taken.
_PASSING = ("is still in use", "already exists", "Address already in use")
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 30.0


class PostgresServer:
    """One server with one data directory; `kill` and `start` lose nothing that was committed."""

    def __init__(
        self, *, fsync: bool = False, tls: Path | None = None, primary: PostgresServer | None = None
    ) -> None:
        """`tls` is a folder with tls.crt and tls.key; the server then accepts TLS and plain
        connections. With a `primary` it is a standby of that server.
        """
        self._root = Path(tempfile.mkdtemp(prefix="wp-pg-"))
        self._data = self._root / "data"
        self._fsync = "on" if fsync else "off"
        self._tls = tls
        self._account = unprivileged(self._data)
        self._bin = _speaking_tls() if tls else pgbinaries.find(self._account)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        if self._account:
            os.chown(self._root, self._account.uid, -1)
            self._root.chmod(0o755)
        if primary is None:
            self._make()
        else:
            copy = (
                "-d",
                primary.url(),
                "-D",
                str(self._data),
                "-R",
                "-X",
                "stream",
                "-c",
                "fast",
                "--no-sync",
            )
            self._run("pg_basebackup", *copy)

    def _make(self) -> None:
        """Create a cluster as a copy of one that was created on this machine before, because initdb
        takes seconds.
        """
        made = _KEPT / f"cluster-{self._version()}-{self._account.uid if self._account else os.getuid()}"
        if made.exists():
            shutil.copytree(made, self._data, symlinks=True)
        else:
            self._run(
                *(
                    "initdb",
                    "-D",
                    str(self._data),
                    "-U",
                    "postgres",
                    "-A",
                    "trust",
                    "-E",
                    "UTF8",
                    "--no-sync",
                    "--locale=C",
                )
            )
            # the directory does not exist here, or another process was faster
            with contextlib.suppress(OSError):
                _keep(self._data, made)
        if self._account:
            for path in (self._data, *self._data.rglob("*")):
                os.chown(path, self._account.uid, self._account.gid)
        self._data.chmod(0o700)

    def _version(self) -> str:
        done = subprocess.run(
            [self._bin / "postgres", "--version"], capture_output=True, text=True, check=True
        )
        return done.stdout.split()[2]

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> PostgresServer:
        self._launch()
        eventually(self._answers, within_s=_START_LIMIT_S)
        return self

    def _launch(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": self._fsync,
            "max_connections": "300",
            "shared_buffers": "256MB",
            "max_wal_size": "4GB",
            "autovacuum_naptime": "5s",
        }
        if self._tls:
            settings |= {"ssl": "on", **self._certificate(self._tls)}
        options = [part for k, v in settings.items() for part in ("-c", f"{k}={v}")]
        with (self._root / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port), *options],
                stdout=log,
                stderr=log,
                cwd=self._root,
                env=self._env(),
                **privileges(self._account),
            )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is Postgres' fast shutdown: it ends sessions and leaves a clean data directory."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(timeout=_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def promote(self) -> None:
        """Make a standby the primary."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def kill(self) -> None:
        """Kill the server as in a crash of the machine; the next start recovers."""
        self.stop(signal.SIGQUIT)

    def create_database(self, name: str, *, template: str = "template1") -> str:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def configure(self, statement: str) -> None:
        """Run an ALTER SYSTEM that every session follows from its next transaction on."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(statement)
            connection.execute("SELECT pg_reload_conf()")

    def destroy(self) -> None:
        self.stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def _certificate(self, folder: Path) -> dict[str, str]:
        """Copy the files for the server's account: it refuses a key that others may read."""
        copies = {"ssl_cert_file": self._root / "tls.crt", "ssl_key_file": self._root / "tls.key"}
        for copy in copies.values():
            shutil.copy(folder / copy.name, copy)
            copy.chmod(0o600)
            if self._account:
                os.chown(copy, self._account.uid, -1)
        return {setting: str(copy) for setting, copy in copies.items()}

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            log = (self._root / "log").read_text()
            if not any(cause in log for cause in _PASSING):
                self._process = None
                raise RuntimeError(log[-2000:])
            self._launch()
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, command: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / command), *arguments],
            capture_output=True,
            cwd="/",
            env=self._env(),
            **privileges(self._account),
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode())

    def _env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"}


def empty(store: Store) -> None:
    """Restore the initial state. Rows are deleted, because truncating all tables takes fifty times
    as long.
    """
    emptied = [t for t in schema.metadata.tables if t not in {"clock", "pool"}]
    with store.write() as tx:
        # Triggers, which refuse the deletion of live rows, do not run in a session with the replica
        # role.
        tx.exec_driver_sql(
            "SET LOCAL session_replication_role = replica;"
            + "".join(f"DELETE FROM {t};" for t in emptied)
            + "SELECT setval('journal_id_seq', 1, false), setval('deeds_id_seq', 1, false)"
        )
        tx.execute(update(schema.clock).values(shift_s=0))
        tx.execute(update(schema.pool).values(live=0, paused=False, lane_open_since=now(), canary_at=now()))


def _speaking_tls() -> Path:
    """Return the directory of the machine's own Postgres, of any version: that of the wheel is
    built without TLS.
    """
    found = shutil.which("postgres")
    if found is None or not (Path(found).resolve().parent / "initdb").exists():
        raise RuntimeError("no Postgres that speaks TLS: install Debian's package postgresql")
    return Path(found).resolve().parent


def _keep(cluster: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".cluster-", dir=place.parent))
    try:
        shutil.copytree(cluster, draft / "whole", symlinks=True)
        (draft / "whole").rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
