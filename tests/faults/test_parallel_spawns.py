"""Spawns run side by side up to the configured number and never beyond it, whoever is slow."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from pool.ids import RandomIds
from pool.records import By
from pool.settings import Profile
from pool.states import State
from pool.store import orgs, workers
from tests.support.system import System
from tests.support.waiting import eventually

SPAWNS, THREADS = 30, 12


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    settings = {
        "pool": {"fleet_threads": THREADS, "call_timeout_s": 30, "visibility_timeout_s": 120},
        "profiles": {"default": {"warm_target": 0, "grace_s": 1}},
    }
    with System(tmp_path, settings=settings) as made:
        made.run("fleet")
        yield made


def test_slow_creates_run_in_parallel_and_never_exceed_the_configured_number(system: System) -> None:
    """Each create is held up until the test lets it go, as a slow API server would."""
    ids = [RandomIds().worker() for _ in range(SPAWNS)]
    with system.store.write() as tx:
        orgs.take_slots(tx, SPAWNS, 0)
        workers.insert_slots(tx, Profile(grace_s=1), "rev", ids, By(who="test", why="test"))
    app = Celery("test", broker=system.redis.url, set_as_current=False)
    most = 0
    with _held_up(system, ids):
        for worker_id in ids:
            app.send_task("pool.spawn", kwargs={"worker_id": worker_id}, queue="fleet", ignore_result=True)

        def active() -> int:
            nonlocal most
            reply = app.control.inspect(timeout=2).active() or {}
            most = max(most, *(len(tasks) for tasks in reply.values()), 0) if reply else most
            return most

        eventually(lambda: active() >= THREADS, within_s=60)
        for _ in range(5):
            active()
        assert most == THREADS
        assert system.count(State.SPAWNING) == SPAWNS
    eventually(lambda: system.count(State.IDLE) == SPAWNS, within_s=120, every_s=0.2)
    app.close()


@contextlib.contextmanager
def _held_up(system: System, ids: list[str]) -> Iterator[None]:
    """Nobody can make these pods while their locks are ours."""
    pods = system.folder / "local" / "pods"
    eventually(pods.exists, within_s=30)
    with contextlib.ExitStack() as stack:
        for worker_id in ids:
            lock = stack.enter_context((pods / f"{worker_id}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
