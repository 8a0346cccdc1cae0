"""A client process of the chaos run: threads that acquire, use the worker over HTTP, and release
it. Each event is written to a file before the next step.

    python -m tests.chaos.clients URL FILE SEED

On SIGTERM: release all claims, then end.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from pool.client import ClaimLost, Pool, ReleaseCondition, Worker
from pool.core.errors import PoolError, Refused
from tests.chaos.history import HistoryEvent, HistoryKind

THREADS = 3
ORGS = ("acme", "globex", "initech", "narrow")
PROFILES = ("default", "default", "bound")
LEASES_S = (5, 10, 30)
WAITS_S = (0, 5, 20)
USE_EVERY_S = 0.4
USE_TIMEOUT_S = 3.0


class Log:
    """An open file; each line is written at once and completely."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: HistoryEvent) -> None:
        os.write(self._file, (event.line() + "\n").encode())


class Turn:
    """Send one request and use its worker."""

    def __init__(self, pool: Pool, log: Log, chance: random.Random, name: str) -> None:
        self._pool = pool
        self._log = log
        self._chance = chance
        self._request = name
        self._org = chance.choice(ORGS)
        self._worker: Worker | None = None

    def run(self, stop: threading.Event) -> None:
        chance = self._chance
        self._note(HistoryKind.ASKED)
        try:
            self._worker = self._pool.acquire(
                self._org, chance.choice(PROFILES), request_id=self._request,
                wait_s=chance.choice(WAITS_S), lease_s=chance.choice(LEASES_S),
                ttl_s=chance.choice((None, 0, 5)),
            )  # fmt: skip
        except Refused as exc:
            self._note(HistoryKind.REFUSED, exc.reason)
            stop.wait(chance.uniform(0.05, 0.3))
            return
        except PoolError as exc:
            self._note(HistoryKind.UNANSWERED, f"{type(exc).__name__}: {exc}")
            return
        self._note(HistoryKind.GRANTED, self._worker.source)
        if self._hold(stop, chance.expovariate(1 / 2.5)):
            self._release("tainted" if chance.random() < 0.1 else "clean")

    def _hold(self, stop: threading.Event, seconds: float) -> bool:
        """Use it for some time; return whether it is still held."""
        end = time.monotonic() + min(seconds, 15.0)
        assert self._worker is not None
        while True:
            try:
                self._use(self._worker)
            except ClaimLost as exc:
                self._note(HistoryKind.LOST, exc.cause)
                return False
            if time.monotonic() >= end or stop.wait(USE_EVERY_S):
                return True

    def _use(self, worker: Worker) -> None:
        at = urlsplit(worker.endpoint)
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=USE_TIMEOUT_S)
        try:
            connection.request("GET", "/echo", headers=worker.auth)
            answer = connection.getresponse()
            said = answer.read()[:200].decode(errors="replace")
        except OSError as exc:
            self._note(HistoryKind.UNREACHABLE, f"{type(exc).__name__}: {exc}")
            return
        except http.client.HTTPException as exc:
            self._note(HistoryKind.UNREACHABLE, f"{type(exc).__name__}: {exc}")
            return
        finally:
            connection.close()
        if answer.status in (401, 403, 409):
            self._note(HistoryKind.TURNED_AWAY, f"{answer.status} {said}")
        else:
            self._note(HistoryKind.USED)

    def _release(self, condition: ReleaseCondition) -> None:
        assert self._worker is not None
        self._note(HistoryKind.RELEASING)
        try:
            self._note(HistoryKind.RELEASED, self._worker.release(condition))
        except PoolError as exc:
            self._note(HistoryKind.UNRELEASED, type(exc).__name__)

    def _note(self, what: HistoryKind, about: str = "") -> None:
        worker = self._worker
        self._log.write(
            HistoryEvent(
                t=time.monotonic(), what=what, request=self._request, org=self._org, about=about,
                claim=worker.claim_id if worker else "", worker=worker.worker_id if worker else "",
                epoch=worker.epoch if worker else 0,
            )
        )  # fmt: skip


def main(url: str, file: str, seed: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    log = Log(Path(file))

    def turns(pool: Pool, number: int) -> None:
        chance = random.Random(f"{seed}-{number}")
        count = 0
        while not stop.is_set():
            count += 1
            Turn(pool, log, chance, f"{Path(file).stem}-{number}-{count}").run(stop)

    with Pool(url, name="chaos") as pool:
        threads = [threading.Thread(target=turns, args=(pool, i)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:4])
