"""Spawns run in parallel up to the configured number and never beyond it, also if creates are slow."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pool.core.ids import RandomIds
from pool.core.profiles import revision
from pool.core.records import By
from pool.core.settings import Profile
from pool.core.states import MoveReason, State
from pool.store import orgs, workers
from tests.support.opened_files import OpenedFiles
from tests.support.postgres_server import PostgresServer
from tests.support.system import Insider, System
from tests.support.waiting import eventually

SPAWNS, THREADS = 30, 12


@pytest.fixture
def system(tmp_path: Path, postgres: PostgresServer) -> Iterator[System]:
    settings = {
        "pool": {"fleet_threads": THREADS, "call_timeout_s": 30, "visibility_timeout_s": 120},
        "profiles": {"default": {"warm_target": 0, "grace_s": 1}},
    }
    with System(tmp_path, postgres.create_database(tmp_path.name), settings=settings) as made:
        made.run("fleet")
        yield made


def test_slow_creates_run_in_parallel_and_never_exceed_the_configured_number(system: System) -> None:
    """Each create blocks until the test releases it, as with a slow API server."""
    ids = [RandomIds().worker() for _ in range(SPAWNS)]
    profile = Profile(grace_s=1)
    with system.store.write() as tx:
        orgs.reserve_slots(tx, SPAWNS, 0)
        workers.insert_slots(tx, profile, revision(profile), ids, By(who="test", reason=MoveReason.DEMAND))
    insider = Insider(system)
    with _held_up(system, ids) as pods, OpenedFiles(pods) as opened:

        def under_way() -> int:
            """Return creates that have begun: each tries its pod's lock repeatedly."""
            return len([name for name in opened.names() if name.endswith(".lock")])

        for worker_id in ids:
            insider.order("pool.spawn", worker_id=worker_id)
        eventually(lambda: under_way() >= THREADS, within_s=60, every_s=0.05)
        # A worker that answers later calls has begun everything that it would begin.
        for _ in range(5):
            assert insider.app.control.ping(timeout=10, limit=1)
            assert under_way() == THREADS
        assert system.count(State.SPAWNING) == SPAWNS
    eventually(lambda: system.count(State.IDLE) == SPAWNS, within_s=120, every_s=0.2)
    insider.close()


@contextlib.contextmanager
def _held_up(system: System, ids: Sequence[str]) -> Iterator[Path]:
    """Lock these pods so that they cannot be created; return the paths of the locks."""
    pods = system.folder / "local" / "pods"
    eventually(pods.exists, within_s=30)
    with contextlib.ExitStack() as stack:
        for worker_id in ids:
            lock = stack.enter_context((pods / f"{worker_id}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield pods
