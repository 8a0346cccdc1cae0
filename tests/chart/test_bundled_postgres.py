"""The bundled Postgres with the volume of an earlier installation: its rendered start script runs
with a real Postgres.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from pool.ops.up import pgbinaries
from pool.ops.up.account import privileges, unprivileged
from pool.ops.up.ports import free_port
from tests.support.helm import environment, named, rendered, secret_values
from tests.support.waiting import eventually

# What the entry point of the image does: it fills an empty volume, and becomes the server.
ENTRY_POINT = """#!/bin/sh
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf %s "$POSTGRES_PASSWORD" > "$HOME/password"
    initdb -D "$PGDATA" -U "$POSTGRES_USER" --pwfile="$HOME/password" --auth-local=trust \\
        --auth-host=scram-sha-256 -E UTF8 --locale=C --no-sync
    printf 'CREATE DATABASE "%s"\\n' "$POSTGRES_DB" | postgres --single -D "$PGDATA" postgres
fi
exec "$@" -c listen_addresses=127.0.0.1 -c unix_socket_directories=
"""


class Volume:
    """A folder with the data of Postgres, which outlives the server and its Secret."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._account = unprivileged(root / "data")
        self._bin = pgbinaries.find(self._account)
        self.port = free_port()
        self.log = root / "log"
        (root / "docker-entrypoint.sh").write_text(ENTRY_POINT)
        (root / "docker-entrypoint.sh").chmod(0o755)
        (root / "data").mkdir(mode=0o700)
        if self._account:
            for path in (root, root / "data"):
                os.chown(path, self._account.uid, self._account.gid)
            for parent in root.parents:
                if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
                    parent.chmod(parent.stat().st_mode | 0o011)

    def mount_for_group(self) -> None:
        """Give the group every right, as the kubelet does for `fsGroup` when a new pod mounts it."""
        for folder, _, names in os.walk(self._root / "data"):
            Path(folder).chmod(Path(folder).stat().st_mode | 0o2070)
            for name in names:
                (Path(folder) / name).chmod((Path(folder) / name).stat().st_mode | 0o060)

    @contextmanager
    def server(self, password: str, *, ends_by: signal.Signals = signal.SIGINT) -> Iterator[str]:
        """Run the container as it is rendered, with this password in its Secret. Yields the URL."""
        objects = rendered("trial")
        secret = {**secret_values(named(objects, "Secret", "wp-warmpool")), "postgres-password": password}
        spec = named(objects, "StatefulSet", "wp-warmpool-postgres")["spec"]["template"]["spec"]
        container = spec["containers"][0]
        env = environment(container, {"wp-warmpool": secret}) | {
            "PATH": f"{self._root}:{self._bin}:{os.environ['PATH']}",
            "HOME": str(self._root),
            "PGDATA": str(self._root / "data"),
            "PGPORT": str(self.port),
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                container["command"], cwd="/", env=env, stdout=log, stderr=log, **privileges(self._account)
            )
        try:
            eventually(lambda: self._answers(process), within_s=60)
            yield f"postgresql://warmpool:{quote(password, safe='')}@127.0.0.1:{self.port}/warmpool"
        finally:
            process.send_signal(ends_by)
            process.wait(timeout=30)

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, self.log.read_text()
        ready = [str(self._bin / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, capture_output=True).returncode == 0


@pytest.mark.parametrize("ends_by", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_a_new_installation_can_use_the_volume_of_the_one_before(
    tmp_path: Path, ends_by: signal.Signals
) -> None:
    volume, new = Volume(tmp_path), "it's a 'new' one\\"
    with volume.server("old", ends_by=ends_by) as first, psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE kept (n integer)")
        connection.commit()
    with volume.server(new) as second:
        with psycopg.connect(second) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(first)
    assert new not in volume.log.read_text()


def test_postgres_starts_in_a_new_pod_whose_volume_the_kubelet_opened_to_the_group(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    with volume.server("same") as url, psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept (n integer)")
        connection.commit()
    volume.mount_for_group()
    with volume.server("same") as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
