"""The chart on a real API server: every object is accepted, every pod is restricted, generated
secrets are kept by upgrades, and the control plane works with exactly the chart's permissions.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import yaml

from pool import wiring
from pool.client import Pool
from pool.core import signing, tokens
from pool.core.settings import KubernetesSettings, PoolSettings, Profile, Settings
from pool.drivers.kubernetes import manifests
from pool.drivers.kubernetes.driver import KubernetesDriver
from pool.drivers.kubernetes.rights import DoctorRight
from pool.drivers.port import LABEL_POOL, LABEL_WORKER, Pod, PodSpec
from tests.chart.test_values import EXAMPLES
from tests.contracts.driver import HELD, Watcher
from tests.support.helm import CHART, helm, of_kind, pod_templates, rendered, secret_values
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_any import Cluster
from tests.support.kube_api import ApiAccess, ApiError, Object
from tests.support.kube_audit import AuditedRequest
from tests.support.kube_cluster import KubeCluster
from tests.support.leftovers import processes_about
from tests.support.local_ground import MASTER_KEY
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.rendered import ChartGround, Running
from tests.support.waiting import eventually

# The first test waits for a cluster, and another starts five processes.
pytestmark = pytest.mark.timeout(400)

WITH_TOKEN = ("fleet", "bind", "passes")
# A node would run installed pods as processes of this machine, so no pod fits it; the test runs
# what it needs itself.
VALUES = (
    "defaults.nodeSelector.nowhere=here",
    "config.profiles.default.own_service_account=true",
    "config.profiles.default.warm_target=1",
    "rbac.nodepools=true",
)
NODEPOOLS = "/apis/karpenter.sh/v1/nodepools"
# Third-party kinds; here any shape is accepted.
FOREIGN = {
    "ServiceMonitor": ("monitoring.coreos.com", "v1", "servicemonitors"),
    "PrometheusRule": ("monitoring.coreos.com", "v1", "prometheusrules"),
    "PodMonitor": ("monitoring.coreos.com", "v1", "podmonitors"),
    "ScaledObject": ("keda.sh", "v1alpha1", "scaledobjects"),
    "NodePool": ("karpenter.sh", "v1", "nodepools"),
}


@pytest.fixture(scope="module")
def foreign_kinds(own_cluster: KubeCluster) -> None:
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for kind, (group, version, plural) in FOREIGN.items():
        # Another file may have used this cluster before.
        if own_cluster.api.find(f"{definitions}/{plural}.{group}") is not None:
            continue
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        own_cluster.api.create(
            definitions,
            {
                "metadata": {"name": f"{plural}.{group}"},
                "spec": {
                    "group": group,
                    "scope": "Cluster" if kind == "NodePool" else "Namespaced",
                    "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                    "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
                },
            },
        )
    for group, version, plural in FOREIGN.values():
        eventually(partial(is_served, own_cluster, f"/apis/{group}/{version}/{plural}"), within_s=30)


def pod_is_gone(driver: KubernetesDriver, name: str) -> bool:
    return driver.read(name) is None


def companion_is_gone(driver: KubernetesDriver, name: str) -> bool:
    return name not in driver.companions()


def is_served(cluster: Cluster, path: str) -> bool:
    """A new kind is first not found, and then not yet stored."""
    try:
        return cluster.api.find(path) is not None
    except ApiError:
        return False


def ensure_namespaces(cluster: Cluster, objects: tuple[Object, ...]) -> None:
    """The namespaces of the objects, under the restricted standard."""
    for name in {o["metadata"].get("namespace") for o in objects} - {None}:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        if cluster.api.find(f"/api/v1/namespaces/{name}") is None:
            cluster.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})


def apply(cluster: Cluster, tmp_path: Path, objects: list[Object], *more: str) -> None:
    file = tmp_path / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    done = cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "--validate=strict", *more, "-f", str(file)
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr


def as_pod(name: str, spec: Object, claimed: list[Object]) -> Object:
    """Return a pod as its controller would create it."""
    filled = {**spec, "volumes": [*spec["volumes"], *claimed]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"try-{name}", "namespace": "pool"},
        "spec": filled,
    }


def claims(objects: tuple[Object, ...], name: str) -> list[Object]:
    """Return the volumes that a StatefulSet's controller adds."""
    sets = [o for o in of_kind(objects, "StatefulSet") if o["metadata"]["name"] == name]
    names = [t["metadata"]["name"] for found in sets for t in found["spec"]["volumeClaimTemplates"]]
    return [{"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{name}-0"}} for claim in names]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_object_is_accepted_and_every_pod_is_restricted(
    own_cluster: KubeCluster, foreign_kinds: None, tmp_path: Path, example: str
) -> None:
    objects = rendered(example)
    ensure_namespaces(own_cluster, objects)
    apply(own_cluster, tmp_path, list(objects), "--dry-run=server")
    # Objects that pods refer to must exist; the pods themselves are only a dry run.
    apply(own_cluster, tmp_path, of_kind(objects, "ServiceAccount", "PriorityClass"))
    pods = [as_pod(name, pod["spec"], claims(objects, name)) for name, pod in pod_templates(objects)]
    apply(own_cluster, tmp_path, pods, "--dry-run=server")


def test_the_example_nodepool_is_accepted(
    own_cluster: KubeCluster, foreign_kinds: None, tmp_path: Path
) -> None:
    apply(
        own_cluster,
        tmp_path,
        [yaml.safe_load((CHART / "examples" / "nodepool.yaml").read_text())],
        "--dry-run=server",
    )


class HelmRelease:
    """The chart, installed by Helm into namespaces of the test; its hooks need an image and do not
    run.
    """

    def __init__(self, cluster: KubeCluster) -> None:
        self.cluster = cluster
        self.namespace = cluster.namespace("chart")
        self.name = f"r{self.namespace.rpartition('-')[2]}"
        self.full = f"{self.name}-warmpool"
        self.workers = f"{self.namespace}-{self.full}-workers"

    def upgrade(self, *sets: str) -> str:
        """Install or upgrade, and return the notes."""
        over = [word for pair in (*VALUES, *sets) for word in ("--set", pair)]
        done = helm(
            "upgrade", "--install", self.name, str(CHART), "-n", self.namespace, "--no-hooks", "-f",
            str(CHART / "ci" / "trial-values.yaml"),
            *over, env={"KUBECONFIG": str(self.cluster.kubeconfig), "HOME": str(self.cluster.root)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("NOTES:")[2]

    def find(self, kind: str, name: str, namespace: str = "") -> Object:
        found = self.cluster.api.find(f"/api/v1/namespaces/{namespace or self.namespace}/{kind}/{name}")
        assert found is not None, name
        return found

    def secret(self) -> dict[str, str]:
        return secret_values(self.find("secrets", self.full))

    def user(self, component: str) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.full}-{component}"

    def kubeconfig(self, component: str) -> Path:
        """Return access to the API server like the pod of that component, with the token of its
        account.
        """
        here = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.full}-{component}/token"
        token = self.cluster.api.create(here, {"spec": {"expirationSeconds": 24 * 3600}})["status"]["token"]
        access = ApiAccess(
            server=self.cluster.access.server, authority=self.cluster.access.authority, token=token
        )
        return self.cluster.write_kubeconfig(f"{self.namespace}-{component}", access)

    def granted(self) -> set[tuple[str, str]]:
        """Return (verb, resource) of what the chart's roles allow."""
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        role = self.cluster.api.find(f"{rbac}/namespaces/{self.workers}/roles/{self.full}")
        wide = [
            self.cluster.api.find(f"{rbac}/clusterroles/{self.namespace}-{self.full}-{what}")
            for what in ("nodes", "nodepools")
        ]
        return {
            (v, r)
            for found in (role, *wide)
            if found is not None
            for rule in found["rules"]
            for r in rule["resources"]
            for v in rule["verbs"]
        }


@pytest.fixture(scope="module")
def release(own_cluster: KubeCluster) -> HelmRelease:
    release = HelmRelease(own_cluster)
    release.upgrade("flower.replicas=1")
    return release


def test_generated_secrets_are_kept_by_an_upgrade(release: HelmRelease) -> None:
    before = release.secret()
    assert {"master-key", "flower-basic-auth", "board-password", "users.acl", "broker-url"} <= set(before)
    release.upgrade("flower.replicas=2")
    assert release.secret() == before


@pytest.fixture
def endless(release: HelmRelease, foreign_kinds: None) -> Iterator[str]:
    """A NodePool whose nodes wait without limit."""
    meta = {"name": f"{release.name}-endless"}
    release.cluster.api.create(
        NODEPOOLS, {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": meta, "spec": {}}
    )
    yield meta["name"]
    release.cluster.api.delete(f"{NODEPOOLS}/{meta['name']}")


def about_nodepools(notes: str) -> list[str]:
    return [line for line in notes.splitlines() if "terminationGracePeriod" in line]


def test_the_notes_report_a_nodepool_without_a_limit_and_one_that_was_not_checked(
    release: HelmRelease, endless: str
) -> None:
    [line] = about_nodepools(release.upgrade())
    assert line.startswith(f"WARNING: no terminationGracePeriod in NodePool {endless}:")
    [line] = about_nodepools(release.upgrade("rbac.nodepools=false"))
    assert line.startswith("WARNING: rbac.nodepools is false: not checked")
    limited = {"spec": {"template": {"spec": {"terminationGracePeriod": "1h"}}}}
    release.cluster.api.patch(f"{NODEPOOLS}/{endless}", limited)
    assert about_nodepools(release.upgrade()) == []


def test_the_control_plane_works_with_exactly_the_permissions_of_the_chart(
    release: HelmRelease, kubelet: HollowKubelet, postgres: PostgresServer, tmp_path: Path, endless: str
) -> None:
    """The chart's own processes spawn, acquire, stamp, release and delete a worker, each with the
    token of its own account; then the driver repairs the effects of accidents. Their calls equal
    what the roles grant: a missing verb would be a 403, an extra verb would be unused.
    """
    cluster, since = release.cluster, release.cluster.mark()
    with RedisServer(appendonly=True) as redis:
        logs = run_a_worker(release, redis, postgres.create_database("chart_rights"), tmp_path)
    assert f"NodePool {endless} has no terminationGracePeriod" in logs["passes"]
    meet_accidents(release)
    ours = {release.user(component) for component in WITH_TOKEN}
    mine = [r for r in cluster.requests(since) if r.user in ours]
    assert {r.user for r in mine} == ours, "each of them spoke to the API server"
    assert [r for r in mine if r.code == 403] == []
    # Every user may query its own rights; no role of ours needs to grant that.
    asked = (DoctorRight.REVIEW_OUR_ACCESS.verb, DoctorRight.REVIEW_OUR_ACCESS.resource)
    assert {r.user for r in mine if (r.verb, r.resource) == asked} == ours, "each looked at its rights first"
    assert {(r.verb, r.resource) for r in mine} == release.granted() | {asked}
    assert_in_bounds(release, mine)


def assert_in_bounds(release: HelmRelease, mine: list[AuditedRequest]) -> None:
    assert {r.namespace for r in mine} <= {release.workers, ""}
    assert {r.name for r in mine if r.resource == "configmaps"} == {f"{release.full}-anchor"}


def run_a_worker(release: HelmRelease, redis: RedisServer, database_url: str, folder: Path) -> dict[str, str]:
    """Run the chart's processes until a worker was acquired, released and deleted; return their logs."""
    config = folder / "config"
    config.mkdir()
    (config / "warmpool.toml").write_text(release.find("configmaps", release.full)["data"]["warmpool.toml"])
    secret = release.secret() | {"broker-url": redis.url, "database-url": database_url}
    parts: list[Running] = []
    try:
        for component in ("acquire", *WITH_TOKEN, "beat"):
            ground = ChartGround(folder=folder, secrets={release.full: secret}, over=over(release, component))
            container = deployed(release, component)
            if not parts:
                migrate(container, ground)
            parts.append(Running(component, container, ground))
            parts[-1].start()
        for part in parts:
            part.wait_ready()
        key = signing.org_key(secret["master-key"].encode(), "helm-test", 1).text
        with Pool(redis.url, org_key=key) as pool, pool.acquire("helm-test", wait_s=120) as worker:
            pod = release.find("pods", worker.worker_id, release.workers)
            assert pod["spec"]["priorityClassName"] == f"{release.namespace}-{release.full}-worker-0"
            eventually(lambda: is_busy(release, worker.worker_id), within_s=30, every_s=0.2)
        checked = next(part for part in parts if part.name == "passes")
        eventually(lambda: "terminationGracePeriod" in checked.log(), within_s=60, every_s=0.2)
        # Its org keeps no parked worker, so it drains.
        path = f"/api/v1/namespaces/{release.workers}/pods/{worker.worker_id}"
        eventually(lambda: release.cluster.api.find(path) is None, within_s=60, every_s=0.2)
    except BaseException:
        pods = release.cluster.api.find(f"/api/v1/namespaces/{release.workers}/pods") or {}
        print([(p["metadata"]["name"], p.get("status")) for p in pods.get("items", [])])
        print("\n".join(part.log()[-2000:] for part in parts))
        raise
    finally:
        for part in parts:
            part.send(signal.SIGTERM)
        codes = {part.name: part.ends() for part in parts}
    assert set(codes.values()) == {0}, codes
    assert not processes_about(folder)
    return {part.name: part.log() for part in parts}


def over(release: HelmRelease, component: str) -> dict[str, str]:
    if component not in WITH_TOKEN:
        return {}
    return {"WARMPOOL_KUBERNETES_KUBECONFIG": str(release.kubeconfig(component))}


def migrate(container: Object, ground: ChartGround) -> None:
    probes: Object = {kind: {} for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    job = Running(
        "migrate", {**container, **probes, "command": ["warmpool-init", "warmpool", "migrate"]}, ground
    )
    job.start()
    assert job.ends() == 0, job.log()


def deployed(release: HelmRelease, component: str) -> Object:
    found = release.cluster.api.find(
        f"/apis/apps/v1/namespaces/{release.namespace}/deployments/{release.full}-{component}"
    )
    assert found is not None
    return dict(found["spec"]["template"]["spec"]["containers"][0])


def is_busy(release: HelmRelease, name: str) -> bool:
    """Return the pods that the chart's budget selects."""
    budget = release.cluster.api.find(
        f"/apis/policy/v1/namespaces/{release.workers}/poddisruptionbudgets/{release.full}-busy"
    )
    assert budget is not None
    labels = release.find("pods", name, release.workers)["metadata"]["labels"]
    return bool(budget["spec"]["selector"]["matchLabels"].items() <= labels.items())


def meet_accidents(release: HelmRelease) -> None:
    """A Secret of an earlier pod of that name, companions without a pod, a cache that watches
    Secrets: with the account of `passes`.
    """
    settings = KubernetesSettings(
        namespace=release.workers,
        kubeconfig=str(release.kubeconfig("passes")),
        anchor=f"{release.full}-anchor",
    )
    for profile in (Profile(own_service_account=True), Profile()):
        name = "w-left" if profile.own_service_account else "w-followed"
        labels = {manifests.MANAGED_BY: manifests.MANAGER, LABEL_POOL: settings.anchor, LABEL_WORKER: name}
        release.cluster.api.create(
            f"/api/v1/namespaces/{release.workers}/secrets",
            {
                "metadata": {"name": name, "labels": labels},
                "stringData": {manifests.KEY_NAME: tokens.worker_key(MASTER_KEY, name)},
            },
        )
        made = wiring.build_driver(
            Settings(
                pool=PoolSettings(driver="kubernetes", call_timeout_s=5),
                kubernetes=settings,
                profiles={"default": profile},
            )
        )
        assert isinstance(made, KubernetesDriver)
        with closing(made) as driver, Watcher(driver) as watcher:
            spec = PodSpec(
                name=name, profile="default", revision="r", image="image:1", cpu_millicores=100,
                memory_mib=64, port=8080,
                grace_s=5, secret=tokens.worker_key(MASTER_KEY, name),
            )  # fmt: skip
            pod = driver.create(spec)
            watcher.wait_for(Pod, name, ready=True)
            driver.companions()
            read = driver.read(name)
            assert read is not None
            driver.stamp(read, HELD)
            driver.delete(name, pod.uid, grace_s=0)
            eventually(partial(pod_is_gone, driver, name), within_s=60, every_s=0.2)
            driver.delete_companions(name)
            eventually(partial(companion_is_gone, driver, name), within_s=60, every_s=0.2)


def test_a_typo_is_refused_before_the_cluster_sees_anything(release: HelmRelease) -> None:
    env = {"KUBECONFIG": str(release.cluster.kubeconfig), "HOME": str(release.cluster.root)}
    done = helm(
        "upgrade", release.name, str(CHART), "-n", release.namespace, "--set", "acquire.replica=3", env=env
    )
    assert done.returncode != 0
    assert "replica" in done.stderr
