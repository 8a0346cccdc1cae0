"""The chart's trial on a real node: installed by Helm, from the image that the Dockerfile builds, with
kubelet, containerd and kube-proxy. The first file on the node: no container has been killed yet.
"""

from __future__ import annotations

import base64
import sys
import time
import urllib.request
from functools import partial

import pytest

from tests.support.kube_api import ApiError, Object
from tests.support.node_cluster import NodeCluster
from tests.support.node_release import ChartRelease, container_of, is_lasting
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)

DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
BUSY = "warmpool.dev/busy"
# What a service does: it holds a worker for longer than the lease, calls it, and releases it.
SERVICE = """
import urllib.request
from warmpool import Pool
with Pool() as pool:
    with pool.acquire("acme", wait_s=60, lease_s=5) as worker:
        worker.wait_lost(12)
        request = urllib.request.Request(worker.endpoint + "/echo", headers=worker.auth)
        print("status", urllib.request.urlopen(request, timeout=10).status, "lost", worker.lost)
print("released")
"""
# Redis as the control plane sees it. WAITAOF returns when the write is on the disk.
REDIS = "import os, redis; r = redis.Redis.from_url(os.environ['WARMPOOL_BROKER_URL']); "
WRITE = (
    "p = r.pipeline(transaction=True); p.lpush('warmpool.reply.kept', '1'); "
    "p.expire('warmpool.reply.kept', 900); p.execute(); print(r.execute_command('WAITAOF', 1, 0, 5000))"
)
READ = "print(r.llen('warmpool.reply.kept'))"


def busy_label(release: ChartRelease, name: str) -> str | None:
    pod = release.worker_pod(name)
    return None if pod is None else str(pod["metadata"]["labels"][BUSY])


def is_gone(release: ChartRelease, name: str) -> bool:
    return release.worker_pod(name) is None


def test_every_component_is_ready_after_helm_install_and_none_restarted(pool: ChartRelease) -> None:
    restarts = {p["metadata"]["name"]: container_of(p)["restartCount"] for p in pool.pods() if is_lasting(p)}
    assert set(pool.components()) == {
        "acquire", "beat", "bind", "board", "exporter", "fleet", "flower", "passes", "postgres", "redis",
    }  # fmt: skip
    assert not any(restarts.values()), restarts


def test_each_component_uses_less_memory_than_it_requests(pool: ChartRelease) -> None:
    # Before any test runs a command in a pod, which would count.
    eventually(lambda: set(pool.memory()) == set(pool.components()), within_s=120, every_s=2)
    found = pool.memory()
    lines = [f"{name:10} {used:4.0f} of {asked:.0f} MiB" for name, (used, asked) in sorted(found.items())]
    sys.stderr.write("\n" + "\n".join(lines) + "\n")
    assert {name: used for name, (used, asked) in found.items() if used > asked} == {}


def test_the_trial_fits_a_node_with_two_cores(pool: ChartRelease) -> None:
    pods = [*pool.pods(), *pool.worker_pods()]
    requests = [c["resources"]["requests"] for p in pods if is_lasting(p) for c in p["spec"]["containers"]]
    requests += [p["spec"]["containers"][0]["resources"]["requests"] for p in pool.worker_pods()]
    cpu = sum(int(str(found["cpu"]).removesuffix("m")) for found in requests)
    sys.stderr.write(f"\nthe trial requests {cpu} millicores\n")
    assert cpu <= 1000


def test_helm_test_acquires_and_its_log_can_be_read(pool: ChartRelease) -> None:
    assert "Succeeded" in pool.test()


def test_service_in_another_namespace_holds_calls_and_releases_a_worker(
    node: NodeCluster, pool: ChartRelease
) -> None:
    secret = node.api.get(f"/api/v1/namespaces/{pool.namespace}/secrets/{pool.fullname}")
    url = base64.b64decode(secret["data"]["producer-broker-url"]).decode()
    key = pool.run("warmpool", "org", "key", "acme").split()[-1]
    namespace = node.cluster.namespace("service")
    path = f"/api/v1/namespaces/{namespace}/pods"
    node.api.create(path, a_service(SERVICE, {"WARMPOOL_BROKER_URL": url, "WARMPOOL_ORG_KEY": key}))

    def ended() -> str:
        phase = str(node.api.get(f"{path}/service")["status"]["phase"])
        return phase if phase in {"Succeeded", "Failed"} else ""

    phase = eventually(ended, within_s=180, every_s=0.5)
    log = node.kubectl("logs", "-n", namespace, "service").stdout
    assert (phase, log) == ("Succeeded", "status 200 lost False\nreleased\n")


def test_claimed_pod_is_protected_and_a_released_one_is_not(pool: ChartRelease) -> None:
    with pool.client() as client:
        worker = client.acquire("acme", wait_s=60)
        eventually(lambda: busy_label(pool, worker.pod) == "true", within_s=30, every_s=0.2)
        held = pool.worker_pod(worker.pod)
        assert held is not None
        assert held["metadata"]["annotations"][DO_NOT_DISRUPT] == "true"
        with pytest.raises(ApiError, match="disruption budget"):
            evict(pool, worker.pod)
        request = urllib.request.Request(worker.endpoint + "/echo", headers=worker.auth)
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
        worker.release()
        eventually(lambda: busy_label(pool, worker.pod) == "false", within_s=30, every_s=0.2)
        freed = pool.worker_pod(worker.pod)
        assert freed is not None
        assert DO_NOT_DISRUPT not in freed["metadata"]["annotations"]


def test_parked_worker_is_deleted_after_its_ttl(pool: ChartRelease) -> None:
    with pool.client() as client:
        worker = client.acquire("acme", wait_s=60, ttl_s=5)
        worker.release()
    eventually(partial(is_gone, pool, worker.pod), within_s=90, every_s=0.5)


def test_a_worker_that_is_deleted_while_it_starts_ends_at_once(pool: ChartRelease) -> None:
    idle = pool.warm()[0]["metadata"]["name"]
    known = {p["metadata"]["name"] for p in pool.worker_pods()}
    pool.node.api.delete(f"/api/v1/namespaces/{pool.workers_namespace}/pods/{idle}", grace_s=0)

    def started() -> Object | None:
        new = [p for p in pool.worker_pods() if p["metadata"]["name"] not in known]
        return next((p for p in new if pool.node.runs(p["metadata"]["uid"], "python")), None)

    # Earlier than the kubelet reports the start.
    starting = eventually(started, within_s=90, every_s=0.01)
    name, grace_s = starting["metadata"]["name"], starting["spec"]["terminationGracePeriodSeconds"]
    began = time.monotonic()
    pool.node.api.delete(f"/api/v1/namespaces/{pool.workers_namespace}/pods/{name}")
    eventually(partial(is_gone, pool, name), within_s=60, every_s=0.2)
    sys.stderr.write(f"\nit ended after {time.monotonic() - began:.1f} s of {grace_s} s\n")
    assert grace_s == 600


def test_a_restarted_container_is_not_ready_by_the_files_of_the_one_before(pool: ChartRelease) -> None:
    """The volume of the files outlives the container; frozen, the new one writes none."""
    pod = pool.pods("bind")[0]
    before = container_of(pod)
    pool.node.kill(before["containerID"])
    seen = []

    def is_ready_again() -> bool:
        now = next(p for p in pool.pods("bind") if p["metadata"]["uid"] == pod["metadata"]["uid"])
        found = container_of(now)
        if found["restartCount"] > before["restartCount"] and "running" in found["state"]:
            seen.append(found["ready"])
        return found["restartCount"] > before["restartCount"] and bool(found["ready"])

    eventually(is_ready_again, within_s=120, every_s=0.05)
    assert seen[0] is False


def test_the_bundled_redis_keeps_its_writes_when_it_is_killed(pool: ChartRelease) -> None:
    """Also those of MULTI/EXEC, which Valkey 8.1 loses if the default user may do nothing."""
    pool.run("python", "-c", REDIS + WRITE)
    with pool.client() as client, client.acquire("acme", wait_s=60, lease_s=30) as worker:
        before = container_of(pool.pods("redis")[0])
        pool.node.kill(before["containerID"])
        eventually(lambda: container_of(pool.pods("redis")[0])["restartCount"] > before["restartCount"],
                   within_s=60, every_s=0.2)  # fmt: skip
        pool.wait_ready("redis")
        # Its name is resolved again a moment after it is ready.
        eventually(lambda: reads_one(pool), within_s=60, every_s=1)
        assert not worker.lost


def reads_one(release: ChartRelease) -> bool:
    try:
        return release.run("python", "-c", REDIS + READ).strip() == "1"
    except AssertionError:
        return False


def evict(release: ChartRelease, name: str) -> None:
    namespace = release.workers_namespace
    content = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    release.node.api.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", content)


def a_service(script: str, env: dict[str, str]) -> Object:
    """Return a service's pod under the restricted standard, with the label of clients."""
    container = {
        "name": "service",
        "image": "docker.io/library/warmpool:test",
        "command": ["warmpool-init", "python", "-c", script],
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "metadata": {"name": "service", "labels": {"warmpool.dev/client": "true"}},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    }
