"""Locks on a real Redis: one token per run, compared before every change, and a holder that notices
when it no longer holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from pool.broker.locks import RedisLocks
from pool.core.clock import SystemClock
from pool.core.errors import Transient
from pool.core.ids import RandomIds
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

KEY = "warmpool.lock.reap"
TTL_S = 60.0


class HandClock:
    """Time passes when the test decides; Redis' own TTL is far longer than any test."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._changed = threading.Condition()
        self.waiting = 0

    def monotonic(self) -> float:
        with self._changed:
            return self._now

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        with self._changed:
            due = self._now + seconds
            self.waiting += 1
            while self._now < due and not stop.is_set():
                self._changed.wait(0.005)
            self.waiting -= 1
        return stop.is_set()

    def advance(self, seconds: float) -> None:
        """Advance once the renewer waits, so that it misses no time."""
        eventually(lambda: self.waiting == 1)
        self.skip(seconds)

    def skip(self, seconds: float) -> None:
        with self._changed:
            self._now += seconds
            self._changed.notify_all()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


def client_of(server: RedisServer) -> Any:
    return redis.Redis.from_url(server.url, socket_timeout=2, socket_connect_timeout=2, retry=None)


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    with client_of(server) as made:
        made.flushall()
        yield made


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def locks(client: Any, clock: HandClock) -> RedisLocks:
    return RedisLocks(client, clock=clock, ids=RandomIds(), who="host-1")


def renewals(client: Any, clock: HandClock, seconds: float) -> Callable[[], bool]:
    """Triggers the renewer, and signals when Redis has received its command."""
    client.pexpire(KEY, 5000)
    clock.advance(seconds)
    return lambda: client.pttl(KEY) > 50_000


def test_a_lock_is_held_until_its_block_ends(locks: RedisLocks, client: Any) -> None:
    with locks.taken("reap", TTL_S) as lease:
        assert lease is not None
        assert lease.held()
        assert locks.holder("reap") == client.get(KEY).decode()
        assert str(locks.holder("reap")).startswith("host-1/")
        assert 50_000 < client.pttl(KEY) <= 60_000
    assert locks.holder("reap") is None


def test_a_lock_is_released_when_its_block_raises(locks: RedisLocks) -> None:
    with pytest.raises(RuntimeError, match="midway"), locks.taken("reap", TTL_S):
        raise RuntimeError("midway")
    assert locks.holder("reap") is None


def test_a_held_lock_is_granted_to_no_other_run(locks: RedisLocks, client: Any) -> None:
    with locks.taken("reap", TTL_S):
        mine = locks.holder("reap")
        with locks.taken("reap", TTL_S) as second:
            assert second is None
        assert locks.holder("reap") == mine, "one who did not get the lock must not release it"
        with locks.taken("sweep", TTL_S) as other:
            assert other is not None


def test_every_run_has_its_own_token(locks: RedisLocks) -> None:
    tokens = set()
    for _ in range(3):
        with locks.taken("reap", TTL_S):
            tokens.add(locks.holder("reap"))
    assert len(tokens) == 3


def test_a_renewed_lock_is_held_beyond_its_time_to_live(
    locks: RedisLocks, client: Any, clock: HandClock
) -> None:
    with locks.taken("reap", TTL_S) as lease:
        assert lease is not None
        for _ in range(6):
            eventually(renewals(client, clock, TTL_S / 3))
            assert lease.held()
    assert clock.monotonic() >= 1000 + 2 * TTL_S


def test_a_lock_that_is_not_renewed_in_time_is_not_held(client: Any) -> None:
    """The renewer is stuck: the holder's own deadline decides, whatever Redis contains."""

    class Stuck(HandClock):
        def wait(self, stop: threading.Event, seconds: float) -> bool:
            return stop.wait(30)

    clock = Stuck()
    with RedisLocks(client, clock=clock, ids=RandomIds(), who="h").taken("reap", TTL_S) as lease:
        assert lease is not None
        clock.skip(TTL_S - 1)
        assert lease.held()
        clock.skip(1)
        assert not lease.held()


def test_a_lock_taken_over_by_another_run_is_noticed_and_left_to_it(
    locks: RedisLocks, client: Any, clock: HandClock
) -> None:
    with locks.taken("reap", TTL_S) as lease:
        assert lease is not None
        client.set(KEY, "thief", px=5000)
        clock.advance(TTL_S / 3)
        eventually(lambda: not lease.held())
        assert client.pttl(KEY) <= 5000, "it must not prolong another's lock"
    assert client.get(KEY) == b"thief"


def test_a_deleted_lock_is_noticed_and_not_taken_again(
    locks: RedisLocks, client: Any, clock: HandClock
) -> None:
    with locks.taken("reap", TTL_S) as lease:
        assert lease is not None
        client.flushall()
        clock.advance(TTL_S / 3)
        eventually(lambda: not lease.held())
        assert client.get(KEY) is None


def test_a_run_that_lost_its_lock_does_not_release_its_successors(locks: RedisLocks, client: Any) -> None:
    with locks.taken("reap", TTL_S):
        client.delete(KEY)
        with locks.taken("reap", TTL_S) as successor:
            assert successor is not None
        client.set(KEY, "third")
    assert client.get(KEY) == b"third"


def test_no_thread_is_left_behind(locks: RedisLocks) -> None:
    with locks.taken("reap", TTL_S):
        assert any(t.name == f"renew {KEY}" for t in threading.enumerate())
    assert not any(t.name == f"renew {KEY}" for t in threading.enumerate())


def test_without_redis_a_lock_cannot_be_acquired(clock: HandClock) -> None:
    with RedisServer() as server, client_of(server) as client:
        server.stop()
        locks = RedisLocks(client, clock=clock, ids=RandomIds(), who="h")
        with pytest.raises(Transient, match="redis: "), locks.taken("reap", TTL_S):
            pass
        with pytest.raises(Transient, match="redis: "):
            locks.holder("reap")


def test_without_redis_a_lock_is_held_until_its_deadline_and_no_longer(clock: HandClock) -> None:
    with RedisServer() as server, client_of(server) as client:
        locks = RedisLocks(client, clock=clock, ids=RandomIds(), who="h")
        with locks.taken("reap", TTL_S) as lease:
            assert lease is not None
            server.kill()
            clock.advance(TTL_S / 3)
            clock.advance(TTL_S / 3)
            assert lease.held()
            clock.advance(TTL_S / 3)
            assert not lease.held()


def test_when_redis_comes_back_with_the_lock_it_is_renewed_again(clock: HandClock) -> None:
    with RedisServer(appendonly=True) as server, client_of(server) as client:
        locks = RedisLocks(client, clock=clock, ids=RandomIds(), who="h")
        with locks.taken("reap", TTL_S) as lease:
            assert lease is not None
            server.stop()
            clock.advance(TTL_S / 3)
            eventually(lambda: clock.waiting == 1)
            server.start()
            eventually(renewals(client, clock, TTL_S / 3))
            clock.advance(TTL_S / 3 + 1)
            assert lease.held()


def test_when_redis_comes_back_empty_the_lock_is_lost(clock: HandClock) -> None:
    with RedisServer() as server, client_of(server) as client:
        locks = RedisLocks(client, clock=clock, ids=RandomIds(), who="h")
        with locks.taken("reap", TTL_S) as lease:
            assert lease is not None
            server.restart()
            clock.advance(TTL_S / 3)
            eventually(lambda: not lease.held())


def test_threads_of_one_process_never_hold_a_lock_at_the_same_time(client: Any) -> None:
    """Eight threads, each until it has held the lock five times; each holder counts the others."""
    locks = RedisLocks(client, clock=SystemClock(), ids=RandomIds(), who="h")
    together, guard = threading.Barrier(8), threading.Lock()
    inside: set[int] = set()
    crowds: list[int] = []

    def run(number: int) -> None:
        together.wait(10)
        held = 0
        while held < 5:
            with locks.taken("reap", TTL_S) as lease:
                if lease is None:
                    continue
                held += 1
                with guard:
                    inside.add(number)
                    crowds.append(len(inside))
                client.ping()
                with guard:
                    inside.remove(number)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert crowds == [1] * 40
