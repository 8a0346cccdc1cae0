"""Two versions side by side: client and server of the previous version with those of this one, and an
upgrade under load, process by process, and back.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pool.client import Pool
from tests.support import previous
from tests.support.callers import Callers
from tests.support.postgres_server import PostgresServer
from tests.support.standing import passes_go_on
from tests.support.system import EVERYTHING, ROOT, System
from tests.support.waiting import eventually

LONG = os.environ.get("WARMPOOL_TEST_LONG") == "1"
WARM = 4
HELD = 30 if LONG else 4

# What a service does, with whatever client is on its path.
SERVICE = """
import asyncio, sys, warmpool
from warmpool import AsyncPool, Pool, Refused

with Pool(sys.argv[1], name="service") as pool:
    with pool.acquire("acme", wait_s=30, lease_s=10) as worker:
        claim = worker.let_go()
    with pool.adopt(claim) as worker:
        print(worker.source in ("warm", "hot_idle"))
    print(pool.cancel("acme", "never sent"))
    try:
        pool.acquire("acme", "no-such-profile")
    except Refused as no:
        print(no.reason)

async def asynchronous():
    async with AsyncPool(sys.argv[1], name="service") as pool, pool.acquire("acme", wait_s=30) as worker:
        print(bool(worker.claim_id))

asyncio.run(asynchronous())
print(warmpool.__file__)
"""


@pytest.mark.timeout(600)
def test_an_upgrade_under_load_and_back_loses_nothing(tmp_path: Path, postgres: PostgresServer) -> None:
    old = previous.tree()
    url = postgres.create_database(tmp_path.name)
    settings = {
        "pool": {"max_workers": HELD + 20, "hot_idle_ttl_s": 900},
        "profiles": {"default": {"warm_target": WARM, "grace_s": 1}},
    }
    with System(tmp_path, url, settings=settings) as system:
        _migrate(system, old)
        system.tree = old
        system.run(*EVERYTHING).wait_idle(WARM)
        _serves(system, _client_of(ROOT))
        with Pool(system.redis.url) as pool, Callers(system.redis.url, org="bolt") as callers:
            held = [pool.acquire("acme", lease_s=6, wait_s=60) for _ in range(HELD)]
            callers.goes_on()
            _migrate(system, ROOT)
            # An old pod that restarts during the rollout.
            _replace(system, "passes", old)
            for way in (ROOT, old) if LONG else (ROOT,):
                for name in EVERYTHING:
                    _replace(system, name, way)
                    callers.goes_on(4)
                _serves(system, _client_of(old if way is ROOT else ROOT))
                passes_go_on(system, within_s=60)
                assert not [worker.claim_id for worker in held if worker.lost]
            before = [worker.lease_expires_at for worker in held]
            eventually(
                lambda: all(w.lease_expires_at > b for w, b in zip(held, before, strict=True)), within_s=60
            )
            assert set(system.live_claims(org="acme")) == {worker.claim_id for worker in held}
            for worker in held:
                worker.release()
        assert callers.complaints == []
        assert system.wrongs() == []
        logs = "".join(part.log() for part in system.parts.values())
        assert "slot_of_another_configuration" not in logs


def _replace(system: System, name: str, tree: Path) -> None:
    """End a process as a rollout does, and start it from this tree."""
    part = system[name]
    assert part.terminate() == 0, part.tail()
    part.tree = tree
    part.start()
    part.wait_ready()
    if tree != ROOT:
        assert Path(f"/proc/{part.pid}/cwd").readlink() == tree


def _migrate(system: System, tree: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pool.ops.cli", "migrate"],
        cwd=tree,
        env=system.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _client_of(tree: Path) -> Path:
    return ROOT if tree == ROOT else previous.client_wheel()


def _serves(system: System, client: Path) -> None:
    """Run a service with this client: a tree, or a wheel."""
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("WARMPOOL_")},
        "PYTHONPATH": str(client),
    }
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, system.redis.url],
        cwd="/",
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    *printed, where = done.stdout.splitlines() or [""]
    assert printed == ["True", "unknown_request", "unknown_profile", "True"], done.stdout + done.stderr
    assert where.startswith(str(client))
