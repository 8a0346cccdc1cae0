"""Postgres fails over to its standby, or is behind PgBouncer, while the whole pool works: no process
ends, no claim is lost, every call is answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import select

from pool.client import Pool
from pool.core.states import LIVE
from pool.store import schema
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, System
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(400)

SETTINGS = {"profiles": {"default": {"warm_target": 4, "grace_s": 1}}}
HELD, CALLERS = 4, 3


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and its standby, which has every commit before it is confirmed."""
    primary = PostgresServer().start()
    try:
        standby = PostgresServer(primary=primary).start()
        try:
            primary.configure("ALTER SYSTEM SET synchronous_standby_names = '*'")
            yield primary, standby
        finally:
            standby.destroy()
    finally:
        primary.destroy()


class PooledCallers:
    """Threads that acquire and release all the time, and the longest time without an answer."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(CALLERS)
        self.answered = 0
        self.longest_s = 0.0
        self._working = [self._threads.submit(self._work) for _ in range(CALLERS)]

    def _work(self) -> None:
        last = time.monotonic()
        while not self._stop.is_set():
            with self._pool.acquire("bolt", wait_s=60, ttl_s=600):
                now = time.monotonic()
                self.longest_s, last = max(self.longest_s, now - last), now
                self.answered += 1
            time.sleep(0.1)

    def more(self, count: int) -> None:
        """Wait until `count` more calls were answered."""
        wanted = self.answered + count
        eventually(lambda: self.answered >= wanted or self._failed(), within_s=120, every_s=0.1)
        assert not self._failed(), [f.exception() for f in self._working if f.done()]

    def end(self) -> None:
        self._stop.set()
        self._threads.shutdown(wait=True)
        for each in self._working:
            each.result()

    def _failed(self) -> bool:
        return any(f.done() for f in self._working) and not self._stop.is_set()


def test_a_promoted_standby_takes_over_and_nothing_is_lost(
    tmp_path: Path, pair: tuple[PostgresServer, PostgresServer]
) -> None:
    primary, standby = pair
    primary.create_database("pool")
    url = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/pool"
    with System(tmp_path, url, settings=SETTINGS) as system, Pool(system.redis.url) as pool:
        system.run(*EVERYTHING).wait_idle(4)
        held = [pool.acquire("acme", lease_s=30, wait_s=30) for _ in range(HELD)]
        callers = PooledCallers(pool)
        callers.more(10)
        primary.kill()
        standby.promote()
        promoted = time.monotonic()
        callers.more(10)
        print(f"ten calls after the promotion took {time.monotonic() - promoted:.1f} s;"
              f" the longest time without an answer was {callers.longest_s:.1f} s")  # fmt: skip
        callers.end()
        system.store.engine.dispose()  # the test's own connections
        assert all(part.alive() for part in system.parts.values()), system.tails()
        renewed = [worker.lease_expires_at for worker in held]
        eventually(
            lambda: all(w.lease_expires_at > before for w, before in zip(held, renewed, strict=True)),
            within_s=60,
        )
        assert set(system.live_claims(org="acme")) == {worker.claim_id for worker in held}
        for worker in held:
            worker.release()
        assert not system.wrongs()


def test_a_promoted_standby_without_the_last_grant_heals(tmp_path: Path) -> None:
    """An asynchronous standby: the grant was answered, its commit is lost, and its pod is ahead of its
    row.
    """
    primary = PostgresServer().start()
    standby = PostgresServer(primary=primary).start()
    try:
        primary.create_database("pool")
        url = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/pool"
        with System(tmp_path, url, settings=SETTINGS) as system, Pool(system.redis.url) as pool:
            system.run(*EVERYTHING).wait_idle(4)
            kept = pool.acquire("acme", lease_s=30, wait_s=30)
            system.wait_idle(4)
            eventually(lambda: _has_caught_up(primary, standby), within_s=20)
            standby.stop()
            late = pool.acquire("bolt", lease_s=30, wait_s=30)
            eventually(lambda: f"worker={late.worker_id}" in _stamped(system), within_s=20)
            primary.kill()
            standby.start()
            standby.promote()
            system.store.engine.dispose()
            eventually(lambda: bool(late.lost), within_s=90, every_s=0.2)
            eventually(lambda: late.worker_id not in _rows(system), within_s=90, every_s=0.2)
            system.wait_idle(4)
            assert not kept.lost
            assert system.live_claims() == [kept.claim_id]
            assert all(part.alive() for part in system.parts.values()), system.tails()
            kept.release()
            assert not system.wrongs()
    finally:
        standby.destroy()
        primary.destroy()


def test_a_server_that_became_read_only_is_left(tmp_path: Path) -> None:
    """A switchover behind one name: the connections stay open, and their server accepts no writes."""
    first, second = PostgresServer().start(), None
    try:
        first.create_database("pool")
        second = PostgresServer(primary=first).start()
        first.configure("ALTER SYSTEM SET synchronous_standby_names = '*'")
        url = f"postgresql://postgres@127.0.0.1:{first.port},127.0.0.1:{second.port}/pool"
        with System(tmp_path, url, settings=SETTINGS) as system, Pool(system.redis.url) as pool:
            system.run(*EVERYTHING).wait_idle(4)
            callers = PooledCallers(pool)
            callers.more(10)
            first.configure("ALTER SYSTEM SET default_transaction_read_only = on")
            eventually(lambda: _is_read_only(first), within_s=20)
            second.promote()
            callers.more(10)
            callers.end()
            system.store.engine.dispose()
            assert all(part.alive() for part in system.parts.values()), system.tails()
            assert not system.wrongs()
    finally:
        if second is not None:
            second.destroy()
        first.destroy()


def test_a_pool_behind_pgbouncer_works_and_survives_its_restart(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    direct = postgres.create_database(tmp_path.name)
    settings = {**SETTINGS, "pool": {"database_pooler": True}}
    with PgBouncer(postgres) as bouncer, System(tmp_path, direct, settings=settings) as system:
        system.env["WARMPOOL_DATABASE_URL"] = bouncer.url(tmp_path.name)
        with Pool(system.redis.url) as pool:
            system.run(*EVERYTHING).wait_idle(4)
            held = pool.acquire("acme", lease_s=30, wait_s=30)
            callers = PooledCallers(pool)
            callers.more(20)
            bouncer.restart()
            callers.more(20)
            callers.end()
            assert all(part.alive() for part in system.parts.values()), system.tails()
            assert system.live_claims(org="acme") == [held.claim_id]
            held.release()
        assert not system.wrongs()
        assert "prepared statement" not in "".join(part.log() for part in system.parts.values())


def _has_caught_up(primary: PostgresServer, standby: PostgresServer) -> bool:
    with psycopg.connect(primary.url()) as one, psycopg.connect(standby.url()) as other:
        at = one.execute("SELECT pg_current_wal_lsn()").fetchone()
        found = other.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", at).fetchone()
    return found == (True,)


def _stamped(system: System) -> str:
    """Return the log lines about stamped busy pods."""
    return "\n".join(line for line in system["bind"].log().splitlines() if "busy=True" in line)


def _rows(system: System) -> set[str]:
    """Return the workers that are not ended."""
    W = schema.workers
    with system.store.read() as tx:
        return set(tx.execute(select(W.c.id).where(W.c.state.in_(LIVE))).scalars())


def _is_read_only(server: PostgresServer) -> bool:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        found = connection.execute("SHOW transaction_read_only").fetchone()
    return found == ("on",)
