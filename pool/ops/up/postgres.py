"""The embedded database: a Postgres on a private Unix socket in the data directory, without a TCP port.

    postgres/data            the database cluster and its socket, with mode 0700
    postgres/draft-*         a cluster that is being created; it becomes `data` when it is complete and synced
    run/postgres.link        the path of a short link to `data`, if the path of the socket would be too long

Every commit is synced. The server accepts every process that can reach the socket; only the owner
of the data directory can reach it. If the owner is root, the server runs under another account,
which cannot enter the directories above `data`; so it is started with `data` as its working
directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pool.core.errors import PoolError
from pool.ops.up import pgbinaries
from pool.ops.up.account import Account, privileges, unprivileged
from pool.ops.up.datadir import DataDir, write_private

_HERE = "/proc/self/cwd"
_USER = _DATABASE = "postgres"
_PORT = 5432  # only part of the socket's file name
_SOCKET = f".s.PGSQL.{_PORT}"
# sockaddr_un has 108 bytes, including the terminating NUL.
_SOCKET_PATH_LIMIT = 107
_MAKE_LIMIT_S = 300
_DRAFT = "draft-"
_ASK_LIMIT_S = 5
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_directories": ".",
    "unix_socket_permissions": "0700",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "300",
    "shared_buffers": "128MB",
    "autovacuum_naptime": "10s",
    "jit": "off",
    "log_checkpoints": "off",
    "logging_collector": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A server that can be started: its command line, directory, account and addresses."""

    argv: tuple[str, ...]
    folder: Path
    account: Account | None
    place: ClusterFolder
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFolder:
    """How to reach a server: the folder of its socket, and the `pg_isready` program."""

    socket_folder: Path
    pg_isready: Path


def prepare(data_dir: DataDir) -> Database:
    """Find the binaries and create the cluster if it does not exist. A cluster of another major version is
    refused, unchanged."""
    folder = data_dir.postgres / "data"
    _refuse_other_major(folder)
    account = unprivileged(folder)
    binaries = pgbinaries.find(account)
    _remove_drafts(data_dir.postgres)
    if not folder.exists():
        _make(folder, binaries, account)
    options = [part for key, value in _SETTINGS.items() for part in ("-c", f"{key}={value}")]
    socket_folder = _socket_folder(data_dir, folder)
    return Database(
        argv=(str(binaries / "postgres"), "-D", _HERE, "-p", str(_PORT), *options),
        folder=folder,
        account=account,
        place=ClusterFolder(socket_folder=socket_folder, pg_isready=binaries / "pg_isready"),
        url=f"postgresql://{_USER}@/{_DATABASE}?host={quote(str(socket_folder), safe='')}&port={_PORT}",
    )


def answers(place: ClusterFolder) -> bool:
    """Return whether the server accepts connections; False while it starts, recovers or stops."""
    where = ("-h", str(place.socket_folder), "-p", str(_PORT), "-U", _USER)
    argv = [str(place.pg_isready), "-q", "-t", "1", *where]
    try:
        # S603: the program that came with the server.
        return subprocess.run(argv, timeout=_ASK_LIMIT_S, check=False).returncode == 0  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False


def _refuse_other_major(folder: Path) -> None:
    if not folder.exists():
        return
    try:
        major = (folder / "PG_VERSION").read_text().strip()
    except OSError as exc:
        raise PoolError(
            f"{folder} is not a Postgres data directory (PG_VERSION: {exc.strerror}): move it to "
            "another place"
        ) from exc
    if major != str(pgbinaries.MAJOR):
        raise PoolError(_way_out(folder, major))


def _way_out(folder: Path, major: str) -> str:
    """Return the error with the commands that move a cluster to our major version."""
    kept = folder.with_name(f"data-{major}")
    dump = folder.with_name("dump.sql")
    reach = f"-h {folder} -U {_USER}"
    return (
        f"{folder} was created by Postgres {major}, and this warmpool needs Postgres "
        f"{pgbinaries.MAJOR}. Nothing was changed.\n"
        f"To keep the data, run as the owner of the directory, with the programs of Postgres {major}:\n"
        f"  pg_ctl -D {folder} -o \"-k . -c listen_addresses=''\" -w start\n"
        f"  pg_dumpall {reach} >{dump}\n"
        f"  pg_ctl -D {folder} -m fast stop\n"
        f"  mv {folder} {kept}\n"
        f"then with the programs of Postgres {pgbinaries.MAJOR}:\n"
        f"  initdb -D {folder} -U {_USER} --auth-local=trust --auth-host=reject -E UTF8 --locale=C\n"
        f"  pg_ctl -D {folder} -o \"-k . -c listen_addresses=''\" -w start\n"
        f"  psql {reach} -f {dump} {_DATABASE}\n"
        f"  pg_ctl -D {folder} -m fast stop\n"
        f"To start with an empty database instead: mv {folder} {kept}"
    )


def _make(folder: Path, binaries: Path, account: Account | None) -> None:
    """Create a cluster in a draft directory and rename it when it is complete, so that a crash leaves no
    partial cluster."""
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=folder.parent))
    if account:
        os.chown(draft, account.uid, account.gid)
    # S603: the program that came with the server. It gets its own session, so that Ctrl-C does not reach it.
    done = subprocess.run(  # noqa: S603
        [
            *(binaries / "initdb", "-D", _HERE, "-U", _USER, "--auth-local=trust", "--auth-host=reject"),
            *("--encoding=UTF8", "--locale=C", "--no-instructions"),
        ],
        capture_output=True,
        cwd=draft,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
        start_new_session=True,
        timeout=_MAKE_LIMIT_S,
        check=False,
        **privileges(account),
    )
    if done.returncode:
        shutil.rmtree(draft, ignore_errors=True)
        raise PoolError(
            f"cannot create a database in {folder}; initdb printed: "
            f"{done.stderr.decode(errors='replace').strip()}"
        )
    draft.rename(folder)
    _sync_folder(folder.parent)


def _remove_drafts(parent: Path) -> None:
    for draft in parent.glob(f"{_DRAFT}*"):
        shutil.rmtree(draft, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _socket_folder(data_dir: DataDir, folder: Path) -> Path:
    """Return the folder of the socket for clients: a short link if the path is too long, or has a comma (a
    list to libpq)."""
    if len(os.fsencode(folder / _SOCKET)) <= _SOCKET_PATH_LIMIT and "," not in str(folder):
        return folder
    memo = data_dir.run / "postgres.link"
    kept = Path(memo.read_text()) if memo.exists() else None
    if kept is not None and _is_ours(kept, folder):
        return kept
    link = Path(tempfile.mkdtemp(prefix="warmpool-")) / "db"
    link.symlink_to(folder)
    write_private(memo, str(link))
    return link


def _is_ours(link: Path, folder: Path) -> bool:
    """Return whether a link in the shared temporary directory is still the one that we created."""
    try:
        return link.parent.stat().st_uid == os.geteuid() and link.readlink() == folder
    except OSError:
        return False
