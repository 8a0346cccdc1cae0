"""The servers for the lane and its peers: one Redis, one Postgres that syncs to disk, a real
acquire worker, a stock Celery worker, and echoes. Pods are rows only; messages to the pool's other
workers are published and deleted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import redis

from bench.peers import stock
from bench.populating import populated, refill
from pool.store import Store, connect
from tests.support.postgres_server import PostgresServer
from tests.support.system import ROOT, System

IDLE = 2_000
ACQUIRE: dict[str, Any] = {
    "pool": {"events": False, "acquire_threads": 8},
    "profiles": {"default": {"warm_target": 0}},
}


class CallerProcess:
    """A client process that carries out plans."""

    def __init__(self, kind: str, url: str) -> None:
        command = [sys.executable, "-m", "bench.peers.caller", kind, url]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def wait_ready(self) -> None:
        assert self._read() == "ready"

    def begin(self, at: Sequence[float], threads: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"at": list(at), "threads": threads}) + "\n")
        self.process.stdin.flush()

    def seconds(self) -> list[float]:
        return list(json.loads(self._read()))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a client process ended")
        return line.strip()


class BenchGround:
    """All running processes, and how they are reset between rounds."""

    def __init__(self, system: System, database: str, store: Store) -> None:
        self.url = system.redis.url
        self.system = system
        self.database = database
        self.store = store
        self._redis = redis.Redis.from_url(self.url)
        self._spent = {"lane": 0, "stock": 0}

    def used(self, what: str, count: int) -> None:
        """Record that this many workers were taken."""
        self._spent[what] += count

    def put_right(self) -> None:
        """Create as many new workers, and delete messages without a consumer."""
        refill(self.store, self._spent["lane"])
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(stock.REFILL, (self._spent["stock"],))
        self._spent = dict.fromkeys(self._spent, 0)
        self._redis.delete("fleet", "bind", "passes")

    def close(self) -> None:
        self._redis.close()
        self.store.close()


def signing_twin(place: BenchGround, folder: Path, stack: ExitStack) -> System:
    """An acquire worker on the same database, with its own Redis, that accepts only signed
    requests.
    """
    folder.mkdir()
    settings = {**ACQUIRE, "pool": {**ACQUIRE["pool"], "signed_requests": True}}
    return stack.enter_context(System(folder, place.database, settings=settings)).run("acquire")


@contextmanager
def ground(folder: Path, settings: dict[str, Any] | None = None) -> Iterator[BenchGround]:
    """Run all of it until the block ends."""
    with ExitStack() as stack:
        server = PostgresServer(fsync=True).start()
        stack.callback(server.destroy)
        database = populated(server, "bench", IDLE)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(stock.TABLE)
            connection.execute(stock.REFILL, (IDLE,))
            connection.execute("VACUUM ANALYZE stock")
        system = stack.enter_context(System(folder, database, settings=settings or ACQUIRE)).run("acquire")
        made = BenchGround(system, database, connect(database, connections=2))
        stack.callback(made.close)
        env = {**os.environ, "BENCH_REDIS": made.url, "BENCH_DATABASE": database}
        celery = ["-m", "celery", "-A", "bench.peers.stock", "worker", "-l", "WARNING"]
        for words in (
            [*celery, "-n", "threads@%h", "-Q", "stock", "-P", "threads", "-c", "8"],
            [*celery, "-n", "prefork@%h", "-Q", "stock-prefork"],
            ["-m", "bench.peers.echo", made.url, "echo"],
            ["-m", "bench.peers.echo", made.url, "echo-commit", database],
        ):
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        yield made
