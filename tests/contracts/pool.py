"""The whole pool with real processes and real pods: one suite for every driver. A driver's tests run
it with a `ground` fixture of module scope, created in `folder`.

class TestPoolOnMyDriver(PoolContract):
    ...
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from pool.client import Pool, Worker
from pool.core.settings import Profile
from pool.core.states import LIVE, State
from pool.drivers.port import LABEL_BUSY, NOTE_DO_NOT_DISRUPT, Driver, Pod
from pool.store import schema
from tests.support.local_ground import MASTER_KEY, call
from tests.support.postgres_server import PostgresServer
from tests.support.scene import PoolGround
from tests.support.system import EVERYTHING, Load, System
from tests.support.waiting import eventually

WARM = 3
SOON_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of the deployment."""
    return tmp_path_factory.mktemp("system")


@pytest.fixture(scope="module")
def deployment(ground: PoolGround, folder: Path, postgres: PostgresServer) -> Iterator[System]:
    url = postgres.create_database(f"pool_{folder.name}_{folder.parent.name}".replace("-", "_"))
    with System(folder, url, settings=settings_on(ground)) as made:
        yield made.run(*EVERYTHING)


@pytest.fixture
def system(deployment: System) -> Iterator[System]:
    deployment.mend().wait_idle(WARM)
    yield deployment
    assert not deployment.wrongs()


@pytest.fixture
def pool(system: System) -> Iterator[Pool]:
    with Pool(system.redis.url, name="test") as made:
        yield made


@pytest.fixture
def driver(ground: PoolGround) -> Iterator[Driver]:
    with closing(ground.driver()) as made:
        yield made


def settings_on(ground: PoolGround, **default: Any) -> dict[str, Any]:
    """One profile that works, beside one that never starts."""
    bad = ground.unstartable(Profile(name="bad"))
    asked = {"image": bad.image, "command": list(bad.command), "warm_target": 2, "grace_s": 2}
    tables = ground.tables()
    key = {"master_key": MASTER_KEY.decode(), "hot_idle_ttl_s": 3}
    return {
        **tables,
        "pool": {**tables["pool"], **key},
        "profiles": {"default": {"warm_target": WARM, **default}, "bad": asked},
    }


def pod_of(driver: Driver, worker: Worker) -> Pod:
    found = driver.read(worker.worker_id)
    assert found is not None, f"{worker.worker_id} has no pod"
    return found


def state_of(system: System, worker_id: str) -> str:
    W = schema.workers
    with system.store.read() as tx:
        return str(tx.execute(select(W.c.state).where(W.c.id == worker_id)).scalar_one())


def uids(driver: Driver) -> dict[str, str]:
    return {pod.name: pod.uid for pod in driver.list().pods if not pod.terminating}


class PoolContract:
    def test_a_released_worker_is_granted_again_to_its_org(self, driver: Driver, pool: Pool) -> None:
        with pool.acquire("acme", wait_s=SOON_S) as first:
            pod = pod_of(driver, first)
            status, echo = call(pod, "POST", "/echo", first.auth, "hello")
            assert (status, echo["worker"]) == (200, first.worker_id)
            assert first.endpoint == pod.endpoint
            assert call(pod, "GET", "/echo", {**first.auth, "Authorization": "Bearer wrong"})[0] == 401
        with pool.acquire("acme", wait_s=SOON_S) as second:
            assert (second.worker_id, second.source) == (first.worker_id, "hot_idle")
            assert call(pod, "GET", "/echo", second.auth)[0] == 200
        with pool.acquire("bolt", wait_s=SOON_S) as other:
            assert other.worker_id != first.worker_id

    def test_busy_is_protected_and_released_is_cleared(self, driver: Driver, pool: Pool) -> None:
        with pool.acquire("guarded", ttl_s=60, wait_s=SOON_S) as held:
            eventually(lambda: pod_of(driver, held).labels[LABEL_BUSY] == "true", within_s=SOON_S)
            assert pod_of(driver, held).annotations[NOTE_DO_NOT_DISRUPT] == "true"
        eventually(lambda: pod_of(driver, held).labels[LABEL_BUSY] == "false", within_s=SOON_S)
        assert NOTE_DO_NOT_DISRUPT not in pod_of(driver, held).annotations

    def test_a_killed_pod_ends_its_claim_with_the_cause_and_is_replaced(
        self, system: System, driver: Driver, pool: Pool, ground: PoolGround
    ) -> None:
        held = pool.acquire("struck", wait_s=SOON_S, lease_s=5)
        ground.make_container_die(pod_of(driver, held))
        eventually(lambda: held.lost, within_s=SOON_S)
        assert system.claim(held.claim_id).ended_why == "worker_lost"
        assert state_of(system, held.worker_id) == State.LOST
        eventually(lambda: driver.read(held.worker_id) is None, within_s=SOON_S)
        eventually(lambda: held.worker_id not in driver.companions(), within_s=SOON_S)
        system.wait_idle(WARM)

    def test_a_parked_worker_is_deleted_after_its_ttl_with_its_pod_and_companions(
        self, system: System, driver: Driver, pool: Pool
    ) -> None:
        with pool.acquire("brief", ttl_s=1, wait_s=SOON_S) as held:
            pass
        eventually(lambda: state_of(system, held.worker_id) == State.RETIRED, within_s=SOON_S)
        eventually(lambda: driver.read(held.worker_id) is None, within_s=SOON_S)
        eventually(lambda: held.worker_id not in driver.companions(), within_s=SOON_S)

    def test_waiters_are_served_by_workers_that_become_ready(self, pool: Pool) -> None:
        with ThreadPoolExecutor(2 * WARM) as threads:
            asked = [threads.submit(pool.acquire, "crowd", wait_s=SOON_S, ttl_s=0) for _ in range(2 * WARM)]
            held = [call.result(timeout=SOON_S + 10) for call in asked]
        assert len({worker.worker_id for worker in held}) == 2 * WARM
        for worker in held:
            worker.release()

    def test_stopping_all_components_changes_no_pod_and_ends_no_claim(
        self, system: System, driver: Driver, pool: Pool
    ) -> None:
        """Some are stopped, some are killed."""
        held = pool.acquire("stays", wait_s=SOON_S, lease_s=5)
        session = pod_of(driver, held)
        assert call(session, "POST", "/sessions", held.auth)[0] == 200
        system.wait_idle(WARM)
        before = uids(driver)
        for name, part in system.parts.items():
            part.send(signal.SIGKILL if name in ("fleet", "passes") else signal.SIGTERM)
        for part in system.parts.values():
            part.ends()
        # Parked workers may reach their TTL, and slots of `bad` change; a stop or a start deletes
        # none.
        kept = {name for name, uid in before.items() if uids(driver).get(name) == uid}
        assert held.worker_id in kept
        assert len(kept) >= WARM + 1
        system.shift_clock(120)
        system.mend()
        first = held.lease_expires_at
        eventually(lambda: held.lease_expires_at > first, within_s=SOON_S)
        assert system.live_claims(org="stays") == [held.claim_id]
        assert pod_of(driver, held).uid == session.uid
        assert call(session, "GET", "/echo", held.auth)[0] == 200
        assert call(session, "DELETE", "/sessions", held.auth)[0] == 200
        assert held.release() == "released"

    def test_new_replicas_leave_pods_and_claims_of_old_replicas_alone(
        self, system: System, driver: Driver, pool: Pool
    ) -> None:
        held = pool.acquire("rolled", wait_s=SOON_S, lease_s=5)
        session = pod_of(driver, held)
        with Load(system.redis.url, orgs=("load",), threads=2) as load:
            load.goes_on(5)
            system.run("fleet-2", "passes-2")
            load.goes_on(5)
            for name in ("fleet", "passes"):
                assert system[name].terminate() == 0
                del system.parts[name]
            load.goes_on(10)
        assert not held.lost
        assert (pod_of(driver, held).uid, pod_of(driver, held).terminating) == (session.uid, False)
        assert held.release() == "released"

    def test_a_warm_target_of_zero_leaves_no_pod(
        self, system: System, driver: Driver, ground: PoolGround
    ) -> None:
        """The last test: it removes everything."""
        [passes] = [part for name, part in system.parts.items() if name.startswith("passes")]
        assert passes.terminate() == 0
        tables = settings_on(ground, warm_target=0)
        system.configure({**tables, "profiles": {"default": tables["profiles"]["default"]}})
        system.shift_clock(1000)
        system.mend()
        eventually(lambda: _live(system) == [], within_s=90, every_s=0.2)
        eventually(lambda: driver.list().pods == (), within_s=SOON_S, every_s=0.2)
        eventually(lambda: driver.companions() == (), within_s=SOON_S, every_s=0.2)


def _live(system: System) -> list[str]:
    W = schema.workers
    with system.store.read() as tx:
        return list(tx.execute(select(W.c.id).where(W.c.state.in_(sorted(LIVE)))).scalars())
