"""The runner with a real Redis: one run at a time, a lost lock stops the run and not the pass, an
outage raises nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from pool.broker.locks import RedisLocks
from pool.core.clock import SystemClock
from pool.core.ids import RandomIds
from pool.core.periods import PERIODS_S, lock_ttl_s, tick_expires_s
from pool.core.states import State
from pool.passes import PASSES, fallback
from pool.passes.running import Pass, Run, run_once
from pool.store import passes
from tests.support.redis_server import RedisServer
from tests.support.world import World


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.close()


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[Redis]:
    client = Redis.from_url(redis_server.url, socket_timeout=2, socket_connect_timeout=2)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def locked(world: World, redis: Redis) -> World:
    """A pool with locks in Redis."""
    world.deps = replace(
        world.deps, locks=RedisLocks(redis, clock=SystemClock(), ids=RandomIds(), who="test")
    )
    return world


# The pass with the shortest lock: its loss is noticed first.
_SHORT = "guard_disruption"


def _key(name: str = "reap") -> str:
    return f"warmpool.lock.{name}"


def test_a_run_holds_its_lock_while_it_works_and_releases_it_afterwards(locked: World, redis: Redis) -> None:
    seen: list[Any] = []
    what = Pass(name="reap", run=lambda run: seen.append(redis.get(_key())))
    assert run_once(locked.deps, what)["outcome"] == "ok"
    assert seen[0].startswith(b"test/")
    assert redis.get(_key()) is None


def test_a_lock_held_by_another_process_skips_the_run_without_an_error(locked: World, redis: Redis) -> None:
    redis.set(_key(), "another run")
    assert run_once(locked.deps, PASSES["reap"])["outcome"] == "held_elsewhere"
    assert redis.get(_key()) == b"another run"
    with locked.store.read() as tx:
        assert passes.get(tx, "reap").last_attempt_at is None


@pytest.mark.parametrize("how", ["deleted", "stolen"])
def test_a_lock_lost_during_a_run_stops_it_at_its_next_step_and_the_next_period_runs(
    locked: World, redis: Redis, how: str
) -> None:
    steps: list[int] = []

    def long(run: Run) -> None:
        for n in range(1000):
            run.acts("step")
            steps.append(n)
            if n == 0:
                redis.delete(_key(_SHORT)) if how == "deleted" else redis.set(_key(_SHORT), "a thief")
                _until_noticed(run)

    assert run_once(locked.deps, Pass(name=_SHORT, run=long))["outcome"] == "interrupted"
    assert steps == [0]
    assert redis.get(_key(_SHORT)) == (None if how == "deleted" else b"a thief")
    redis.delete(_key(_SHORT))
    locked.pass_time(5)
    assert run_once(locked.deps, PASSES[_SHORT])["outcome"] == "ok"


def test_repeated_lock_losses_never_end_a_pass_for_good(locked: World, redis: Redis) -> None:
    """Each loss is followed by a successful run, for any number of losses."""
    for n in range(4):
        locked.pass_time(5)

        def robbed(run: Run, n: int = n) -> None:
            redis.set(_key(_SHORT), f"thief {n}")
            _until_noticed(run)
            run.raise_if_interrupted()

        assert run_once(locked.deps, Pass(name=_SHORT, run=robbed))["outcome"] == "interrupted"
        redis.delete(_key(_SHORT))
        locked.pass_time(5)
        assert run_once(locked.deps, PASSES[_SHORT])["outcome"] == "ok"


def test_two_beats_run_a_pass_once_per_period(locked: World) -> None:
    outcomes = [run_once(locked.deps, PASSES["reap"])["outcome"] for _ in range(3)]
    assert outcomes == ["ok", "not_due", "not_due"]
    locked.pass_time(PERIODS_S["reap"] / 2 + 0.1)
    assert run_once(locked.deps, PASSES["reap"])["outcome"] == "ok"


def test_a_pass_run_by_an_operator_runs_unless_it_is_paused(locked: World) -> None:
    hourly = PASSES["collect_garbage"]
    assert [run_once(locked.deps, hourly)["outcome"] for _ in range(2)] == ["ok", "not_due"]
    assert [run_once(locked.deps, hourly, by_hand=True)["outcome"] for _ in range(2)] == ["ok", "ok"]
    with locked.store.write() as tx:
        passes.set_paused(tx, hourly.name, paused=True, by="me")
    assert run_once(locked.deps, hourly, by_hand=True)["outcome"] == "paused"
    assert run_once(locked.deps, hourly, by_hand=True, dry_run=True)["outcome"] == "ok"


def test_without_redis_passes_stop_without_an_error(world: World) -> None:
    gone = Redis.from_url("redis://127.0.0.1:1", socket_timeout=0.2, socket_connect_timeout=0.2)
    world.deps = replace(world.deps, locks=RedisLocks(gone, clock=SystemClock(), ids=RandomIds(), who="test"))
    assert run_once(world.deps, PASSES["reap"])["outcome"] == "unreachable"
    with world.store.read() as tx:
        assert passes.get(tx, "reap").last_success_at is None
    gone.close()


def test_a_paused_pass_does_not_run_and_neither_does_its_fallback(locked: World) -> None:
    with locked.store.write() as tx:
        passes.set_paused(tx, "reap", paused=True, by="me")
    assert run_once(locked.deps, PASSES["reap"])["outcome"] == "not_due"
    locked.pass_time(1000)
    assert not fallback.reap_if_dark(locked.deps, threading.Event())
    with locked.store.write() as tx:
        passes.set_paused(tx, "reap", paused=False, by="me")
    assert run_once(locked.deps, PASSES["reap"])["outcome"] == "ok"


def test_a_stopping_process_stops_its_run_and_releases_its_lock(locked: World, redis: Redis) -> None:
    stopping = threading.Event()

    def told_to_end(run: Run) -> None:
        stopping.set()
        run.raise_if_interrupted()

    assert (
        run_once(locked.deps, Pass(name="reap", run=told_to_end), stopping=stopping.is_set)["outcome"]
        == "interrupted"
    )
    assert redis.get(_key()) is None


def test_last_success_is_written_only_after_the_reads_succeeded(locked: World) -> None:
    locked.driver.age_s = 1000
    assert run_once(locked.deps, PASSES["sweep_orphans"])["outcome"] == "stale"
    with locked.store.read() as tx:
        row = passes.get(tx, "sweep_orphans")
    assert row.last_attempt_at is not None
    assert row.last_success_at is None
    locked.driver.age_s = 0
    locked.pass_time(60)
    assert run_once(locked.deps, PASSES["sweep_orphans"])["outcome"] == "ok"


def test_success_that_cannot_be_recorded_is_a_failure_with_its_cause(
    locked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise RuntimeError("no such column")

    monkeypatch.setattr("pool.store.observed_counts.record", refuses)
    with pytest.raises(RuntimeError, match="no such column"):
        run_once(locked.deps, PASSES["reap"])
    with locked.store.read() as tx:
        row = passes.get(tx, "reap")
    assert row.last_success_at is None
    assert (row.last_outcome, row.failures) == ("failed", 1)
    assert row.last_detail == "RuntimeError: no such column"


def test_the_fallback_reaps_what_is_overdue_without_beat_and_redis_and_ends_no_lease(world: World) -> None:
    parked, busy = world.warm(2)
    world.release(world.granted("acme", ttl_s=10).claim_id)
    granted = world.granted("bolt", lease_s=5)
    parked, busy = next(w.id for w in world.workers(State.HOT_IDLE)), granted.worker_id
    world.broker.down = True
    world.broker.sent.clear()
    world.pass_time(60)
    assert fallback.reap_if_dark(world.deps, threading.Event())
    assert world.state_of(parked) is State.RETIRED
    assert parked not in world.driver.pods
    assert world.state_of(busy) is State.HOT
    assert world.deps.metrics.fallback_active._value.get() == 1
    with world.store.read() as tx:
        assert passes.get(tx, "reap").last_success_at is None


def test_the_fallback_ends_no_lease_although_a_canary_has_just_passed(world: World) -> None:
    """Where `reap` is dark the lane may be closed a moment later; the table has only the past."""
    world.warm(1)
    granted = world.granted("acme", lease_s=5)
    for _ in range(2):
        world.canary()
        world.pass_time(8)
    world.canary()
    assert fallback.reap_if_dark(world.deps, threading.Event())
    assert world.state_of(granted.worker_id) is State.HOT
    world.run_pass("reap")
    assert world.state_of(granted.worker_id) is State.DRAINING


def test_the_fallback_keeps_the_floor(world: World) -> None:
    world.org("acme", hot_idle_floor=1)
    world.warm(1)
    world.release(world.granted("acme", ttl_s=10).claim_id)
    world.pass_time(60)
    fallback.reap_if_dark(world.deps, threading.Event())
    assert len(world.workers(State.HOT_IDLE)) == 1


def test_the_fallback_is_quiet_while_reap_succeeds(locked: World) -> None:
    run_once(locked.deps, PASSES["reap"])
    assert not fallback.reap_if_dark(locked.deps, threading.Event())
    locked.pass_time(16)
    assert fallback.reap_if_dark(locked.deps, threading.Event())
    run_once(locked.deps, PASSES["reap"])
    assert not fallback.reap_if_dark(locked.deps, threading.Event())
    assert locked.deps.metrics.fallback_active._value.get() == 0


@pytest.mark.parametrize("name", list(PASSES))
def test_two_concurrent_runs_end_like_one(world: World, name: str) -> None:
    """Without any lock: correctness never depends on it."""
    from tests.integration.test_passes import _something_of_everything

    _something_of_everything(world)
    start = threading.Barrier(2)
    raised: list[BaseException] = []

    def run() -> None:
        start.wait()
        try:
            world.run_pass(name)
        except BaseException as exc:  # noqa: BLE001
            raised.append(exc)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised
    world.check()
    assert len(world.workers(State.SPAWNING)) <= 3
    world.settle()
    world.run_pass(name)
    world.check()


def test_lock_ttl_and_tick_expiry_follow_from_the_period() -> None:
    for name, period_s in PERIODS_S.items():
        assert lock_ttl_s(name) == min(15, 1.5 * period_s)
        assert tick_expires_s(name) == max(10, 3 * min(period_s, 60))


def _until_noticed(run: Run) -> None:
    """Wait until the lease's own thread has tried to renew the lost lock."""
    from tests.support.waiting import eventually

    eventually(lambda: not run.still_ours(), within_s=10)
