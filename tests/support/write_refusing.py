"""A Redis that answers and refuses every write: full, a replica, with a failing disk, or without
its replicas.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

# Nothing listens there, so it stays a replica without a primary and keeps its data.
_NOBODY = ("127.0.0.1", "1")


def _full(client: redis.Redis) -> None:
    client.config_set("maxmemory", "1")


def _not_full(client: redis.Redis) -> None:
    client.config_set("maxmemory", "0")


def _replica(client: redis.Redis) -> None:
    client.execute_command("REPLICAOF", *_NOBODY)


def _primary(client: redis.Redis) -> None:
    client.execute_command("REPLICAOF", "NO", "ONE")


def _cannot_save(client: redis.Redis) -> None:
    """A folder in the place of the snapshot makes each attempt to write it fail."""
    (_snapshot(client) / "occupied").mkdir(parents=True)
    client.config_set("save", "3600 1000000")
    client.bgsave()
    eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", within_s=10)


def _can_save(client: redis.Redis) -> None:
    client.config_set("save", "")
    shutil.rmtree(_snapshot(client))


def _snapshot(client: redis.Redis) -> Path:
    folder, file = client.config_get("dir")["dir"], client.config_get("dbfilename")["dbfilename"]
    return Path(str(folder)) / str(file)


def _alone(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", "1")


def _not_alone(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", "0")


# By the first word of Redis' error: how it is caused, and how it ends.
WAYS: dict[str, tuple[Callable[[redis.Redis], None], Callable[[redis.Redis], None]]] = {
    "OOM": (_full, _not_full),
    "READONLY": (_replica, _primary),
    "MISCONF": (_cannot_save, _can_save),
    "NOREPLICAS": (_alone, _not_alone),
}


@contextmanager
def refusing(server: RedisServer, way: str) -> Iterator[None]:
    """Make every write fail in this way, until it ends."""
    begin, end = WAYS[way]
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        begin(client)
        try:
            assert _refusal(client).startswith(way)
            yield
        finally:
            end(client)
        eventually(lambda: not _refusal(client), within_s=10)


def failover(server: RedisServer) -> None:
    """Make it a replica for a moment: blocked pops end with UNBLOCKED."""
    with redis.Redis.from_url(server.url) as client:
        _replica(client)
        _primary(client)


def lasts(seconds: float) -> None:
    """Let this many seconds pass."""
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > until, within_s=seconds + 10, every_s=0.1)


def _refusal(client: redis.Redis) -> str:
    """Return its error for a write; empty if the write is accepted."""
    try:
        client.execute_command("SET", "written", "x", "EX", "10")
    except redis.exceptions.ResponseError as exc:
        # redis-py removes the first word of errors that it has classes for.
        words = {redis.exceptions.OutOfMemoryError: "OOM ", redis.exceptions.ReadOnlyError: "READONLY "}
        return f"{words.get(type(exc), '')}{exc}"
    return ""
