"""Carry out the schedule on a running system. Each fault begins, and is undone after its time."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import redis

from tests.chaos.pods import ChaosPods, Ending
from tests.chaos.schedule import FaultKind, Step
from tests.chaos.servers import ChaosServers, ReplicatedServers, SingleServers
from tests.support import previous
from tests.support.clock_skew import skewed
from tests.support.system import ROOT, System, SystemPart
from tests.support.tcp_proxy import TcpProxy
from tests.support.thread_kill import kill_thread


class Clients:
    """The client processes, and the files that they wrote. A killed one is followed by another with
    a new file.
    """

    def __init__(self, folder: Path, url: str, seed: int) -> None:
        self._folder = folder
        self._url = url
        self._seed = seed
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.files: list[Path] = []

    def start(self, name: str) -> None:
        file = self._folder / f"{name}-{len(self.files)}.jsonl"
        self.files.append(file)
        with file.with_suffix(".log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.clients", self._url, str(file), f"{self._seed}-{file.stem}"],
                cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def end(self, within_s: float) -> list[str]:
        """Ask all clients to release their claims; return those that did not end."""
        for process in self._running.values():
            process.terminate()
        late = []
        for name, process in self._running.items():
            try:
                process.wait(within_s)
            except subprocess.TimeoutExpired:
                late.append(name)
                process.kill()
                process.wait()
        return late

    def clear(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def grants(self) -> int:
        return sum(file.read_bytes().count(b'"granted"') for file in self.files if file.exists())


class Faults:
    """The faults of this system. `down` are the parts that are stopped on purpose."""

    def __init__(self, system: System, clients: Clients, pods: ChaosPods, servers: ChaosServers) -> None:
        self._system = system
        self._clients = clients
        self._pods = pods
        self._servers = servers
        self.down: set[str] = set()
        self.killed_workers: set[str] = set()
        self._does: dict[FaultKind, Callable[[Step], Ending | None]] = {
            FaultKind.KILL: self._kill,
            FaultKind.FREEZE: self._freeze,
            FaultKind.SKEW: self._skew,
            FaultKind.CUT_BROKER: lambda step: self._cut(step, self._single.proxies[step.target][0]),
            FaultKind.CUT_DATABASE: lambda step: self._cut(step, self._single.proxies[step.target][1]),
            FaultKind.BROKER_RESTART: self._broker_down,
            FaultKind.BROKER_CRASH: self._broker_down,
            FaultKind.BROKER_FLUSH: self._flush,
            FaultKind.BROKER_REFUSES: self._refuse_writes,
            FaultKind.DATABASE_RESTART: self._database_down,
            FaultKind.DATABASE_CRASH: self._database_down,
            FaultKind.DATABASE_REFUSES: self._refuse_transactions,
            FaultKind.API_AWAY: lambda _: self._pods.api_away(),
            FaultKind.POD_KILL: self._kill_worker,
            FaultKind.CLIENT_KILL: self._kill_client,
            FaultKind.THREAD_KILL: self._kill_thread,
            FaultKind.REDIS_FAILOVER: self._fail_over_redis,
            FaultKind.POSTGRES_FAILOVER: self._fail_over_postgres,
            FaultKind.PGBOUNCER_RESTART: self._pooler_down,
            FaultKind.ROLLING_UPGRADE: self._upgrade,
        }

    @property
    def _single(self) -> SingleServers:
        assert isinstance(self._servers, SingleServers)
        return self._servers

    @property
    def _replicated(self) -> ReplicatedServers:
        assert isinstance(self._servers, ReplicatedServers)
        return self._servers

    def begin(self, step: Step) -> Ending:
        """Start the fault; return what undoes it."""
        return self._does[step.kind](step) or _nothing

    def _kill(self, step: Step) -> Ending:
        part = self._system[step.target]
        self.down.add(step.target)
        part.kill()
        return lambda: self._start(part)

    def _freeze(self, step: Step) -> Ending:
        part = self._system[step.target]
        part.send(signal.SIGSTOP)
        return lambda: part.send(signal.SIGCONT)

    def _skew(self, step: Step) -> Ending:
        """Restart it with a wrong clock, and later with the right one."""
        part = self._system[step.target]
        plain = part.env
        self._restart(part, skewed(plain, step.amount))
        return lambda: self._restart(part, plain)

    def _cut(self, step: Step, proxy: TcpProxy | None) -> Ending:
        assert proxy is not None
        proxy.begin_cut(silently=step.amount % 2 == 0)
        return proxy.end_cut

    def _broker_down(self, step: Step) -> Ending:
        server = self._system.redis
        (server.kill if step.kind is FaultKind.BROKER_CRASH else server.stop)()
        return lambda: _ignored(server.start())

    def _flush(self, step: Step) -> None:
        with redis.Redis.from_url(self._system.redis.url) as broker:
            broker.flushall()

    def _refuse_writes(self, step: Step) -> Ending:
        """Redis answers, and reports that it is out of memory for writes."""
        with redis.Redis.from_url(self._system.redis.url) as broker:
            broker.config_set("maxmemory-policy", "noeviction")
            broker.config_set("maxmemory", 1)

        def end() -> None:
            with redis.Redis.from_url(self._system.redis.url) as broker:
                broker.config_set("maxmemory", 0)

        return end

    def _database_down(self, step: Step) -> Ending:
        server = self._single.postgres
        (server.kill if step.kind is FaultKind.DATABASE_CRASH else server.stop)()
        return lambda: _ignored(server.start())

    def _refuse_transactions(self, step: Step) -> Ending:
        """Postgres answers, and every transaction is read-only, as on a standby after a failover."""
        postgres = self._single.postgres
        postgres.configure("ALTER SYSTEM SET default_transaction_read_only = on")
        return lambda: postgres.configure("ALTER SYSTEM RESET default_transaction_read_only")

    def _fail_over_redis(self, step: Step) -> Ending:
        """Order a failover, or kill or freeze the primary, by the number that the schedule drew."""
        group = self._replicated.redis
        (group.failover, group.crash, group.freeze)[step.amount % 3]()
        return group.mend

    def _fail_over_postgres(self, step: Step) -> Ending:
        servers = self._replicated
        servers.fail_over_postgres()
        return servers.mend_postgres

    def _pooler_down(self, step: Step) -> Ending:
        bouncer = self._replicated.bouncer
        bouncer.stop()
        return lambda: _ignored(bouncer.start())

    def _upgrade(self, step: Step) -> Ending:
        """Replace a process by one of the other version, as a rollout and a rollback do."""
        part = self._system[step.target]
        self.down.add(step.target)
        part.send(signal.SIGTERM)

        def start() -> None:
            part.kill()  # as a kubelet does after the grace period
            part.tree = previous.tree() if part.tree == ROOT else ROOT
            self._start(part)

        return start

    def _kill_worker(self, step: Step) -> None:
        killed = self._pods.kill_one(step.amount)
        if killed is not None:
            self.killed_workers.add(killed)

    def _kill_thread(self, step: Step) -> None:
        """Kill one of its long-lived threads, by the number that the schedule drew."""
        part = self._system[step.target]
        if part.alive():
            kill_thread(part.pid, part.env, str(step.amount))

    def _kill_client(self, step: Step) -> None:
        self._clients.kill(step.target)
        self._clients.start(step.target)

    def _restart(self, part: SystemPart, env: dict[str, str]) -> None:
        self.down.add(part.name)
        part.kill()
        part.env = env
        self._start(part)

    def _start(self, part: SystemPart) -> None:
        part.start()
        self.down.discard(part.name)


def _nothing() -> None:
    pass


def _ignored(_: object) -> None:
    pass
