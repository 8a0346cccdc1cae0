"""Preflight and doctor on a real API server: every permission of the driver's list is checked and
named if it is missing, the checks themselves are never refused, and everything that could end a
busy worker is found.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from pool import wiring
from pool.core.settings import KubernetesSettings, PoolSettings, Profile, Settings
from pool.drivers.kubernetes import manifests
from pool.drivers.kubernetes.inspecting import Inspector
from pool.drivers.kubernetes.rights import DoctorRight, Right
from pool.ops import reporting
from pool.ops.cli.status import screen
from pool.ops.doctor import Finding, Installation, Level, ceiling, clocks, cluster, disruption, starting
from pool.ops.doctor.checks import run_all
from tests.support.kube_any import RBAC, Cluster, ClusterUser
from tests.support.kube_api import ApiError, Object
from tests.support.kube_cluster import KubeCluster
from tests.support.kube_ground import PLACEHOLDER, least_privileged, rules
from tests.support.postgres_server import PostgresServer
from tests.support.system import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

ANCHOR = KubernetesSettings().anchor
CHECKS = (
    cluster.reachable,
    cluster.rights,
    disruption.priorities,
    disruption.budget,
    ceiling.node_ceiling,
    clocks.differences,
)
NODEPOOLS = "/apis/karpenter.sh/v1/nodepools"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
REVIEWS = ("create", DoctorRight.REVIEW_OUR_ACCESS.resource)


def settings_of(kubeconfig: Path, namespace: str, *profiles: Profile, **changes: Any) -> Settings:
    pool = {name: changes.pop(name) for name in ("database_url",) if name in changes}
    return Settings(
        pool=PoolSettings(driver="kubernetes", call_timeout_s=5, **pool),
        kubernetes=KubernetesSettings(namespace=namespace, kubeconfig=str(kubeconfig), **changes),
        profiles={p.name: p for p in profiles or (Profile(),)},
    )


def without(granted: list[Object], right: Right) -> list[Object]:
    """Return the same rules without one verb on one resource."""
    found = []
    for rule in granted:
        verbs = [v for v in rule["verbs"] if (v, rule["resources"][0]) != (right.verb, right.resource)]
        found += [{**rule, "verbs": verbs}] if verbs else []
    return found


def user_without(cluster: Cluster, namespace: str, right: Right) -> ClusterUser:
    name = f"no-{right.verb}-{right.resource}"
    roles, nodes = without(rules("Role"), right), without(rules("ClusterRole"), right)
    return cluster.user(name, namespace, roles, cluster_rules=nodes)


def lacking(inspector: Inspector) -> set[Right]:
    return {lack.right for lack in inspector.missing_rights()}


def test_with_the_role_of_the_driver_nothing_is_missing_and_nothing_is_refused(
    own_cluster: KubeCluster,
) -> None:
    namespace = own_cluster.namespace("preflight")
    user = least_privileged(own_cluster, namespace)
    since = own_cluster.mark()
    with capture_logs() as told:
        eventually(lambda: quiet(settings_of(user.kubeconfig, namespace, Profile(own_service_account=True))))
    assert told == []
    mine = [r for r in own_cluster.requests(since) if r.user == user.name]
    assert {(r.verb, r.resource) for r in mine} == {REVIEWS, ("get", "configmaps")}
    assert {r.code for r in mine} == {201, 404}
    assert len([r for r in mine if r.resource == REVIEWS[1]]) == len(Right)


def quiet(settings: Settings) -> bool:
    starting.assert_rights(settings)
    return True


@pytest.mark.parametrize("right", list(Right), ids=lambda right: f"{right.verb} {right.resource}")
def test_each_missing_permission_is_named(cluster: Cluster, namespace: str, right: Right) -> None:
    user = user_without(cluster, namespace, right)
    settings = settings_of(user.kubeconfig, namespace, Profile(own_service_account=True))
    with closing(wiring.open_cluster(settings)) as inspector:
        eventually(lambda: lacking(inspector) == {right}, within_s=10)
        found = list(cluster_findings(settings))
    level = Level.WARN if right.resource == "nodes" else Level.BAD
    assert [(f.id, f.level) for f in found] == [(f"rights:{right.resource}", level)]
    assert f"no permission to {right.verb} {right.resource} in " in found[0].evidence
    assert f"kubectl auth can-i {right.verb} {right.resource}" in found[0].fix


def cluster_findings(settings: Settings) -> list[Finding]:
    patient = Installation(settings)
    try:
        return [
            f for f in run_all(patient, (cluster.reachable, cluster.rights)) if f.id.startswith("rights:")
        ]
    finally:
        patient.close()


def test_permissions_that_the_configuration_does_not_need_are_not_missing(
    cluster: Cluster, namespace: str
) -> None:
    """Service accounts only where a profile has its own; the permission to create the anchor only
    where there is none.
    """
    granted = [r for r in rules("Role") if r["resources"] != ["serviceaccounts"]]
    user = cluster.user(
        "few", namespace, without(granted, Right.CREATE_CONFIGMAPS), cluster_rules=rules("ClusterRole")
    )
    settings = settings_of(user.kubeconfig, namespace)
    with closing(wiring.open_cluster(settings)) as inspector:
        eventually(lambda: lacking(inspector) == {Right.CREATE_CONFIGMAPS}, within_s=10)
        cluster.api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": ANCHOR}})
        assert lacking(inspector) == set()


def test_a_role_that_is_created_a_moment_later_is_waited_for(cluster: Cluster, namespace: str) -> None:
    user = cluster.user("early", namespace, [], cluster_rules=rules("ClusterRole"))

    def grant() -> None:
        cluster.api.patch(f"{RBAC}/namespaces/{namespace}/roles/early", {"rules": rules("Role")})

    later = threading.Timer(0.5, grant)
    later.start()
    starting.assert_rights(settings_of(user.kubeconfig, namespace))
    later.join()


def test_a_component_without_a_required_permission_exits_and_without_nodes_it_warns(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    user = user_without(cluster, namespace, Right.DELETE_PODS)
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("WARMPOOL_")},
        "WARMPOOL_DATA_DIR": str(tmp_path / "data"),
        "WARMPOOL_DRIVER": "kubernetes",
        "WARMPOOL_BROKER_URL": "redis://127.0.0.1:1/0",
        "WARMPOOL_KUBERNETES_KUBECONFIG": str(user.kubeconfig),
        "WARMPOOL_KUBERNETES_NAMESPACE": namespace,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tasks", "worker", "fleet"], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    [line] = done.stderr.strip().splitlines()
    assert line.startswith(f"warmpool: no permission to delete pods in namespace {namespace}"), done.stderr
    assert "kubectl auth can-i delete pods" in line
    blind = cluster.user("blind", namespace, rules("Role"))
    with capture_logs() as told:
        eventually(lambda: quiet(settings_of(blind.kubeconfig, namespace)))
    assert [(line["event"], line["id"]) for line in told] == [("right_missing", "rights:nodes")]
    assert "no permission to list, watch nodes in the cluster" in told[0]["evidence"]


# What could end a busy worker


class Examined:
    """A doctor with all permissions, or with the least."""

    def __init__(self, cluster: Cluster, namespace: str, postgres: PostgresServer) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._database = postgres.url()

    def __call__(
        self, *profiles: Profile, user: ClusterUser | None = None, **changes: Any
    ) -> dict[str, Finding]:
        kubeconfig = user.kubeconfig if user else self.cluster.kubeconfig
        settings = settings_of(kubeconfig, self.namespace, *profiles, database_url=self._database, **changes)
        patient = Installation(settings)
        try:
            return {f.id: f for f in run_all(patient, CHECKS)}
        finally:
            patient.close()

    def apply_budget(self, name: str, **spec: Any) -> None:
        file = Path(manifests.__file__).with_name("pdb.yaml")
        shipped = yaml.safe_load(file.read_text())["spec"]
        path = f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"
        self.cluster.api.create(path, {"metadata": {"name": name}, "spec": {**shipped, **spec}})

    def drop_budget(self, name: str) -> None:
        self.cluster.api.delete(f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets/{name}")


@pytest.fixture
def examined(cluster: Cluster, namespace: str, postgres: PostgresServer) -> Examined:
    return Examined(cluster, namespace, postgres)


def test_a_budget_must_select_busy_workers_and_no_others(examined: Examined) -> None:
    assert examined()["budget:default"].level is Level.BAD
    assert examined.namespace in examined()["budget:default"].fix
    examined.apply_budget("shipped")
    assert examined()["budget"].level is Level.OK
    examined.apply_budget("second", selector={"matchLabels": {"warmpool.dev/profile": "default"}})
    both = examined(Profile(), Profile(name="other"))
    assert "second, shipped all select" in both["budget:default"].evidence
    assert "budget:other" not in both
    examined.drop_budget("shipped")
    assert examined()["budget:default"].level is Level.WARN
    assert "idle workers" in examined()["budget:default"].evidence
    examined.drop_budget("second")
    examined.apply_budget("loose", minAvailable=1)
    assert "allows evictions" in examined()["budget:default"].evidence


@pytest.fixture
def classes(cluster: Cluster, namespace: str) -> Iterator[dict[str, str]]:
    """PriorityClasses by their role; they belong to the whole cluster."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    made: dict[str, Object] = {
        "low": {"value": -20},
        "high": {"value": 1000},
        "shy": {"value": 1000, "preemptionPolicy": "Never"},
    }
    for name, what in made.items():
        cluster.api.create(path, {"metadata": {"name": f"{namespace}-{name}"}, **what})
    try:
        cluster.api.create(path, PLACEHOLDER)
    except ApiError as exc:
        if exc.code != 409:
            raise
    yield {name: f"{namespace}-{name}" for name in made}
    for name in made:
        cluster.api.delete(f"{path}/{namespace}-{name}")


def test_workers_must_have_a_higher_priority_than_placeholders(
    examined: Examined, classes: dict[str, str]
) -> None:
    def bad(**changes: Any) -> str:
        found = examined(Profile(headroom=1), **changes)
        return "; ".join(f"{f.level} {f.evidence}" for f in found.values() if f.id.startswith("priorities:"))

    assert bad() == ""
    assert bad(worker_priority_class=classes["high"]) == ""
    assert "has value -20, which is not above -10" in bad(worker_priority_class=classes["low"])
    assert "preemptionPolicy Never" in bad(worker_priority_class=classes["shy"])
    assert "bad there is no PriorityClass no-such: no worker" in bad(worker_priority_class="no-such")
    assert "bad there is no PriorityClass no-such: no placeholder" in bad(
        placeholder_priority_class="no-such"
    )
    assert "warn" in bad(placeholder_priority_class=classes["low"])
    alone = examined(worker_priority_class=classes["low"])
    assert alone[f"priorities:{classes['low']}"].level is Level.WARN
    own = examined(Profile(priority_class=classes["low"], headroom=1))
    assert own[f"priorities:{classes['low']}"].level is Level.BAD


@pytest.fixture
def without_karpenter(own_cluster: KubeCluster) -> KubeCluster:
    """A cluster without its custom resource; another file may have created it."""
    if own_cluster.api.find(f"{DEFINITIONS}/nodepools.karpenter.sh") is not None:
        own_cluster.api.delete(f"{DEFINITIONS}/nodepools.karpenter.sh")
    eventually(lambda: own_cluster.api.find("/apis/karpenter.sh/v1") is None, within_s=30)
    return own_cluster


def test_without_karpenter_there_is_nothing_to_report_and_no_permission_is_needed(
    without_karpenter: KubeCluster, postgres: PostgresServer
) -> None:
    examined = Examined(without_karpenter, without_karpenter.namespace("plain"), postgres)
    user = least_privileged(without_karpenter, examined.namespace)
    eventually(lambda: examined(user=user)["rights"].level is Level.OK)
    since = without_karpenter.mark()
    assert examined(user=user)["node_ceiling"].evidence == "the cluster has no NodePools"
    assert examined()["node_ceiling"].evidence == "the cluster has no NodePools"
    assert 403 not in {r.code for r in without_karpenter.requests(since) if r.user == user.name}


@pytest.fixture
def karpenter(own_cluster: KubeCluster) -> Iterator[KubeCluster]:
    """Its custom resource; here any shape is accepted."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    if own_cluster.api.find(f"{DEFINITIONS}/nodepools.karpenter.sh") is None:
        own_cluster.api.create(
            DEFINITIONS,
            {
                "metadata": {"name": "nodepools.karpenter.sh"},
                "spec": {
                    "group": "karpenter.sh",
                    "scope": "Cluster",
                    "names": {"kind": "NodePool", "plural": "nodepools", "singular": "nodepool"},
                    "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
                },
            },
        )
    eventually(lambda: served(own_cluster), within_s=30)
    yield own_cluster
    own_cluster.api.call("DELETE", NODEPOOLS)


def served(cluster: Cluster) -> bool:
    """A new kind is first not found, and then not yet stored."""
    try:
        return cluster.api.find(NODEPOOLS) is not None
    except ApiError:
        return False


def add_nodepool(cluster: Cluster, name: str, **spec: Any) -> None:
    template = {"metadata": {"labels": {"size": name}}, "spec": spec}
    cluster.api.create(
        NODEPOOLS,
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": name},
            "spec": {"template": template},
        },
    )


def test_the_nodes_termination_limit_must_exceed_the_workers_grace(
    karpenter: Cluster, postgres: PostgresServer
) -> None:
    examined = Examined(karpenter, karpenter.namespace("nodes"), postgres)
    assert examined()["node_ceiling"].level is Level.OK
    add_nodepool(karpenter, "short", terminationGracePeriod="10m")
    add_nodepool(karpenter, "long", terminationGracePeriod="1h0m0s")
    add_nodepool(karpenter, "endless")
    found = examined(Profile(grace_s=600))
    assert found["node_ceiling:short:default"].level is Level.BAD
    assert "600 s" in found["node_ceiling:short:default"].evidence
    assert found["node_ceiling:unlimited"].level is Level.WARN
    assert found["node_ceiling:unlimited"].evidence.startswith(
        "NodePool endless has no terminationGracePeriod"
    )
    assert "node_ceiling:long:default" not in found
    chosen = examined(Profile(grace_s=600, node_selector={"size": "long"}))
    assert chosen["node_ceiling"].level is Level.OK


def test_the_log_and_status_report_a_missing_limit_until_it_is_set(
    karpenter: KubeCluster, postgres: PostgresServer, postgres_template: str
) -> None:
    """First the pass workers may not read NodePools, then they may, then the NodePool is corrected."""
    namespace = karpenter.namespace("ceiling")
    user = least_privileged(karpenter, namespace)
    url = postgres.create_database("ceiling", template=postgres_template)
    settings = settings_of(user.kubeconfig, namespace, Profile(grace_s=600), database_url=url)
    add_nodepool(karpenter, "endless")

    eventually(lambda: "may not list nodepools" in "".join(logged_at_start(settings)), within_s=30)
    [line] = logged_at_start(settings)
    assert "rbac.nodepools=true" in line
    assert reported(settings) == [line]

    grant = {"apiGroups": ["karpenter.sh"], "resources": ["nodepools"], "verbs": ["list"]}
    karpenter.api.patch(
        f"{RBAC}/clusterroles/{namespace}-warmpool", {"rules": [*rules("ClusterRole"), grant]}
    )
    eventually(lambda: "may not" not in "".join(logged_at_start(settings)), within_s=30)
    [line] = logged_at_start(settings)
    assert line.startswith("NodePool endless has no terminationGracePeriod")
    assert reported(settings) == [line]

    limited = {"spec": {"template": {"spec": {"terminationGracePeriod": "1h"}}}}
    karpenter.api.patch(f"{NODEPOOLS}/endless", limited)
    assert (logged_at_start(settings), reported(settings)) == ([], [])


class OneTurn(threading.Event):
    """Set as soon as it is waited for."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


def logged_at_start(settings: Settings) -> list[str]:
    """Return what the check logs in its first turn."""
    with capture_logs() as told:
        ceiling.follow(settings, OneTurn())
    return ["; ".join((line["evidence"], line["fix"])) for line in told]


def reported(settings: Settings) -> list[str]:
    """Return the lines of `warmpool status` about nodes."""
    store = wiring.open_store(settings)
    try:
        lines = screen(reporting.status(store, settings)).splitlines()
    finally:
        store.close()
    return [line.removeprefix("! ") for line in lines if "NodePool" in line or "nodepools" in line]


def test_with_the_least_permissions_the_doctor_lists_unchecked_items_and_nothing_is_refused(
    karpenter: KubeCluster, postgres: PostgresServer
) -> None:
    namespace = karpenter.namespace("least")
    user = least_privileged(karpenter, namespace)
    examined = Examined(karpenter, namespace, postgres)
    since = karpenter.mark()
    eventually(lambda: examined(user=user)["rights"].level is Level.OK)
    found = examined(user=user)
    for ident in ("budget", "priorities", "node_ceiling"):
        assert found[ident].level is Level.UNCHECKED, found[ident]
        assert "we may not list" in found[ident].evidence
    assert "API server" in found["clocks"].evidence
    mine = [r for r in karpenter.requests(since) if r.user == user.name]
    assert [r for r in mine if r.code == 403] == []
    assert REVIEWS in {(r.verb, r.resource) for r in mine}
    assert [r for r in mine if r.is_write] == []


def test_a_wrong_clock_of_the_api_server_is_reported(
    examined: Examined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Inspector, "now_s", lambda self: 0.0)
    found = examined()["clock_API_server"]
    assert found.level is Level.WARN
    assert found.fix == "synchronize the clock with NTP"
