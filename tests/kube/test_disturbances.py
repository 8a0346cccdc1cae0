"""The whole pool while its cluster is disturbed: a node is drained, the API server is killed, a
third of its answers are errors. Claims stay, warm workers are granted, and the pool converges.

`WARMPOOL_TEST_LONG=1` keeps the API server down for a minute; otherwise just long enough for every
view to be too old to act on.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml

from pool.client import Pool
from pool.core.ids import WorkerId
from pool.core.states import State
from pool.drivers.kubernetes import manifests
from pool.drivers.port import LABEL_BUSY
from pool.passes.running import STALE_AFTER_S
from pool.store import passes, workers
from tests.support.fault_proxy import FaultProxy, ProxyFault
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_api import Object
from tests.support.kube_cluster import ClusterPart, KubeCluster
from tests.support.kube_ground import KubeGround
from tests.support.local_ground import call
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, System
from tests.support.waiting import eventually

LONG = os.environ.get("WARMPOOL_TEST_LONG") == "1"
AWAY_S = 60.0 if LONG else STALE_AFTER_S + 5
WARM = 3
SOON_S = 240.0
FAULTY = 0.3

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True, kw_only=True)
class DisturbedDeployment:
    """A pool that reaches its cluster through a proxy, as its least-privileged user."""

    system: System
    cluster: KubeCluster
    ground: KubeGround
    proxy: FaultProxy

    def pods(self) -> dict[str, Object]:
        """Return pods that are not terminating."""
        found = self.cluster.api.get(self.ground.path("pods"))["items"]
        return {p["metadata"]["name"]: p for p in found if "deletionTimestamp" not in p["metadata"]}

    def is_busy(self, name: str) -> bool:
        return bool(self.pods()[name]["metadata"]["labels"][LABEL_BUSY] == "true")

    def troubles(self) -> list[str]:
        """Return what differs from the final state: the number of idle workers, and for every live
        row a pod with its companion and no others.
        """
        labelled = {"labelSelector": "app.kubernetes.io/managed-by=warmpool"}
        secrets = self.cluster.api.get(self.ground.path("secrets"), **labelled)["items"]
        with self.system.store.read() as tx:
            rows = {str(w.id): w for w in workers.live(tx)}
        there: dict[str, set[str]] = {
            "row": set(rows),
            "pod": set(self.pods()),
            "companion": {s["metadata"]["name"] for s in secrets},
        }
        found = [
            f"{name}: no {kind}, {rows[name].state if name in rows else 'no row'}"
            for name in set[str]().union(*there.values())
            for kind, names in there.items()
            if name not in names
        ]
        idle = sum(w.state is State.IDLE for w in rows.values())
        return found + ([] if idle == WARM else [f"{idle} idle"])

    def settles(self) -> None:
        try:
            eventually(lambda: not self.troubles(), within_s=SOON_S, every_s=0.5)
        except AssertionError as exc:
            raise AssertionError(f"{self.troubles()}\n{self.system.tails()}") from exc


@pytest.fixture(scope="module")
def everything(
    servers: None, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DisturbedDeployment]:
    with (
        KubeCluster(ClusterPart.CONTROLLERS, ClusterPart.SCHEDULER) as cluster,
        FaultProxy(cluster.access) as proxy,
        HollowKubelet(cluster, node="first") as kubelet,
    ):
        ground = KubeGround(cluster, kubelet, cluster.namespace("disturbed"), proxy)
        budget = yaml.safe_load(Path(manifests.__file__).with_name("pdb.yaml").read_text())
        cluster.api.create(f"/apis/policy/v1/namespaces/{ground.namespace}/poddisruptionbudgets", budget)
        settings = {
            "pool": {"driver": "kubernetes", "hot_idle_ttl_s": 600, "surplus_ttl_s": 5},
            "kubernetes": ground.tables()["kubernetes"] | {"kubeconfig": str(ground.through_proxy)},
            "profiles": {"default": {"warm_target": WARM}},
        }
        url = postgres.create_database("disturbed")
        with System(tmp_path_factory.mktemp("disturbed"), url, settings=settings) as system:
            system.run(*EVERYTHING)
            yield DisturbedDeployment(system=system, cluster=cluster, ground=ground, proxy=proxy)


@pytest.fixture
def deployment(everything: DisturbedDeployment) -> Iterator[DisturbedDeployment]:
    everything.settles()
    yield everything
    assert not everything.system.wrongs()


@pytest.fixture
def pool(deployment: DisturbedDeployment) -> Iterator[Pool]:
    with Pool(deployment.system.redis.url) as made:
        yield made


def test_with_a_third_of_all_calls_refused_the_pool_still_converges(
    deployment: DisturbedDeployment, pool: Pool
) -> None:
    chance, refused = random.Random(7), []

    def rule(method: str, path: str) -> ProxyFault | None:
        if chance.random() >= FAULTY:
            return None
        refused.append(path)
        return ProxyFault(status=chance.choice([429, 500]))

    held = pool.acquire("held", wait_s=SOON_S, lease_s=10)
    deployment.proxy.fault = rule
    try:
        with ThreadPoolExecutor(6) as threads:
            asked = [threads.submit(pool.acquire, f"org-{n}", wait_s=SOON_S, ttl_s=0) for n in range(18)]
            for each in asked:
                each.result(timeout=SOON_S + 30).release()
        assert not held.lost
        assert deployment.pods()[held.worker_id]["metadata"]["labels"][LABEL_BUSY] == "true"
        assert held.release("tainted") == "released"
        deployment.settles()
    finally:
        deployment.proxy.fault = lambda method, path: None
    assert len(refused) > 20, "hardly anything was refused"


def is_over(end: float) -> bool:
    return time.monotonic() >= end


def test_while_the_api_server_is_killed_warm_acquires_work_and_nothing_is_deleted(
    deployment: DisturbedDeployment, pool: Pool
) -> None:
    system, cluster = deployment.system, deployment.cluster
    held = pool.acquire("held", wait_s=SOON_S, lease_s=5)
    deployment.settles()
    before = {name: pod["metadata"]["uid"] for name, pod in deployment.pods().items()}
    cluster.kill_apiserver()
    began, taken = time.monotonic(), []
    for number in range(WARM):
        # The last one when it has been down for its whole time.
        due_s = AWAY_S * (number + 1) / WARM
        eventually(partial(is_over, began + due_s), within_s=AWAY_S + 30, every_s=0.2)
        taken.append(pool.acquire(f"during-{number}", lease_s=5))
    assert [worker.source for worker in taken] == ["warm"] * WARM
    assert {worker.worker_id for worker in taken} < set(before)
    leaves = taken.pop()
    assert leaves.release("tainted") == "released"
    # No process acts on an old view.
    eventually(lambda: outcome(system, "guard_disruption") == "failed", within_s=30)
    assert all(part.alive() for part in system.parts.values())
    cluster.restart_apiserver()
    kept = {name: uid for name, uid in before.items() if name != leaves.worker_id}
    deployment.settles()
    now = {name: pod["metadata"]["uid"] for name, pod in deployment.pods().items()}
    assert kept.items() <= now.items()
    assert leaves.worker_id not in now
    for worker in (held, *taken):
        assert not worker.lost
        eventually(partial(deployment.is_busy, worker.worker_id), within_s=SOON_S)
        assert worker.release("tainted") == "released"


def outcome(system: System, name: str) -> str | None:
    with system.store.read() as tx:
        return passes.get(tx, name).last_outcome


def test_a_busy_worker_stays_in_the_pool_if_its_node_is_uncordoned(
    deployment: DisturbedDeployment, pool: Pool
) -> None:
    cluster = deployment.cluster
    held = pool.acquire("held", wait_s=SOON_S, lease_s=5, ttl_s=60)
    deployment.settles()
    cluster.kubectl("cordon", "first")
    try:
        assert "cordoned" in eventually(lambda: held.leaving, within_s=SOON_S)
    finally:
        cluster.kubectl("uncordon", "first")
    eventually(lambda: held.leaving is None, within_s=SOON_S)
    assert held.release() == "released"
    with deployment.system.store.read() as tx:
        row = workers.get(tx, WorkerId(held.worker_id))
    assert row is not None
    assert row.state is State.HOT_IDLE
    again = pool.acquire("held", wait_s=SOON_S, lease_s=5)
    assert (again.worker_id, again.release("tainted")) == (held.worker_id, "released")


def test_on_a_drained_node_an_idle_worker_drains_at_once_and_a_busy_one_when_released(
    deployment: DisturbedDeployment, pool: Pool
) -> None:
    cluster, ground = deployment.cluster, deployment.ground
    held = pool.acquire("held", wait_s=SOON_S, lease_s=5)
    deployment.settles()
    eventually(
        lambda: deployment.pods()[held.worker_id]["metadata"]["labels"][LABEL_BUSY] == "true", within_s=SOON_S
    )
    budget = f"/apis/policy/v1/namespaces/{ground.namespace}/poddisruptionbudgets/warmpool-busy"
    eventually(lambda: cluster.api.get(budget).get("status", {}).get("expectedPods") == 1, within_s=SOON_S)
    idle = set(deployment.pods()) - {held.worker_id}
    with HollowKubelet(cluster, node="second"):
        words = [
            "drain",
            "first",
            "--force",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            f"--timeout={SOON_S:.0f}s",
        ]
        with ThreadPoolExecutor(1) as threads:
            draining = threads.submit(cluster.kubectl, *words)
            deployment.system.wait_idle(WARM, within_s=SOON_S)
            eventually(lambda: idle.isdisjoint(deployment.pods()), within_s=SOON_S, every_s=0.2)
            deployment.settles()
            nodes = {name: pod["spec"]["nodeName"] for name, pod in deployment.pods().items()}
            assert nodes.pop(held.worker_id) == "first"
            assert set(nodes.values()) == {"second"}
            assert call(held, "GET", "/echo", held.auth)[0] == 200
            assert not held.lost
            assert "cordoned" in eventually(lambda: held.leaving, within_s=SOON_S)
            assert not draining.done()
            assert held.release() == "released"
            drained: subprocess.CompletedProcess[str] = draining.result(timeout=SOON_S + 30)
        assert drained.returncode == 0, drained.stderr
        assert held.worker_id not in deployment.pods()
        deployment.settles()
        # Restore what the other tests expect.
        cluster.kubectl("uncordon", "first")
