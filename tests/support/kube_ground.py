"""The test ground of the Kubernetes driver: actions of tests on its pods that bypass the driver.
The driver has only the permissions of `rbac.yaml`, and reaches the API server through a proxy that
can fail on demand.
"""

from __future__ import annotations

import datetime as dt
import signal
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from pool import wiring
from pool.core import tokens
from pool.core.settings import KubernetesSettings, PoolSettings, Profile, Settings
from pool.drivers.kubernetes import manifests
from pool.drivers.kubernetes.driver import KubernetesDriver
from pool.drivers.port import LABEL_POOL, LABEL_WORKER, Pod, PodRole, PodSpec
from tests.support.fault_proxy import FaultProxy
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_any import Cluster, ClusterUser
from tests.support.kube_api import ApiError, Object
from tests.support.local_ground import MASTER_KEY, auth, call
from tests.support.waiting import eventually

CALL_TIMEOUT_S = 5
ROLES = Path(manifests.__file__).with_name("rbac.yaml")
PLACEHOLDER = {
    "metadata": {"name": KubernetesSettings().placeholder_priority_class},
    "value": -10,
    "preemptionPolicy": "Never",
}


class KubeGround:
    """One namespace of a cluster."""

    def __init__(self, cluster: Cluster, kubelet: HollowKubelet, namespace: str, proxy: FaultProxy) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.proxy = proxy
        self.profile = Profile()
        self._kubelet = kubelet
        self._busy: dict[str, dict[str, str]] = {}
        self.user = least_privileged(cluster, namespace)
        through = replace(self.user.access, server=proxy.url, authority="")
        self.through_proxy = cluster.write_kubeconfig(f"{namespace}-through-proxy", through)
        try:
            cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", PLACEHOLDER)
        except ApiError as exc:
            if exc.code != 409:
                raise

    def driver(self, **changes: Any) -> KubernetesDriver:
        return self.driver_of({"default": self.profile}, **changes)

    def driver_of(self, profiles: Mapping[str, Profile], **changes: Any) -> KubernetesDriver:
        given = {"namespace": self.namespace, "kubeconfig": str(self.through_proxy)} | changes
        kubernetes = KubernetesSettings(**given)
        pool = PoolSettings(driver="kubernetes", call_timeout_s=CALL_TIMEOUT_S)
        settings = Settings(pool=pool, kubernetes=kubernetes, profiles=profiles)
        driver = wiring.build_driver(settings)
        assert isinstance(driver, KubernetesDriver)
        return driver

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the configuration tables of a deployment whose pods are here. It reaches the API
        server as its least-privileged user.
        """
        where = {"namespace": self.namespace, "kubeconfig": str(self.user.kubeconfig)}
        return {"pool": {"driver": "kubernetes"}, "kubernetes": where}

    def unstartable(self, profile: Profile) -> Profile:
        image = f"missing:{self.namespace}"
        self._kubelet.missing_images.add(image)
        return replace(profile, image=image)

    def spec(self, name: str = "w-one", *, role: PodRole = PodRole.WORKER) -> PodSpec:
        secret = tokens.worker_key(MASTER_KEY, name) if role is PodRole.WORKER else ""
        return PodSpec(
            name=name, profile="default", revision="rev-1", image="image:1", cpu_millicores=100,
            memory_mib=64, port=8080, grace_s=300, secret=secret, role=role,
        )  # fmt: skip

    def make_ready(self, pod: Pod) -> Pod:
        with self._driver() as driver:
            ready = eventually(
                lambda: p if (p := driver.read(pod.name)) and p.usable else None, within_s=30, every_s=0.1
            )
        assert ready is not None
        return ready

    def make_busy(self, pod: Pod) -> None:
        self._busy[pod.uid] = auth(pod.name)
        assert call(pod, "POST", "/sessions", auth(pod.name))[0] == 200

    def make_unused(self, pod: Pod) -> None:
        held = self._busy.pop(pod.uid, None)
        if held is not None:
            assert call(pod, "DELETE", "/sessions", held)[0] == 200

    def make_container_die(self, pod: Pod) -> None:
        self._kubelet._pods[pod.uid].signal(signal.SIGKILL)

    def make_unaskable(self, pod: Pod) -> None:
        self._kubelet._pods[pod.uid].signal(signal.SIGSTOP)

    def kill_for_memory(self, pod: Pod) -> None:
        self._kubelet._pods[pod.uid].kill_for_memory()

    def lose_companions(self, name: str) -> None:
        self.cluster.api.delete(self.path("secrets", name))

    def leave_companions(self, name: str) -> None:
        labels = {
            manifests.MANAGED_BY: manifests.MANAGER,
            LABEL_POOL: KubernetesSettings().anchor,
            LABEL_WORKER: name,
        }
        key = {manifests.KEY_NAME: tokens.worker_key(MASTER_KEY, name)}
        self.cluster.api.create(
            self.path("secrets"), {"metadata": {"name": name, "labels": labels}, "stringData": key}
        )

    def grace_left_s(self, pod: Pod) -> float:
        found = self.raw(pod.name)
        assert found is not None
        ends = dt.datetime.fromisoformat(found["metadata"]["deletionTimestamp"])
        return (ends - dt.datetime.now(dt.UTC)).total_seconds()

    def unreachable(self) -> AbstractContextManager[None]:
        return self.proxy.away()

    def path(self, resource: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{resource}" + (f"/{name}" if name else "")

    def raw(self, name: str, resource: str = "pods") -> Object | None:
        """Return an object as stored by the API server."""
        return self.cluster.api.find(self.path(resource, name))

    @contextmanager
    def _driver(self) -> Iterator[KubernetesDriver]:
        driver = self.driver()
        try:
            yield driver
        finally:
            driver.close()


def rules(kind: str) -> list[Object]:
    """Return the rules of all roles of that kind in `rbac.yaml`."""
    roles = list(yaml.safe_load_all(ROLES.read_text()))
    return [rule for role in roles if role["kind"] == kind for rule in role["rules"]]


def least_privileged(cluster: Cluster, namespace: str) -> ClusterUser:
    """Create a user with exactly the permissions of the driver's roles."""
    return cluster.user("warmpool", namespace, rules("Role"), cluster_rules=rules("ClusterRole"))
