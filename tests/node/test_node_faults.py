"""What happens to a node and to the containers on it, while a claim is held: the claim lives."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from pool.client import Worker
from pool.core.errors import PoolError, Transient
from pool.core.ids import new_task_id
from tests.support.kube_api import Object
from tests.support.node_cluster import NAME
from tests.support.node_release import ChartRelease, container_of, is_ready
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)

LEASE_S = 10
LONG = pytest.mark.skipif(not os.environ.get("WARMPOOL_TEST_LONG"), reason="WARMPOOL_TEST_LONG=1 selects it")
SERVING = ("acquire", "passes", "redis", "postgres")
OTHERS = ("beat", "bind", "board", "exporter", "fleet", "flower")
COMPONENTS = [*SERVING, *(pytest.param(component, marks=LONG) for component in OTHERS)]


@contextmanager
def held(release: ChartRelease) -> Iterator[Worker]:
    """Hold a claim whose lease is shorter than a fault, beside a caller that acquires and releases
    all the time. It repeats a request while there is no answer; none may be refused, and in the end
    it is served.
    """
    stop = threading.Event()
    failures: list[PoolError] = []
    served: list[str] = []

    def call() -> None:
        request = new_task_id()
        while not stop.is_set():
            try:
                with other.acquire("other", wait_s=60, ttl_s=0, request_id=request) as one:
                    served.append(one.claim_id)
            except Transient:
                stop.wait(0.5)
                continue
            except PoolError as exc:
                failures.append(exc)
            request = new_task_id()
            stop.wait(0.5)

    caller = threading.Thread(target=call, daemon=True)
    with release.client() as pool, release.client("other") as other:
        worker = pool.acquire("acme", wait_s=60, lease_s=LEASE_S)
        caller.start()
        try:
            yield worker
            count = len(served)
            eventually(lambda: failures or len(served) > count, within_s=120, every_s=0.2)
            # Long enough that a claim which is not renewed would end.
            assert not worker.wait_lost(LEASE_S + 5), worker.cause
        finally:
            stop.set()
            caller.join(120)
        assert failures == []
        assert worker.release() == "released"


@pytest.mark.parametrize("component", COMPONENTS)
def test_claim_lives_when_a_container_is_killed(pool: ChartRelease, component: str) -> None:
    with held(pool):
        pod = pool.pods(component)[0]
        before = container_of(pod)
        pool.node.kill(before["containerID"])
        eventually(partial(has_restarted, pool, pod, before["restartCount"]), within_s=300, every_s=0.5)
        pool.wait_ready(component)


@LONG
@pytest.mark.parametrize("component", [*SERVING, *OTHERS])
def test_claim_lives_when_a_pod_is_deleted(pool: ChartRelease, component: str) -> None:
    with held(pool):
        pod = pool.pods(component)[0]["metadata"]
        pool.node.api.delete(f"/api/v1/namespaces/{pool.namespace}/pods/{pod['name']}")
        eventually(partial(is_replaced, pool, component, pod["uid"]), within_s=300, every_s=0.5)


def test_drain_waits_for_the_busy_worker_and_removes_idle_ones(pool: ChartRelease) -> None:
    node = pool.node
    with pool.client() as client:
        worker = client.acquire("acme", wait_s=60, lease_s=LEASE_S)
        idle = [p["metadata"]["name"] for p in pool.warm() if p["metadata"]["name"] != worker.pod]
        options = ("--force", "--delete-emptydir-data", "--pod-selector=warmpool.dev/role=worker")
        with node.cluster.start_kubectl("drain", NAME, *options) as draining:
            eventually(partial(all_gone, pool, idle), within_s=120, every_s=0.5)
            eventually(lambda: worker.leaving, within_s=60, every_s=0.2)
            assert draining.poll() is None
            assert not worker.wait_lost(LEASE_S + 5), worker.cause
            assert worker.release() == "released"
            assert draining.wait(120) == 0
        assert pool.worker_pod(worker.pod) is None
    assert node.kubectl("uncordon", NAME).returncode == 0


def test_busy_worker_no_longer_must_leave_after_uncordon(pool: ChartRelease) -> None:
    with pool.client() as client:
        worker = client.acquire("acme", wait_s=60, lease_s=LEASE_S)
        assert pool.node.kubectl("cordon", NAME).returncode == 0
        eventually(lambda: worker.leaving, within_s=60, every_s=0.2)
        assert pool.node.kubectl("uncordon", NAME).returncode == 0
        eventually(lambda: not worker.leaving, within_s=120, every_s=0.2)
        worker.release()


def has_restarted(release: ChartRelease, pod: Object, count: int) -> bool:
    found = release.node.api.find(f"/api/v1/namespaces/{release.namespace}/pods/{pod['metadata']['name']}")
    return found is not None and container_of(found)["restartCount"] > count


def is_replaced(release: ChartRelease, component: str, uid: str) -> bool:
    found = release.pods(component)
    return bool(found) and all(is_ready(p) and p["metadata"]["uid"] != uid for p in found)


def all_gone(release: ChartRelease, names: list[str]) -> bool:
    return all(release.worker_pod(name) is None for name in names)
