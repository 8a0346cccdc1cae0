"""Three sentinels, a primary and two replicas: real processes on ports of their own."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import redis

from pool.ops.up.ports import free_port
from tests.support.redis_server import STOP_LIMIT_S, RedisServer, server_binary
from tests.support.waiting import eventually

MASTER = "warm"
QUORUM = 2
# A primary that does not answer for this time is down. Then the sentinels elect a leader, which
# promotes a replica.
DOWN_AFTER_S = 2.0
START_LIMIT_S = 30.0
# Shorter than the time after which the sentinels take a replica for dead.
BEHIND_S = 1.0


class SentinelServer:
    """One sentinel."""

    def __init__(self, primary: RedisServer, *, password: str, own_password: str) -> None:
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="warmpool-sentinel-")
        self._file = Path(self._folder.name) / "sentinel.conf"
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self._folder.name}",
            f"logfile {self._folder.name}/sentinel.log",
            f"sentinel monitor {MASTER} 127.0.0.1 {primary.port} {QUORUM}",
            f"sentinel down-after-milliseconds {MASTER} {int(DOWN_AFTER_S * 1000)}",
            f"sentinel failover-timeout {MASTER} 10000",
            f"sentinel parallel-syncs {MASTER} 2",
        ]
        if password:
            lines.append(f"sentinel auth-pass {MASTER} {password}")
        if own_password:
            lines += [f"requirepass {own_password}", f"sentinel sentinel-pass {own_password}"]
        self._file.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None
        self._password = own_password

    def start(self) -> None:
        self._process = subprocess.Popen(
            [server_binary(), str(self._file), "--sentinel"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password=self._password or None, socket_timeout=2)

    def ask(self, *words: str) -> Any:
        with self.client() as client:
            return client.execute_command("SENTINEL", *words)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_LIMIT_S)
        self._folder.cleanup()


class SentinelGroup:
    """A replicated Redis behind sentinels. It takes the place of a `RedisServer`."""

    def __init__(self, *, password: str = "", own_password: str = "") -> None:
        """`password` is that of the servers, `own_password` that of the sentinels."""
        self._password, self._own_password = password, own_password
        more = {"requirepass": password, "masterauth": password} if password else {}
        more |= {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
        self.servers = [RedisServer(appendonly=True, more=more) for _ in range(3)]
        self.sentinels = [
            SentinelServer(self.servers[0], password=password, own_password=own_password) for _ in range(3)
        ]

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        user = f":{self._password}@" if self._password else ""
        own = f"?sentinel_password={self._own_password}" if self._own_password else ""
        return f"sentinel://{user}{places}/{MASTER}/0{own}"

    @property
    def running(self) -> bool:
        return all(server.running for server in self.servers)

    def start(self) -> Self:
        for server in self.servers:
            if not server.running:
                server.start()
        if self.sentinels[0]._process is None:
            for server in self.servers[1:]:
                with self.client(server) as client:
                    client.execute_command("REPLICAOF", "127.0.0.1", str(self.servers[0].port))
            eventually(lambda: self._replicas(self.servers[0]) == 2, within_s=START_LIMIT_S)
            for sentinel in self.sentinels:
                sentinel.start()
        self.settles()
        return self

    def settles(self) -> None:
        """Wait until all sentinels know each other, and the replicas follow the primary that they name."""
        eventually(self._is_settled, within_s=START_LIMIT_S, every_s=0.1)

    def primary(self) -> RedisServer:
        """Return the server that the first sentinel names."""
        port = int(self.sentinels[0].ask("GET-MASTER-ADDR-BY-NAME", MASTER)[1])
        return next(server for server in self.servers if server.port == port)

    def client(self, server: RedisServer) -> redis.Redis:
        return redis.Redis(port=server.port, password=self._password or None, socket_timeout=2)

    def failover(self) -> float:
        """Order a failover; return how long the sentinels took until all name the new primary."""
        old, began = self.primary(), time.monotonic()
        self.sentinels[0].ask("FAILOVER", MASTER)
        return self._until_replaced(old, began)

    def crash(self) -> float:
        """Kill the primary; return how long the sentinels took until all name a new one."""
        old, began = self.primary(), time.monotonic()
        old.kill()
        return self._until_replaced(old, began)

    def crash_ahead(self) -> float:
        """Kill the primary while its replicas are behind: they never get the writes of the last second,
        which it has acknowledged.
        """
        old, others = self.primary(), [each for each in self.servers if each is not self.primary()]
        for each in others:
            each.send(signal.SIGSTOP)
        threading.Event().wait(BEHIND_S)
        began = time.monotonic()
        old.kill()
        for each in others:
            each.send(signal.SIGCONT)
        return self._until_replaced(old, began)

    def freeze(self) -> float:
        """Freeze the primary: its connections stay open and nothing answers. `mend` ends it."""
        old, began = self.primary(), time.monotonic()
        old.send(signal.SIGSTOP)
        return self._until_replaced(old, began)

    def mend(self) -> None:
        """Start the servers that were killed or frozen. They become replicas."""
        for server in self.servers:
            server.send(signal.SIGCONT)
        self.start()

    def close(self) -> None:
        for server in self.servers:
            server.send(signal.SIGCONT)
        for sentinel in self.sentinels:
            sentinel.close()
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _until_replaced(self, old: RedisServer, began: float) -> float:
        def named() -> bool:
            ports = {int(each.ask("GET-MASTER-ADDR-BY-NAME", MASTER)[1]) for each in self.sentinels}
            return len(ports) == 1 and old.port not in ports

        eventually(named, within_s=START_LIMIT_S, every_s=0.02)
        return time.monotonic() - began

    def _replicas(self, server: RedisServer) -> int:
        with self.client(server) as client:
            found: dict[str, Any] = client.info("replication")
        return sum(
            found[key]["state"] == "online" for key in found if key.startswith("slave") and key[5:].isdigit()
        )

    def _is_settled(self) -> bool:
        try:
            states = [_pairs(each.ask("MASTER", MASTER)) for each in self.sentinels]
            known = all(
                state["num-other-sentinels"] == "2"
                and state["num-slaves"] == "2"
                and state["flags"] == "master"
                for state in states
            )
            return known and self._replicas(self.primary()) == 2
        except redis.RedisError:
            return False


def _pairs(found: Any) -> dict[str, str]:
    if isinstance(found, dict):
        return {_text(key): _text(value) for key, value in found.items()}
    words = [_text(word) for word in found]
    return dict(zip(words[::2], words[1::2], strict=True))


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)
