"""Broker and database of a chaos run: one server each, or replicated ones that fail over, with a
PgBouncer in front of the database for every second process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from tests.chaos.schedule import REPLICATED_KINDS, FaultKind
from tests.support import previous
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.sentinels import SentinelGroup
from tests.support.system import System
from tests.support.tcp_proxy import TcpProxy

DATABASE = "chaos"


class ChaosServers(Protocol):
    """What a run needs of its servers."""

    @property
    def database_url(self) -> str: ...

    @property
    def options(self) -> dict[str, Any]:
        """Further arguments of the system."""

    def begin(self, system: System) -> str:
        """Start what the system has not started; return the broker's URL for clients."""

    def env_of(self, system: System, name: str) -> Mapping[str, str]:
        """Return the environment of a second process of a role."""


class SingleServers:
    """One Redis and one Postgres. Each second process reaches them through proxies of its own."""

    kinds = frozenset(FaultKind) - REPLICATED_KINDS - {FaultKind.API_AWAY}

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.postgres = PostgresServer(fsync=True).start()
        stack.callback(self.postgres.destroy)
        self.database_url = self.postgres.create_database(DATABASE)
        self.options: dict[str, Any] = {}
        self.proxies: dict[str, tuple[TcpProxy, TcpProxy]] = {}

    def begin(self, system: System) -> str:
        return system.redis.url

    def env_of(self, system: System, name: str) -> Mapping[str, str]:
        broker = self._stack.enter_context(TcpProxy(system.redis.port))
        database = self._stack.enter_context(TcpProxy(self.postgres.port))
        self.proxies[name] = broker, database
        return {
            **system.env,
            "WARMPOOL_BROKER_URL": system.redis.url.replace(f":{system.redis.port}", f":{broker.port}"),
            "WARMPOOL_DATABASE_URL": self.database_url.replace(f":{self.postgres.port}", f":{database.port}"),
        }


class ReplicatedServers:
    """Three Redis with three sentinels, a Postgres with a synchronous standby, and a PgBouncer."""

    kinds = REPLICATED_KINDS | {FaultKind.KILL, FaultKind.FREEZE, FaultKind.POD_KILL, FaultKind.CLIENT_KILL}

    def __init__(self, stack: ExitStack) -> None:
        self.redis = SentinelGroup()
        stack.callback(self.redis.close)
        self.primary = PostgresServer(fsync=True).start()
        self.primary.create_database(DATABASE)
        self.standby = PostgresServer(primary=self.primary, fsync=True).start()
        stack.callback(self._destroy)
        self._make_synchronous()
        self.bouncer = stack.enter_context(PgBouncer(self.primary))
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (self.primary, self.standby))
        self.database_url = f"postgresql://postgres@{hosts}/{DATABASE}"

    @property
    def options(self) -> dict[str, Any]:
        first: RedisServer = self.redis.servers[0]
        return {"redis": first, "broker_url": self.redis.url}

    def begin(self, system: System) -> str:
        self.redis.start()
        # The rules of both versions are installed before either runs.
        for tree in (previous.tree(), Path(__file__).parents[2]):
            command = [sys.executable, "-m", "pool.ops.cli", "migrate"]
            subprocess.run(command, cwd=tree, env=system.env, check=True, stdout=subprocess.DEVNULL)
        return self.redis.url

    def env_of(self, system: System, name: str) -> Mapping[str, str]:
        pooled = {
            "WARMPOOL_DATABASE_URL": self.bouncer.url(DATABASE),
            "WARMPOOL_DATABASE_POOLER": "true",
        }
        return {**system.env, **pooled}

    def fail_over_postgres(self) -> None:
        """Kill the primary, promote the standby, and point the pooler at it."""
        self.primary.kill()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary
        self.bouncer.point_at(self.primary)

    def mend_postgres(self) -> None:
        """Replace the server that was killed by a standby of the new primary, at the same address."""
        port = self.standby.port
        self.standby.destroy()
        self.standby = PostgresServer(primary=self.primary, fsync=True)
        self.standby.port = port
        self.standby.start()
        self._make_synchronous()

    def _destroy(self) -> None:
        """Destroy both servers, which may have changed places."""
        for server in (self.primary, self.standby):
            server.destroy()

    def _make_synchronous(self) -> None:
        # Set after the standby was copied, so that it does not wait for a standby of its own when
        # it is promoted.
        self.primary.configure("ALTER SYSTEM SET synchronous_standby_names = '*'")
