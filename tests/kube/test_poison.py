"""An admission policy prevents the deletion of one pod: the pass skips it and continues. Without
the delete permission the pass fails and names the permission.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pool.core.errors import Forbidden
from pool.drivers.kubernetes.rights import Right
from pool.ops import reporting
from pool.store import Store, passes
from tests.contracts.passes import scene
from tests.kube.test_preflight import user_without
from tests.support.fault_proxy import FaultProxy
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_any import Cluster
from tests.support.kube_api import ApiError
from tests.support.kube_ground import KubeGround
from tests.support.scene import Scene
from tests.support.waiting import eventually

__all__ = ["scene"]

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
OLD_S = 200.0


@pytest.fixture
def ground(cluster: Cluster, kubelet: HollowKubelet, namespace: str) -> Iterator[KubeGround]:
    with FaultProxy(cluster.access) as proxy:
        yield KubeGround(cluster, kubelet, namespace, proxy)


@contextmanager
def undeletable(cluster: Cluster, namespace: str, name: str) -> Iterator[None]:
    """The API server refuses to delete that pod, for every user, while the block runs."""
    policy, binding = (f"{ADMISSION}/validatingadmissionpolic{end}" for end in ("ies", "ybindings"))
    cluster.api.create(
        policy,
        {
            "metadata": {"name": namespace},
            "spec": {
                "matchConstraints": {
                    "resourceRules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["DELETE"],
                            "resources": ["pods"],
                        }
                    ]
                },
                "validations": [
                    # 403 as from a webhook, and as for a missing permission.
                    {
                        "expression": f"request.name != '{name}'",
                        "message": "this pod must not be deleted",
                        "reason": "Forbidden",
                    }
                ],
            },
        },
    )
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    cluster.api.create(
        binding,
        {
            "metadata": {"name": namespace},
            "spec": {
                "policyName": namespace,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": selector},
            },
        },
    )
    try:
        eventually(lambda: is_refused(cluster, namespace, name), within_s=30, every_s=0.2)
        yield
    finally:
        cluster.api.delete(f"{binding}/{namespace}")
        cluster.api.delete(f"{policy}/{namespace}")
        eventually(lambda: not is_refused(cluster, namespace, name), within_s=30, every_s=0.2)


def is_refused(cluster: Cluster, namespace: str, name: str) -> bool:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    try:
        cluster.api.call("DELETE", path, {"dryRun": ["All"]})
    except ApiError as exc:
        return "this pod must not be deleted" in str(exc)
    return False


def make_orphans(scene: Scene, ground: KubeGround, *names: str) -> None:
    for name in names:
        scene.driver.create(ground.spec(name))
    for name in names:
        scene.driver.become_ready(name)
    scene.pass_time(OLD_S)


def test_a_pod_that_an_admission_policy_keeps_makes_no_pass_dark(
    scene: Scene, ground: KubeGround, cluster: Cluster, namespace: str
) -> None:
    make_orphans(scene, ground, "w-a", "w-poison", "w-z")
    with undeletable(cluster, namespace, "w-poison"):
        for _ in range(3):
            assert scene.run_pass("sweep_orphans")["outcome"] == "ok"
            scene.until_seen(lambda pods: set(pods) == {"w-poison"})
        worries = {w["id"]: w["text"] for w in reporting.status(scene.store, scene.deps.settings)["worries"]}
        told = worries["refused:sweep_orphans:orphan_deleted"]
        assert "w-poison" in told
        assert "refused 3 times" in told
        assert "this pod must not be deleted" in told
        with scene.store.read() as tx:
            row = passes.get(tx, "sweep_orphans")
        assert (row.last_outcome, row.failures) == ("ok", 0)
    assert scene.run_pass("sweep_orphans")["outcome"] == "ok"
    scene.until_seen(lambda pods: not pods)


def test_without_the_delete_permission_the_pass_fails_and_names_it(
    ground: KubeGround, cluster: Cluster, namespace: str, store: Store
) -> None:
    ground.through_proxy = user_without(cluster, namespace, Right.DELETE_PODS).kubeconfig
    with Scene(store, ground) as scene:
        make_orphans(scene, ground, "w-a", "w-b")
        with pytest.raises(Forbidden, match=f"may not delete pods in namespace {namespace}"):
            scene.run_pass("sweep_orphans")
        with scene.store.read() as tx:
            row = passes.get(tx, "sweep_orphans")
        assert (row.last_outcome, row.last_success_at) == ("failed", None)
        assert "may not delete pods" in str(row.last_detail)
