"""An operator changes the image in the file and restarts the control plane: real processes, real
pods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from pool.core.states import State
from pool.store import schema
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, Service, System
from tests.support.waiting import eventually

# Three starts of the whole control plane, on a machine that may be busy.
pytestmark = pytest.mark.timeout(400)

TARGET = 2


def _settings(image: str, **profile: Any) -> dict[str, Any]:
    return {
        "pool": {"rollout_step_percent": 50, "rollout_ready_s": 0},
        "profiles": {"default": {"warm_target": TARGET, "grace_s": 1, "image": image, **profile}},
    }


@pytest.fixture
def system(tmp_path: Path, postgres: PostgresServer) -> Iterator[System]:
    with System(tmp_path, postgres.create_database(tmp_path.name), settings=_settings("worker:1")) as made:
        made.run(*EVERYTHING)
        made.wait_idle(TARGET)
        yield made
        assert not made.wrongs()


def _idle(system: System) -> list[str]:
    W = schema.workers
    with system.store.read() as tx:
        return list(tx.execute(select(W.c.image).where(W.c.state == State.IDLE)).scalars())


def _image_of(system: System, worker_id: str) -> str:
    W = schema.workers
    with system.store.read() as tx:
        return str(tx.execute(select(W.c.image).where(W.c.id == worker_id)).scalar_one())


def _halted(system: System) -> dict[str, Any] | None:
    seen = json.loads(system.command("status", "--json", ok=(0, 1)))
    rollout: dict[str, Any] | None = seen["profiles"]["default"]["rollout"]
    return rollout if rollout is not None and rollout["progress"] == "halted" else None


def test_a_new_image_rolls_out_and_a_broken_one_halts_while_old_workers_serve(
    system: System,
) -> None:
    service = Service(system.redis.url)
    held = service.granted("acme", lease_s=3600, ttl_s=600)
    system.wait_idle(TARGET)

    system.configure(_settings("worker:2"))
    system.restart()
    warm: list[int] = []

    def rolled() -> bool:
        images = _idle(system)
        warm.append(len(images))
        return images == ["worker:2"] * TARGET

    eventually(rolled, within_s=90, every_s=0.05)
    assert min(warm) >= TARGET
    assert _image_of(system, held["worker_id"]) == "worker:1"
    assert held["claim_id"] in system.live_claims()
    assert service.call("release", held["claim_id"])["outcome"] == "released"
    assert [e.to_state for e in system.entries() if e.worker_id == held["worker_id"]][-1] != State.HOT_IDLE

    system.configure(_settings("worker:3", command=["false"]))
    system.restart()
    eventually(lambda: _halted(system) is not None, within_s=90, every_s=1)
    rollout = _halted(system)
    assert rollout is not None
    assert rollout["image"] == "worker:3"
    assert "exit code 1" in rollout["why"]
    assert _idle(system) == ["worker:2"] * TARGET
    granted = service.granted("acme", ttl_s=600)
    assert _image_of(system, granted["worker_id"]) == "worker:2"
    assert service.call("release", granted["claim_id"])["outcome"] == "released"
    assert system.count(State.HOT_IDLE) == 1
    service.close()
