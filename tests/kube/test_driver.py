"""The Kubernetes driver passes the driver contract on a real API server with its own
least-privilege Role, and handles failures that only a cluster has.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from pool.core.backoff import Backoff, retrying
from pool.core.clock import SystemClock
from pool.core.errors import Refused, Transient
from pool.core.settings import Profile
from pool.drivers.kubernetes.driver import KubernetesDriver
from pool.drivers.port import Pod, PodPhase, PodRole, Stamp, StampResult
from pool.passes.running import STALE_AFTER_S
from tests.contracts.driver import HELD, DriverContract, Watcher
from tests.support.fault_proxy import FaultProxy, ProxyFault
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_any import Cluster
from tests.support.kube_cluster import KubeCluster
from tests.support.kube_ground import KubeGround
from tests.support.waiting import eventually


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.access) as proxy:
        yield proxy


@pytest.fixture
def ground(cluster: Cluster, kubelet: HollowKubelet, namespace: str, proxy: FaultProxy) -> KubeGround:
    return KubeGround(cluster, kubelet, namespace, proxy)


@pytest.fixture
def driver(ground: KubeGround) -> Iterator[KubernetesDriver]:
    with closing(ground.driver()) as driver:
        yield driver


class TestKubernetesDriver(DriverContract):
    """The contract, unchanged."""


@contextmanager
def failing(proxy: FaultProxy, method: str, pattern: str, *faults: ProxyFault) -> Iterator[None]:
    """Let the first calls of that kind fail while the block runs."""
    left, lock = list(faults), threading.Lock()

    def rule(called: str, path: str) -> ProxyFault | None:
        with lock:
            return left.pop(0) if left and called == method and re.search(pattern, path) else None

    proxy.fault = rule
    try:
        yield
    finally:
        proxy.fault = lambda method, path: None
        assert not left, "nothing called"


# Calls


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_call_to_a_busy_server_is_retried(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy, status: int
) -> None:
    with failing(proxy, "POST", "/pods", ProxyFault(status=status), ProxyFault(status=status)):
        assert driver.create(ground.spec()).uid
    assert len(driver.list().pods) == 1


def test_retry_after_of_the_server_is_respected(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    driver.create(ground.spec())
    later = ProxyFault(status=429, retry_after="60")
    with failing(proxy, "GET", "/pods/w-one", later), pytest.raises(Transient, match="429"):
        driver.read("w-one")


def test_retries_to_a_busy_server_are_bounded(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    driver.create(ground.spec())
    proxy.fault = lambda method, path: ProxyFault(status=500)
    with pytest.raises(Transient, match="500 to get pods in namespace"):
        driver.read("w-one")


@pytest.mark.parametrize("part", ["/pods", "/secrets"])
def test_a_create_whose_reply_was_lost_creates_one_pod_with_its_key(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy, part: str
) -> None:
    with failing(proxy, "POST", part, ProxyFault(status=0)):
        made = driver.create(ground.spec())
    assert [pod.uid for pod in driver.list().pods] == [made.uid]
    assert driver.companions() == ("w-one",)


def test_a_stamp_whose_reply_was_lost_is_found_on_the_retry(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    ready = ground.make_ready(driver.create(ground.spec()))
    with failing(proxy, "PATCH", "/pods/w-one", ProxyFault(status=0)):
        assert driver.stamp(ready, HELD) is StampResult.CONFLICT
    seen = driver.read("w-one")
    assert seen is not None
    assert seen.says(HELD)


def test_a_pod_without_its_key_secret_gets_it_from_the_next_create(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    proxy.fault = lambda method, path: ProxyFault(status=403) if "/secrets" in path else None
    with pytest.raises(Refused, match="may not create secrets in namespace"):
        driver.create(ground.spec())
    proxy.fault = lambda method, path: None
    assert driver.companions() == ()
    assert ground.make_ready(driver.create(ground.spec())).usable


def test_a_pod_of_the_same_name_and_another_revision_is_not_adopted(
    ground: KubeGround, driver: KubernetesDriver
) -> None:
    driver.create(ground.spec())
    with pytest.raises(Refused, match="not this worker's"):
        driver.create(replace(ground.spec(), revision="rev-2"))


def test_an_invalid_object_is_refused_with_the_servers_message(
    ground: KubeGround, driver: KubernetesDriver
) -> None:
    ground.profile = Profile(priority_class="no-such-class")
    with closing(ground.driver()) as other, pytest.raises(Refused, match="no-such-class"):
        other.create(ground.spec())
    assert driver.list().pods == ()


def test_a_permission_that_worked_before_is_retried(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    """A server that has just started has not loaded the roles yet, and refuses every call."""
    lacking = (
        b'{"kind":"Status","message":"pods is forbidden: User cannot get resource \\"pods\\" in API group"}'
    )
    driver.create(ground.spec())
    assert driver.read("w-one") is not None
    with failing(proxy, "GET", "/pods/w-one", *[ProxyFault(status=403, body=lacking)] * 3):
        assert driver.read("w-one") is not None
    proxy.fault = lambda method, path: ProxyFault(status=403, body=lacking)
    with pytest.raises(Transient, match="cannot get resource"):
        driver.read("w-one")


def test_a_missing_permission_is_named(ground: KubeGround) -> None:
    with closing(ground.driver(anchor="another-anchor")) as other, pytest.raises(Refused) as refused:
        other.list()
    assert f"may not get configmaps in namespace {ground.namespace}: " in str(refused.value)


def test_a_stamp_drops_the_field_managers_notes(ground: KubeGround, driver: KubernetesDriver) -> None:
    ready = ground.make_ready(driver.create(ground.spec()))
    before = ground.raw("w-one")
    assert before is not None
    assert before["metadata"]["managedFields"]
    assert driver.stamp(ready, HELD) is StampResult.WRITTEN
    after = ground.raw("w-one")
    assert after is not None
    assert not after["metadata"].get("managedFields")


def test_of_concurrent_stamps_on_one_version_one_is_written(
    ground: KubeGround, driver: KubernetesDriver
) -> None:
    ready = ground.make_ready(driver.create(ground.spec()))
    stamps = [Stamp(org="acme", claim_id=f"c-{n}", epoch=n, busy=True) for n in range(1, 9)]
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda s: driver.stamp(ready, s), stamps))
    assert results.count(StampResult.WRITTEN) == 1
    assert results.count(StampResult.CONFLICT) == 7


def test_with_a_third_of_all_calls_failing_every_pod_is_created_once_with_its_key(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    driver.list()
    dice, lock = random.Random(7), threading.Lock()

    def rule(method: str, path: str) -> ProxyFault | None:
        with lock:
            fails = dice.random() < 0.3
            return ProxyFault(status=dice.choice([429, 500, 0])) if fails else None

    def make(name: str) -> Pod:
        made: Pod = retrying(
            lambda: driver.create(replace(ground.spec(name), command=("sleep", "600"))),
            policy=Backoff(tries=20),
            clock=SystemClock(),
        )
        return made

    proxy.fault = rule
    names = [f"w-{n}" for n in range(20)]
    with ThreadPoolExecutor(10) as threads:
        made = list(threads.map(make, names))
    proxy.fault = lambda method, path: None
    assert sorted(pod.uid for pod in driver.list().pods) == sorted(pod.uid for pod in made)
    assert driver.companions() == tuple(sorted(names))


def test_the_driver_works_over_tls_and_closes_a_silent_watch_at_once(ground: KubeGround) -> None:
    kubeconfig = str(ground.user.kubeconfig)
    with closing(ground.driver(kubeconfig=kubeconfig)) as driver, Watcher(driver) as watcher:
        driver.create(ground.spec())
        watcher.wait_for(Pod, "w-one", ready=True)
        eventually(lambda: driver.cached().age_s == 0)
        began = time.monotonic()
        driver.close()
        assert time.monotonic() - began < 2


# Pod status


def test_a_container_killed_for_memory_reports_it(ground: KubeGround, driver: KubernetesDriver) -> None:
    ready = ground.make_ready(driver.create(ground.spec()))
    ground.kill_for_memory(ready)
    ended = eventually(lambda: p if (p := driver.read("w-one")) and p.phase is PodPhase.ENDED else None)
    assert ended is not None
    assert (ended.trouble, ended.exit_code) == ("OOMKilled", 137)


def test_a_missing_image_is_reported(
    ground: KubeGround, driver: KubernetesDriver, kubelet: HollowKubelet
) -> None:
    image = f"missing:{ground.namespace}"
    kubelet.missing_images.add(image)
    driver.create(replace(ground.spec(), image=image))
    pod = eventually(lambda: p if (p := driver.read("w-one")) and p.trouble else None)
    assert pod is not None
    assert pod.trouble.startswith(("ErrImagePull", "ImagePullBackOff"))
    assert pod.phase is PodPhase.PENDING


def test_an_unschedulable_pod_reports_it(ground: KubeGround) -> None:
    ground.profile = Profile(node_selector={"there-is": "none"})
    with closing(ground.driver()) as driver:
        driver.create(ground.spec())
        pod = eventually(lambda: p if (p := driver.read("w-one")) and p.unschedulable else None)
    assert pod is not None
    assert pod.trouble.startswith("Unschedulable: ")


def test_a_pod_on_a_cordoned_node_is_leaving_until_it_is_uncordoned(
    ground: KubeGround, driver: KubernetesDriver
) -> None:
    ready = ground.make_ready(driver.create(ground.spec()))
    node = f"/api/v1/nodes/{ready.node}"
    with Watcher(driver) as watcher:
        watcher.wait_for(Pod, "w-one", leaving="")
        try:
            ground.cluster.api.patch(node, {"spec": {"unschedulable": True}})
            told = watcher.wait_for(Pod, "w-one", leaving=f"its node {ready.node} is cordoned")
            assert not told.usable
            assert not told.terminating
        finally:
            ground.cluster.api.patch(node, {"spec": {"unschedulable": None}})
        assert watcher.wait_for(Pod, "w-one", leaving="").usable


def test_an_evicted_pod_reports_the_disruption(ground: KubeGround, driver: KubernetesDriver) -> None:
    ready = ground.make_ready(driver.create(ground.spec()))
    ground.make_busy(ready)
    with Watcher(driver) as watcher:
        eviction = {"metadata": {"name": "w-one"}}
        ground.cluster.api.create(ground.path("pods", "w-one/eviction"), eviction)
        told = watcher.wait_for(Pod, "w-one", terminating=True)
    assert told.leaving.startswith("chosen for disruption: EvictionByEvictionAPI")
    assert not told.usable
    ground.make_unused(ready)


def test_without_the_nodes_permission_the_rest_works(ground: KubeGround, proxy: FaultProxy) -> None:
    proxy.fault = lambda method, path: ProxyFault(status=403) if "/nodes" in path else None
    with closing(ground.driver()) as driver, Watcher(driver) as watcher:
        driver.create(ground.spec())
        watcher.wait_for(Pod, "w-one", ready=True)


def test_ages_are_measured_by_the_servers_clock(ground: KubeGround, driver: KubernetesDriver) -> None:
    driver.create(ground.spec())
    pod = driver.read("w-one")
    assert pod is not None
    assert 0 <= pod.age_s < 10
    eventually(lambda: (p := driver.read("w-one")) is not None and p.age_s >= 2)


def test_a_placeholder_has_a_lower_priority_than_every_worker(
    ground: KubeGround, driver: KubernetesDriver
) -> None:
    driver.create(ground.spec("p-one", role=PodRole.PLACEHOLDER))
    raw = ground.raw("p-one")
    assert raw is not None
    assert raw["spec"]["priority"] == -10


# The anchor, companions


def test_deleting_the_anchor_deletes_every_pod_and_companion(
    ground: KubeGround, driver: KubernetesDriver
) -> None:
    ground.make_ready(driver.create(ground.spec()))
    ground.cluster.api.delete(ground.path("configmaps", "warmpool-anchor"))
    eventually(lambda: ground.raw("w-one") is None, within_s=30)
    eventually(lambda: ground.raw("w-one", "secrets") is None, within_s=30)
    listing = driver.list()
    assert (listing.pods, listing.anchored) == ((), False)


def test_a_pod_with_its_own_service_account_deletes_it_with_itself(ground: KubeGround) -> None:
    ground.profile = Profile(own_service_account=True)
    with closing(ground.driver()) as driver:
        pod = ground.make_ready(driver.create(ground.spec()))
        account = ground.raw("w-one", "serviceaccounts")
        assert account is not None
        assert [o["uid"] for o in account["metadata"]["ownerReferences"]] == [pod.uid]
        assert driver.companions() == ("w-one",)
        driver.delete(pod.name, pod.uid, grace_s=0)
        eventually(lambda: driver.companions() == (), within_s=30)


def test_a_key_secret_of_an_earlier_pod_of_that_name_is_replaced(
    ground: KubeGround, driver: KubernetesDriver
) -> None:
    ground.leave_companions("w-one")
    pod = ground.make_ready(driver.create(ground.spec()))
    secret = ground.raw("w-one", "secrets")
    assert secret is not None
    assert [o["uid"] for o in secret["metadata"]["ownerReferences"]] == [pod.uid]
    assert secret["data"]


def test_companions_of_a_live_pod_are_not_removed(ground: KubeGround, driver: KubernetesDriver) -> None:
    driver.create(ground.spec())
    driver.delete_companions("w-one")
    assert driver.companions() == ("w-one",)


# The cache


def listed(proxy: FaultProxy) -> int:
    return sum(
        1 for method, path in proxy.calls if method == "GET" and "/pods?" in path and "watch" not in path
    )


def watched(proxy: FaultProxy) -> int:
    return sum(1 for _, path in proxy.calls if "/pods?" in path and "watch=true" in path)


def test_a_broken_watch_resumes_at_its_version(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    with Watcher(driver) as watcher:
        driver.create(ground.spec())
        watcher.wait_for(Pod, "w-one", ready=True)
        lists, watches = listed(proxy), watched(proxy)
        proxy.cut()
        eventually(lambda: watched(proxy) > watches)
        ground.cluster.api.delete(ground.path("pods", "w-one"), grace_s=0)
        eventually(lambda: driver.cached().pods == ())
        assert listed(proxy) == lists


def test_a_version_that_is_too_old_is_listed_again(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    with Watcher(driver) as watcher:
        driver.create(ground.spec())
        watcher.wait_for(Pod, "w-one", ready=True)
        lists = listed(proxy)
        with failing(proxy, "GET", "/pods.*watch=true", ProxyFault(status=410)):
            proxy.cut()
            eventually(lambda: listed(proxy) > lists)
        driver.create(ground.spec("w-two"))
        watcher.wait_for(Pod, "w-two", ready=True)


def test_a_watch_whose_version_is_gone_lists_again(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    told = b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version"}}\n'
    with Watcher(driver) as watcher:
        driver.create(ground.spec())
        watcher.wait_for(Pod, "w-one", ready=True)
        lists = listed(proxy)
        with failing(proxy, "GET", "/pods.*watch=true", ProxyFault(status=200, body=told)):
            proxy.cut()
            eventually(lambda: listed(proxy) > lists)
        ground.cluster.api.delete(ground.path("pods", "w-one"), grace_s=0)
        eventually(lambda: driver.cached().pods == ())


def test_everything_is_listed_again_periodically(ground: KubeGround, proxy: FaultProxy) -> None:
    with closing(ground.driver(relist_s=10)) as driver, Watcher(driver) as watcher:
        driver.create(ground.spec())
        watcher.wait_for(Pod, "w-one", ready=True)
        eventually(lambda: listed(proxy) >= 2, within_s=20)
        assert [pod.name for pod in driver.cached().pods] == ["w-one"]


def test_a_cache_ages_during_an_outage_and_is_fresh_afterwards(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    with Watcher(driver) as watcher:
        made = driver.create(ground.spec())
        watcher.wait_for(Pod, "w-one", ready=True)
        eventually(lambda: driver.cached().age_s == 0)
        with proxy.away():
            eventually(lambda: driver.cached().age_s > 2)
            assert [pod.uid for pod in driver.cached().pods] == [made.uid]
            ground.cluster.api.delete(ground.path("pods", "w-one"), grace_s=0)
        eventually(lambda: driver.cached().age_s < 1, within_s=30)
        eventually(lambda: driver.cached().pods == ())


def test_a_hanging_server_does_not_count_as_quiet(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    """Its connections stay open and send nothing."""
    with Watcher(driver) as watcher:
        driver.create(ground.spec())
        watcher.wait_for(Pod, "w-one", ready=True)
        eventually(lambda: driver.cached().age_s == 0)
        with proxy.hanging():
            eventually(
                lambda: driver.cached().age_s > STALE_AFTER_S, within_s=STALE_AFTER_S + 15, every_s=0.2
            )
        eventually(lambda: driver.cached().age_s == 0, within_s=30)


def test_the_view_of_a_quiet_server_is_kept_fresh_by_small_reads(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    with Watcher(driver) as watcher:
        driver.create(ground.spec())
        watcher.wait_for(Pod, "w-one", ready=True)
        calls = len(proxy.calls)
        eventually(lambda: len(proxy.calls) >= calls + 2, within_s=40, every_s=0.2)
        assert driver.cached().age_s == 0
        assert {(m, p.rpartition("/")[2]) for m, p in proxy.calls[calls + 1 :]} == {
            ("GET", "warmpool-anchor")
        }


def test_companions_need_no_call_while_they_are_watched(
    ground: KubeGround, driver: KubernetesDriver, proxy: FaultProxy
) -> None:
    with Watcher(driver) as watcher:
        driver.create(ground.spec())
        watcher.wait_for(Pod, "w-one", ready=True)
        assert driver.companions() == ("w-one",)
        eventually(lambda: any("/secrets?" in path and "watch=true" in path for _, path in proxy.calls))
        eventually(lambda: driver._companions._follower.age_s() == 0)
        calls = len(proxy.calls)
        for _ in range(10):
            assert driver.companions() == ("w-one",)
            assert driver.cached().pods
        assert [path for _, path in proxy.calls[calls:] if not path.endswith("/warmpool-anchor")] == []


def test_the_cache_catches_up_after_a_restart_of_the_api_server(
    servers: None,
) -> None:
    with KubeCluster() as own, HollowKubelet(own) as kubelet, FaultProxy(own.access) as proxy:
        ground = KubeGround(own, kubelet, own.namespace("away"), proxy)
        with closing(ground.driver()) as driver, Watcher(driver) as watcher:
            driver.create(ground.spec())
            watcher.wait_for(Pod, "w-one", ready=True)
            own.kill_apiserver()
            eventually(lambda: driver.cached().age_s > 1)
            assert [pod.name for pod in driver.cached().pods] == ["w-one"]
            with pytest.raises(Transient):
                driver.create(ground.spec("w-two"))
            own.restart_apiserver()
            driver.create(ground.spec("w-two"))
            watcher.wait_for(Pod, "w-two", ready=True)
            eventually(lambda: driver.cached().age_s < 1)
            assert {pod.name for pod in driver.cached().pods} == {"w-one", "w-two"}


# Permissions


def test_every_granted_permission_is_needed_and_none_is_missing(
    own_cluster: KubeCluster, kubelet: HollowKubelet, proxy: FaultProxy
) -> None:
    """A complete lifecycle with the driver's Role: nothing is forbidden, and every permission is
    used.
    """
    ground = KubeGround(own_cluster, kubelet, own_cluster.namespace("rights"), proxy)
    since = own_cluster.mark()
    with closing(ground.driver()) as driver, Watcher(driver) as watcher:
        ready = ground.make_ready(driver.create(ground.spec()))
        watcher.wait_for(Pod, "w-one", ready=True)
        assert driver.stamp(ready, HELD) is StampResult.WRITTEN
        driver.companions()
        driver.delete(ready.name, ready.uid, grace_s=0)
        eventually(lambda: driver.cached().pods == ())
        eventually(lambda: driver.companions() == ())
    mine = [r for r in own_cluster.requests(since) if r.user == ground.user.name]
    assert [r for r in mine if r.code == 403] == []
    writes = [(r.verb, r.resource) for r in mine if r.is_write]
    assert sorted(writes) == [
        ("create", "configmaps"), ("create", "pods"), ("create", "secrets"), ("delete", "pods"),
        ("patch", "pods"),
    ]  # fmt: skip
