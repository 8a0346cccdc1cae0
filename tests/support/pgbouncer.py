"""A real PgBouncer in transaction mode, in front of a Postgres of a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import pytest

from pool.ops.up.account import privileges, unprivileged
from pool.ops.up.ports import free_port
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import eventually

# Fewer server connections than clients, so that every transaction may get another one.
SERVER_CONNECTIONS = 8


class PgBouncer:
    """One pooler; `restart` cuts off all clients."""

    def __init__(self, server: PostgresServer) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            if os.environ.get("CI"):
                raise RuntimeError("pgbouncer is not installed")
            pytest.skip("pgbouncer is not installed: apt install pgbouncer")
        self._program = program
        self._root = Path(tempfile.mkdtemp(prefix="wp-bouncer-"))
        self._account = unprivileged(self._root / "data")
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._file = self._root / "pgbouncer.ini"
        self._root.chmod(0o755)
        self._write(server)

    def _write(self, server: PostgresServer) -> None:
        self._file.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self._port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\n"
            "max_client_conn = 500\nlogfile =\npidfile =\n"
        )

    def point_at(self, server: PostgresServer) -> None:
        """Use another server from here on, as after a failover."""
        self._write(server)
        if self._process is not None:
            self.restart()

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def start(self) -> Self:
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, str(self._file)], stdout=log, stderr=log, cwd="/", **privileges(self._account)
            )
        eventually(self._answers, within_s=20)
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=20)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._root / "log").read_text()[-2000:]
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
