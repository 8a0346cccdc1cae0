"""Locks are deleted, taken over, or held by a frozen process, while the pool is in use: no pass
stays dark.

`make chaos` runs the long form: 200 losses, 10 of them by freezing the holder. `make test` runs a
short one.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from pool.core.periods import PERIODS_S, lock_ttl_s
from pool.store import passes
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, Load, System
from tests.support.waiting import eventually

LONG = os.environ.get("WARMPOOL_TEST_LONG") == "1"
LOSSES, FREEZES = (190, 10) if LONG else (5, 1)
# The passes with a period that is short enough for this test.
ROBBED = ("guard_disruption", "reap", "reconcile_warm", "sweep_stuck", "reconcile_headroom")
# What a busy machine may add to a period.
SLACK_S = 6.0

pytestmark = pytest.mark.timeout(3600 if LONG else 300)


@pytest.fixture
def system(tmp_path: Path, postgres: PostgresServer) -> Iterator[System]:
    url = postgres.create_database("lock_losses")
    with System(tmp_path, url, settings={"profiles": {"default": {"warm_target": 4, "grace_s": 2}}}) as made:
        made.run(*EVERYTHING, "passes-2", "beat-2").wait_idle(4)
        yield made


def test_no_pass_is_dark_for_longer_than_its_locks_ttl_and_a_period(system: System) -> None:
    robber = Robber(system)
    with Load(system.redis.url, threads=2) as load:
        eventually(lambda: all(robber.age(name) is not None for name in ROBBED), within_s=60)
        while robber.losses.total() < LOSSES:
            robber.rob_one()
        for _ in range(FREEZES):
            robber.freeze_one()
        load.goes_on()
    assert robber.too_dark == [], (robber.longest, robber.too_dark[:3])
    assert system.wrongs() == []
    print(f"losses {dict(robber.losses)}, longest dark {robber.longest}")


class Robber:
    """Takes locks from their holders, one pass at a time, and measures how long each pass is
    without success.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._redis = Redis.from_url(system.redis.url, decode_responses=True)
        self._redis.config_set("notify-keyspace-events", "K$")
        self._events = self._redis.pubsub()
        self._events.psubscribe("__keyspace@0__:warmpool.lock.*")
        self._chance = random.Random(7)
        self._robbed_at: dict[str, Any] = {}
        self.losses: Counter[str] = Counter()
        self.longest: dict[str, float] = {}
        self.too_dark: list[str] = []

    def rob_one(self) -> None:
        """The next run of any pass that has succeeded since its last loss loses its lock while it
        works.
        """
        found = eventually(self._next_lock, within_s=60, every_s=0)
        name, key = found
        how = self._chance.choice(["deleted", "stolen"])
        if how == "deleted":
            lost = bool(self._redis.delete(key))
        else:
            lost = bool(self._redis.set(key, "a thief", xx=True, px=int(lock_ttl_s(name) * 1000)))
        if lost:
            self.losses[how] += 1
            self._robbed_at[name] = self._success_of(name)
        self._look()

    def freeze_one(self) -> None:
        """The holder of the next lock is frozen in the middle of its run, for longer than the
        lock's TTL.
        """
        name, key = eventually(self._next_lock, within_s=60, every_s=0)
        holder = self._redis.get(key)
        pid = (
            int(str(holder).rpartition("/")[0].rpartition(":")[2]) if str(holder).startswith("passes@") else 0
        )
        part = next((p for p in self._system.parts.values() if p.alive() and p.pid == pid), None)
        if part is None:
            return self.freeze_one()
        before = self._success_of(name)
        part.send(signal.SIGSTOP)
        try:
            limit_s = lock_ttl_s(name) + 2 * PERIODS_S[name] + 60
            eventually(lambda: self._moved_on(name, before), within_s=limit_s, every_s=0.2)
        finally:
            part.send(signal.SIGCONT)
        self.losses["frozen"] += 1
        self._wait_until_all_recovered()
        return None

    def _wait_until_all_recovered(self) -> None:
        """A frozen process may have held the locks of several passes; the limit applies to one loss
        at a time.
        """
        before = {name: self._success_of(name) for name in ROBBED}
        eventually(
            lambda: all(self._moved_on(name, before[name]) for name in ROBBED), within_s=120, every_s=0.2
        )

    def age(self, name: str) -> float | None:
        with self._system.store.snapshot() as tx:
            from pool.store import now

            row = passes.get(tx, name)
            return None if row.last_success_at is None else (now(tx) - row.last_success_at).total_seconds()

    def _next_lock(self) -> tuple[str, str] | None:
        message = self._events.get_message(ignore_subscribe_messages=True, timeout=0.2)
        if message is None:
            self._look()
            return None
        key = str(message["channel"]).partition(":")[2]
        name = key.removeprefix("warmpool.lock.")
        if name not in ROBBED or self._robbed_at.get(name) == self._success_of(name):
            return None
        return name, key

    def _moved_on(self, name: str, before: Any) -> bool:
        self._look()
        return bool(self._success_of(name) != before)

    def _success_of(self, name: str) -> Any:
        with self._system.store.read() as tx:
            return passes.get(tx, name).last_success_at

    def _look(self) -> None:
        """Return how long each pass has been without success."""
        for name in ROBBED:
            age_s = self.age(name) or 0.0
            self.longest[name] = max(self.longest.get(name, 0.0), age_s)
            allowed_s = PERIODS_S[name] + lock_ttl_s(name) + PERIODS_S[name] + SLACK_S
            if age_s > allowed_s:
                self.too_dark.append(
                    f"{name}: {age_s:.1f} s without success, at most {allowed_s:.1f} s allowed"
                )
