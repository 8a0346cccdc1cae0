"""Several lanes: one Postgres that syncs every commit to disk, and for each fleet its own database,
Redis and real acquire worker. Pods are rows only. All calls go through the queue, like those of
services.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from bench.ground import ACQUIRE
from bench.populating import FleetSize, populated_with, refill
from pool.store import Store, connect
from tests.support.postgres_server import PostgresServer
from tests.support.system import System
from tests.support.waiting import eventually

# The history of a pool of this age, independent of its size.
PAST = 1_000
# Long enough for any bench; no lease, wait or parked worker reaches its end.
LONG_S = 3600
SETTLE_S = 900.0
# Without beat the pool is not healthy, and `status` exits accordingly.
_REPORTED = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLane:
    """One pool: its processes and its data."""

    system: System
    store: Store

    @property
    def url(self) -> str:
        return self.system.redis.url

    def put_right(self, taken: int = 0) -> None:
        """Create as many new idle workers as were taken; delete messages for workers that do not
        run here.
        """
        refill(self.store, taken)
        with redis.Redis.from_url(self.url) as client:
            client.delete("fleet", "bind", "passes")

    def crowd(self, org: str, count: int, *, profile: str = "default") -> None:
        """Add this many waiting acquires of an org: plain Celery messages, so that no client sends
        them again.
        """
        sender = Celery("crowd", broker=self.url, backend=self.url, set_as_current=False)
        kwargs = {"org": org, "profile": profile, "lease_s": LONG_S, "wait_s": LONG_S}
        for _ in range(count):
            sender.send_task("pool.acquire", kwargs=kwargs, queue="acquire", ignore_result=True)
        sender.close()
        eventually(lambda: self.waiting() == count, within_s=SETTLE_S, every_s=1.0)

    def waiting(self) -> int:
        """Return how many acquires wait, from `warmpool status`."""
        seen = json.loads(self.system.command("status", "-o", "json", ok=_REPORTED))
        return sum(line["waiting"] for line in seen["waiting"])


class Lanes:
    """Everything that is open until the block ends."""

    def __init__(self, server: PostgresServer, folder: Path, stack: ExitStack) -> None:
        self._server, self._folder, self.stack = server, folder, stack

    def open(
        self,
        name: str,
        *,
        idle: int,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> BenchLane:
        """A lane with this many idle workers; `settings` override those of every bench, table by
        table.
        """
        given = settings or {}
        merged = {t: {**ACQUIRE.get(t, {}), **given.get(t, {})} for t in {*ACQUIRE, *given}}
        database = populated_with(self._server, name, FleetSize(idle=idle, busy=0, parked=0, past=PAST))
        system = self.stack.enter_context(System(self._folder / name, database, settings=merged))
        store = connect(database, connections=2)
        self.stack.callback(store.close)
        return BenchLane(system=system.run("acquire"), store=store)


@contextmanager
def lanes() -> Iterator[Lanes]:
    """A server for them."""
    with tempfile.TemporaryDirectory(prefix="warmpool-bench-") as folder, ExitStack() as stack:
        server = PostgresServer(fsync=True).start()
        stack.callback(server.destroy)
        yield Lanes(server, Path(folder), stack)
