"""Tests of the test cluster itself, on which the other tests here depend."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from pool.core import tokens
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_any import Cluster, rule
from tests.support.kube_api import ApiClient, ApiError, Object
from tests.support.kube_cluster import ClusterPart, KubeCluster
from tests.support.waiting import eventually

MASTER_KEY = b"a master key that only tests know"
PORT = 18080
SLOW_S = 30


def a_pod(name: str, kubelet: HollowKubelet | None = None, **changes: object) -> Object:
    """Return a worker's pod as a driver would create it, under the restricted standard."""
    container = {
        "name": "worker",
        "image": "image:1",
        "ports": [{"containerPort": PORT}],
        "env": [{"name": "WARMPOOL_KEY_FILE", "value": "/var/run/warmpool/key"}],
        "volumeMounts": [{"name": "key", "mountPath": "/var/run/warmpool", "readOnly": True}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "key", "secret": {"secretName": name}}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        **(kubelet.placement if kubelet is not None else {}),
        **changes,
    }
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def a_secret(name: str) -> Object:
    key = base64.b64encode(tokens.worker_key(MASTER_KEY, name).encode()).decode()
    return {"metadata": {"name": name}, "data": {"key": key}}


class TierPlace:
    """Pods of one namespace."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.path = f"/api/v1/namespaces/{namespace}"

    def create(self, pod: Object) -> Object:
        made = self.api.create(f"{self.path}/pods", pod)
        self.api.create(f"{self.path}/secrets", a_secret(made["metadata"]["name"]))
        return made

    def find(self, name: str) -> Object | None:
        return self.api.find(f"{self.path}/pods/{name}")

    def status(self, name: str) -> Object:
        found: Object = self.api.get(f"{self.path}/pods/{name}")["status"]
        return found

    def ready(self, name: str) -> Object:
        """Return the pod's status as soon as it is ready."""

        def status() -> Object | None:
            now = self.status(name)
            states = {c["type"]: c["status"] for c in now.get("conditions", [])}
            return now if states.get("Ready") == "True" else None

        found = eventually(status, within_s=SLOW_S)
        assert found is not None
        return found

    def container(self, name: str, kind: str) -> Object | None:
        """Return its container's state, if it is of that kind."""
        states = self.status(name).get("containerStatuses") or [{}]
        found: Object | None = states[0].get("state", {}).get(kind)
        return found

    def evict(self, name: str) -> None:
        self.api.create(f"{self.path}/pods/{name}/eviction", {"metadata": {"name": name}})


@pytest.fixture
def place(cluster: Cluster, namespace: str) -> TierPlace:
    return TierPlace(cluster.api, namespace)


@pytest.fixture
def worker(place: TierPlace, kubelet: HollowKubelet) -> Object:
    """Return the status of a pod that serves."""
    place.create(a_pod("w-one", kubelet))
    return place.ready("w-one")


def ask(status: Object, method: str, path: str) -> tuple[int, Object]:
    """Call a worker at podIP:containerPort, as the holder of a claim."""
    key = tokens.worker_key(MASTER_KEY, "w-one")
    headers = tokens.headers("c-1", 1, tokens.token(key, "c-1", 1))
    with urllib3.PoolManager(retries=False, headers=headers) as http:
        answer = http.request(method, f"http://{status['podIP']}:{PORT}{path}", timeout=5)
        return answer.status, json.loads(answer.data)


def is_leaving(status: Object) -> bool:
    """Return whether a worker reports it; a stopping worker closes connections without a request."""
    try:
        return ask(status, "GET", "/healthz")[0] == 503
    except urllib3.exceptions.HTTPError:
        return False


# Pods


def test_a_pod_runs_and_has_its_key(worker: Object) -> None:
    code, said = ask(worker, "GET", "/echo")
    assert code == 200
    assert said["worker"] == "w-one"


def test_pods_have_an_address_each(place: TierPlace, kubelet: HollowKubelet, worker: Object) -> None:
    place.create(a_pod("w-two", kubelet))
    assert place.ready("w-two")["podIP"] != worker["podIP"]


def test_a_busy_pod_ends_when_its_session_does(
    place: TierPlace, kubelet: HollowKubelet, worker: Object
) -> None:
    assert ask(worker, "POST", "/sessions")[0] == 200
    place.api.delete(f"{place.path}/pods/w-one")
    eventually(lambda: is_leaving(worker))
    pod = place.find("w-one")
    assert pod is not None
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 60
    assert ask(worker, "DELETE", "/sessions")[0] == 200
    eventually(lambda: place.find("w-one") is None)
    assert kubelet.running(place.namespace) == []


def test_a_busy_pod_is_killed_at_the_end_of_its_grace_period(
    place: TierPlace, kubelet: HollowKubelet, worker: Object
) -> None:
    assert ask(worker, "POST", "/sessions")[0] == 200
    place.api.delete(f"{place.path}/pods/w-one")
    place.api.delete(f"{place.path}/pods/w-one", grace_s=1)
    eventually(lambda: place.find("w-one") is None)
    assert kubelet.running(place.namespace) == []


def test_a_pod_deleted_without_grace_leaves_no_process(
    place: TierPlace, kubelet: HollowKubelet, worker: Object
) -> None:
    place.api.delete(f"{place.path}/pods/w-one", grace_s=0)
    assert place.find("w-one") is None
    eventually(lambda: kubelet.running(place.namespace) == [])


def test_a_killed_container_is_reported_with_its_exit_code(
    place: TierPlace, kubelet: HollowKubelet, worker: Object
) -> None:
    kubelet.signal(place.namespace, "w-one", signal.SIGKILL)
    ended = eventually(lambda: place.container("w-one", "terminated"))
    assert ended is not None
    assert (ended["exitCode"], ended["reason"]) == (137, "Error")
    assert place.status("w-one")["phase"] == "Failed"


def test_a_container_out_of_memory_is_reported(
    place: TierPlace, kubelet: HollowKubelet, worker: Object
) -> None:
    kubelet.kill_for_memory(place.namespace, "w-one")
    ended = eventually(lambda: place.container("w-one", "terminated"))
    assert ended is not None
    assert ended["reason"] == "OOMKilled"


def test_a_pod_waits_for_its_secret(place: TierPlace, kubelet: HollowKubelet) -> None:
    place.api.create(f"{place.path}/pods", a_pod("w-one", kubelet))
    waiting = eventually(lambda: place.container("w-one", "waiting"), within_s=SLOW_S)
    assert waiting is not None
    assert "not found" in waiting["message"]
    place.api.create(f"{place.path}/secrets", a_secret("w-one"))
    place.ready("w-one")


def test_a_missing_image_is_reported(place: TierPlace, kubelet: HollowKubelet) -> None:
    kubelet.missing_images.add("image:1")
    try:
        place.create(a_pod("w-one", kubelet))
        reason = eventually(lambda: place.container("w-one", "waiting"), within_s=SLOW_S)
        assert reason is not None
        assert reason["reason"] in ("ErrImagePull", "ImagePullBackOff")
    finally:
        kubelet.missing_images.clear()
    place.ready("w-one")


def test_a_frozen_container_stops_being_ready(
    place: TierPlace, kubelet: HollowKubelet, worker: Object
) -> None:
    kubelet.signal(place.namespace, "w-one", signal.SIGSTOP)

    def unready() -> bool:
        conditions = place.status("w-one")["conditions"]
        return any(c["type"] == "Ready" and c["status"] == "False" for c in conditions)

    eventually(unready, within_s=SLOW_S)


def test_a_pod_that_fits_no_node_is_reported_as_unschedulable(place: TierPlace) -> None:
    place.create(a_pod("w-one", nodeSelector={"no-such": "node"}))

    def reasons() -> list[str]:
        return [
            c["reason"] for c in place.status("w-one").get("conditions", []) if c["type"] == "PodScheduled"
        ]

    eventually(lambda: reasons() == ["Unschedulable"])


# Rules of the servers


def test_a_pod_below_the_restricted_standard_is_refused(place: TierPlace) -> None:
    with pytest.raises(ApiError, match="PodSecurity") as refused:
        place.create(a_pod("w-one", securityContext={}))
    assert refused.value.code == 403


def test_objects_owned_by_a_pod_are_deleted_with_it(place: TierPlace, kubelet: HollowKubelet) -> None:
    pod = place.create(a_pod("w-one", kubelet))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "w-one", "uid": pod["metadata"]["uid"]}
    place.api.patch(f"{place.path}/secrets/w-one", {"metadata": {"ownerReferences": [owner]}})
    place.api.delete(f"{place.path}/pods/w-one", grace_s=0)
    eventually(lambda: place.api.find(f"{place.path}/secrets/w-one") is None, within_s=SLOW_S)


def test_a_verb_that_was_not_granted_is_forbidden(cluster: Cluster, namespace: str) -> None:
    user = cluster.user("reader", namespace, [rule("pods", "list")])
    api = ApiClient(user.access)
    try:
        assert api.get(f"/api/v1/namespaces/{namespace}/pods")["items"] == []
        with pytest.raises(ApiError, match='cannot create resource "pods"') as refused:
            api.create(f"/api/v1/namespaces/{namespace}/pods", a_pod("w-one"))
        assert refused.value.code == 403
        with pytest.raises(ApiError, match='cannot list resource "nodes"'):
            api.get("/api/v1/nodes")
    finally:
        api.close()


def test_a_disruption_budget_holds_off_eviction(place: TierPlace, namespace: str, worker: Object) -> None:
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    most = {"minAvailable": 2147483647, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    selector = {"matchLabels": {"warmpool.dev/busy": "true"}}
    place.api.create(budgets, {"metadata": {"name": "busy"}, "spec": {**most, "selector": selector}})
    place.api.patch(f"{place.path}/pods/w-one", {"metadata": {"labels": {"warmpool.dev/busy": "true"}}})
    eventually(
        lambda: place.api.get(f"{budgets}/busy").get("status", {}).get("expectedPods") == 1, within_s=SLOW_S
    )
    with pytest.raises(ApiError) as refused:
        place.evict("w-one")
    assert refused.value.code == 429
    place.api.patch(f"{place.path}/pods/w-one", {"metadata": {"labels": {"warmpool.dev/busy": "false"}}})
    place.evict("w-one")
    eventually(lambda: place.find("w-one") is None)


def test_calls_are_counted_where_they_arrive(
    own_cluster: KubeCluster, place: TierPlace, namespace: str
) -> None:
    user = own_cluster.user(
        "counted", namespace, [rule("pods", "get", "list", "watch"), rule("secrets", "create")]
    )
    api = ApiClient(user.access)
    begin = own_cluster.mark()
    try:
        version = api.get(f"{place.path}/pods")["metadata"]["resourceVersion"]
        api.create(f"{place.path}/secrets", a_secret("w-one"))
        with pytest.raises(ApiError):
            api.create(f"{place.path}/pods", a_pod("w-one"))
        api.watch(f"{place.path}/pods", seconds=5, resourceVersion=version).close()
    finally:
        api.close()
    mine = [r for r in own_cluster.requests(begin) if r.user == user.name]
    assert [(r.verb, r.resource, r.code) for r in mine] == [
        ("list", "pods", 200), ("create", "secrets", 201), ("create", "pods", 403), ("watch", "pods", 200),
    ]  # fmt: skip
    assert [r.is_write for r in mine] == [False, True, True, False]
    assert [r for r in own_cluster.requests(own_cluster.mark()) if r.user == user.name] == []


# Start and stop of the servers


@pytest.fixture
def bare(servers: None) -> Iterator[KubeCluster]:
    """A cluster of this test's own, without controllers and scheduler."""
    with KubeCluster() as cluster:
        yield cluster


def test_a_killed_api_server_keeps_its_data_and_its_containers(bare: KubeCluster) -> None:
    with HollowKubelet(bare) as kubelet:
        place = TierPlace(bare.api, bare.namespace("test"))
        made = place.create(a_pod("w-one"))
        status = place.ready("w-one")
        bare.kill_apiserver()
        with pytest.raises(urllib3.exceptions.HTTPError):
            place.find("w-one")
        assert ask(status, "GET", "/echo")[0] == 200
        bare.restart_apiserver()
        pod = place.find("w-one")
        assert pod is not None
        assert pod["metadata"]["uid"] == made["metadata"]["uid"]
        place.api.delete(f"{place.path}/pods/w-one")
        eventually(lambda: place.find("w-one") is None)
        assert kubelet.running(place.namespace) == []


def test_nothing_is_left_when_a_cluster_was_stopped(servers: None) -> None:
    with KubeCluster() as cluster, HollowKubelet(cluster):
        root = cluster.root
        place = TierPlace(cluster.api, cluster.namespace("test"))
        place.create(a_pod("w-one"))
        place.ready("w-one")
        assert processes_that_name(root)
    assert not root.exists()
    assert processes_that_name(root) == []


def processes_that_name(root: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(root).encode() in words:
                found.append(int(entry.name))
    return found


def test_kwok_simulates_many_pods(servers: None) -> None:
    with KubeCluster(ClusterPart.CONTROLLERS, ClusterPart.SCHEDULER, ClusterPart.KWOK) as cluster:
        cluster.add_kwok_nodes(2)
        place = TierPlace(cluster.api, cluster.namespace("test"))
        names = [f"w-{n}" for n in range(20)]
        for name in names:
            place.create(a_pod(name))
        for name in names:
            place.ready(name)
        assert len({place.status(name)["podIP"] for name in names}) == len(names)
        for name in names:
            place.api.delete(f"{place.path}/pods/{name}")
        eventually(lambda: all(place.find(name) is None for name in names), within_s=SLOW_S)


def test_kubectl_works_with_the_cluster(cluster: Cluster, namespace: str) -> None:
    told = cluster.kubectl("get", "pods", "-n", namespace, "-o", "name")
    assert (told.returncode, told.stdout) == (0, "")
