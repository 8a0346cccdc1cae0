"""Many clients, few workers: no worker ever has two holders.

    python -m bench.race [--acquires 10000] [--clients 16] [--threads 2] [--workers 50]

Start a real deployment with two acquire workers, and client processes that acquire, hold briefly
and release. Then compare the journal, the table and the clients' own logs. A violation is printed
as a sentence, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pool.client import Pool
from pool.core.errors import PoolError, Refused
from pool.store.journal import Entry
from tests.chaos import checker, history
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, ROOT, System, held_twice
from tests.support.waiting import eventually

ORGS = ("acme", "globex", "initech", "umbrella")
HOLD_S = 0.01
LEASE_S = 30
# A claim whose release was lost ends at its lease.
SETTLE_S = LEASE_S + 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceHold:
    """One grant as its holder saw it; the times are of this machine's monotonic clock, so they
    compare between processes.
    """

    claim_id: str
    worker_id: str
    epoch: int
    org: str
    source: str
    asked: float
    begun: float
    ended: float
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RacingClient:
    """The arguments of one client process."""

    url: str
    file: Path
    share: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """Everything that the clients wrote."""

    holds: list[RaceHold]
    refusals: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceVerdict:
    """The result of a race."""

    logs: Logs
    seconds: float
    violations: list[str]

    def summary(self) -> str:
        holds = self.logs.holds
        waits = sorted(hold.begun - hold.asked for hold in holds) or [0.0]
        sources, outcomes = Counter(hold.source for hold in holds), Counter(hold.outcome for hold in holds)
        workers = len({hold.worker_id for hold in holds})
        rate = len(holds) / self.seconds
        half, most = (waits[int(len(waits) * share)] * 1000 for share in (0.5, 0.99))
        lines = [
            f"{len(holds)} acquires granted in {self.seconds:.1f} s: {rate:.0f} a second, of {workers} workers",
            f"  from         {_counts(sources)}",
            f"  refused      {_counts(self.logs.refusals)}",
            f"  given back   {_counts(outcomes)}",
            f"  answered     within {half:.1f} ms at the median, {most:.1f} ms for 99 of 100",
            f"  violations   {len(self.violations)}",
        ]
        return "\n".join([*lines, *(f"    {violation}" for violation in self.violations[:50])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """The numbers of the race."""

    acquires: int = 10_000
    clients: int = 16
    workers: int = 50
    threads: int = 2

    def run(self, folder: Path) -> RaceVerdict:
        """Run the race; raise if it could not be run, and list violations in its result."""
        settings = {
            "pool": {"max_workers": self.workers, "hot_idle_ttl_s": 3600, "fleet_threads": 16},
            "profiles": {"default": {"warm_target": self.workers}},
        }
        with _database() as url, System(folder, url, settings=settings) as system:
            print(f"starting the pool and {self.workers} workers", flush=True)
            system.run(*EVERYTHING, "acquire-2").wait_idle(self.workers, within_s=60 + 3 * self.workers)
            began = time.monotonic()
            logs = self._compete(system)
            seconds = time.monotonic() - began
            violations = [f"{claim} has no holder and has not ended" for claim in _left_over(system)]
            violations += system.wrongs() + contradictions(system.entries(), logs.holds)
            if len(logs.holds) < self.acquires:
                violations.append(f"{len(logs.holds)} of {self.acquires} acquires were granted")
            return RaceVerdict(logs=logs, seconds=seconds, violations=violations)

    def _compete(self, system: System) -> Logs:
        shares = [len(range(i, self.acquires, self.clients)) for i in range(self.clients)]
        files = [system.folder / f"client-{i}.jsonl" for i in range(self.clients)]
        command = [
            sys.executable,
            "-m",
            "bench.race",
            "--threads",
            str(self.threads),
            "--client",
            system.redis.url,
        ]
        clients = [
            subprocess.Popen([*command, str(file), str(share)], cwd=ROOT)
            for file, share in zip(files, shares, strict=True)
        ]
        try:
            self._watch(clients, files)
        finally:
            for client in clients:
                client.kill()
                client.wait()
        return read_logs(files)

    def _watch(self, clients: Sequence[subprocess.Popen[bytes]], files: Sequence[Path]) -> None:
        """Print progress on one line, or a new line every few seconds without a terminal."""
        told, pause = 0.0, threading.Event()
        while any(client.poll() is None for client in clients):
            done = sum(file.read_bytes().count(b'"claim_id"') for file in files if file.exists())
            line = f"  {done} of {self.acquires} acquires"
            if sys.stdout.isatty():
                print(f"\r{line}", end="", flush=True)
            elif time.monotonic() - told > 5:
                told = time.monotonic()
                print(line, flush=True)
            pause.wait(0.5)
        if sys.stdout.isatty():
            print("\r\033[K", end="")


def contradictions(entries: Sequence[Entry], holds: Sequence[RaceHold]) -> list[str]:
    """Return contradictions between the clients' logs, or with the journal."""
    told = [
        history.ClaimHold(
            claim=h.claim_id, worker=h.worker_id, epoch=h.epoch, org=h.org, request="", begun=h.begun,
            ended=h.ended
        )
        for h in holds
    ]  # fmt: skip
    found = checker.unknown_grants(told, entries)
    found += [f"{c} was granted {n} times" for c, n in Counter(h.claim_id for h in holds).items() if n > 1]
    return found + checker.shared(told)


def violations(entries: Sequence[Entry], holds: Sequence[RaceHold]) -> list[str]:
    """Return all violations in the journal and the clients' logs."""
    return held_twice(entries) + contradictions(entries, holds)


def read_logs(files: Sequence[Path]) -> Logs:
    lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    holds = [RaceHold(**line) for line in lines if "claim_id" in line]
    return Logs(holds=holds, refusals=Counter(line["refused"] for line in lines if "refused" in line))


def compete(client: RacingClient) -> None:
    """One client process: threads that share a client, until enough acquires were granted."""
    writing, left = threading.Lock(), iter(range(client.share))

    def run(pool: Pool) -> None:
        while next(left, None) is not None:
            granted = False
            while not granted:
                line = acquire_and_release(pool)
                granted = "claim_id" in line
                with writing, client.file.open("a") as log:
                    log.write(json.dumps(line) + "\n")

    with Pool(client.url, name="race") as pool:
        threads = [threading.Thread(target=run, args=(pool,)) for _ in range(client.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def acquire_and_release(pool: Pool) -> dict[str, Any]:
    """Run one turn, for any org, with or without waiting; return what to record. The orgs' demands
    vary at random, so they compete for workers, and clients of one org for those that it has.
    """
    org, asked = random.choice(ORGS), time.monotonic()
    try:
        worker = pool.acquire(org, wait_s=random.choice((0, 30)), lease_s=LEASE_S)
    except Refused as exc:
        return {"refused": exc.reason}
    except PoolError as exc:
        return {"refused": type(exc).__name__}
    begun = time.monotonic()
    threading.Event().wait(random.random() * 2 * HOLD_S)
    ended = time.monotonic()
    try:
        outcome: str = worker.release()
    except PoolError as exc:
        outcome = type(exc).__name__
    return {
        "claim_id": worker.claim_id, "worker_id": worker.worker_id, "epoch": worker.epoch, "org": org,
        "source": worker.source, "asked": asked, "begun": begun, "ended": ended, "outcome": outcome,
    }  # fmt: skip


@contextmanager
def _database() -> Iterator[str]:
    """A new database on its own server."""
    server = PostgresServer().start()
    try:
        yield server.create_database("race")
    finally:
        server.destroy()


def _left_over(system: System) -> list[str]:
    """Return claims that are still live after all clients have ended."""
    try:
        eventually(lambda: not system.live_claims(), within_s=SETTLE_S, every_s=0.2)
    except AssertionError:
        return system.live_claims()
    return []


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counted.most_common()) or "none"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.race", description=__doc__.partition("\n")[0])
    parser.add_argument("--acquires", type=int, default=Race.__dataclass_fields__["acquires"].default)
    parser.add_argument("--clients", type=int, default=Race.__dataclass_fields__["clients"].default)
    parser.add_argument("--workers", type=int, default=Race.__dataclass_fields__["workers"].default)
    parser.add_argument(
        "--threads", type=int, default=Race.__dataclass_fields__["threads"].default, help="of each client"
    )
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        url, file, share = asked.client
        compete(RacingClient(url=url, file=Path(file), share=int(share), threads=asked.threads))
        return 0
    del asked.client
    race = Race(**vars(asked))
    with tempfile.TemporaryDirectory(prefix="warmpool-race-") as folder:
        verdict = race.run(Path(folder))
    print(verdict.summary())
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
