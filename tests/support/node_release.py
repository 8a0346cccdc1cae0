"""A release of the chart on a real node, and what tests do to it."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Sequence
from typing import Any

from pool.client import Pool
from tests.support.helm import CHART, values_file
from tests.support.kube_api import Object
from tests.support.node_cluster import NodeCluster
from tests.support.waiting import eventually

ROLLOUT_S = 300.0
_IMAGE = ("image.repository=docker.io/library/warmpool", "image.tag=test")
_MEBI = 1 << 20


class ChartRelease:
    """One release with the values of the trial."""

    def __init__(self, node: NodeCluster, namespace: str = "pool", name: str = "wp") -> None:
        self.node = node
        self.name = name
        self.namespace = namespace
        self.fullname = f"{name}-warmpool"
        self.workers_namespace = f"{namespace}-{self.fullname}-workers"

    def install(self, *sets: str) -> None:
        """Install it, wait until everything is ready."""
        self._helm("install", *self._values(*sets), "--create-namespace", "--wait", "--timeout=5m")

    def upgrade(
        self, *sets: str, check: bool = True, timeout: str = "5m"
    ) -> subprocess.CompletedProcess[str]:
        words = ("upgrade", *self._values(*sets), "--wait", f"--timeout={timeout}")
        return self._helm(*words, check=check)

    def rollback(self) -> None:
        self._helm("rollback", self.name, "--wait", "--timeout=5m")

    def uninstall(self) -> None:
        self._helm("uninstall", self.name, "--wait", "--timeout=5m")

    def test(self) -> str:
        """Run `helm test --logs`, and return what it printed."""
        return self._helm("test", self.name, "--logs", "--timeout=4m").stdout

    def _values(self, *sets: str) -> list[str]:
        over = [word for pair in (*_IMAGE, *sets) for word in ("--set", pair)]
        return [self.name, str(CHART), "-f", values_file("trial"), *over]

    def _helm(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = self.node.helm(*words, "-n", self.namespace)
        if check and done.returncode:
            shown = self.node.kubectl("get", "pods", "-A", "-o", "wide").stdout
            raise AssertionError(f"helm {words[0]}: {done.stderr}{done.stdout}\n{shown}")
        return done

    def run(self, *words: str) -> str:
        """Run a command of the image in the pass worker's pod, and return its output."""
        where = ("-n", self.namespace, f"deploy/{self.fullname}-passes", "-c", "passes")
        done = self.node.kubectl("exec", *where, "--", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def client(self, org: str = "acme") -> Pool:
        """Return a client of an org, on the node, as a service with the label of clients has it."""
        secret = self.node.api.get(f"/api/v1/namespaces/{self.namespace}/secrets/{self.fullname}")
        url = base64.b64decode(secret["data"]["producer-broker-url"]).decode()
        key = self.run("warmpool", "org", "key", org).split()[-1]
        return Pool(re.sub(r"@[^:]+:", f"@{self._redis_address()}:", url), org_key=key, name="test")

    def _redis_address(self) -> str:
        """Return an address of Redis that stays when its pod is replaced. This process has no name
        server of the cluster.
        """
        path = f"/api/v1/namespaces/{self.namespace}/services"
        found = self.node.api.find(f"{path}/redis-address")
        if found is None:
            selector = {"app.kubernetes.io/instance": self.name, "app.kubernetes.io/component": "redis"}
            spec = {"selector": selector, "ports": [{"port": 6379}]}
            found = self.node.api.create(path, {"metadata": {"name": "redis-address"}, "spec": spec})
        return str(found["spec"]["clusterIP"])

    def pods(self, component: str = "") -> list[Object]:
        """Return the pods of a component that are not being deleted; without one, of all."""
        selector = f"app.kubernetes.io/instance={self.name}"
        if component:
            selector += f",app.kubernetes.io/component={component}"
        return self._pods(self.namespace, selector)

    def worker_pods(self, selector: str = "warmpool.dev/role=worker") -> list[Object]:
        """Return the workers' pods that are not being deleted."""
        return self._pods(self.workers_namespace, selector)

    def _pods(self, namespace: str, selector: str) -> list[Object]:
        found = self.node.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def worker_pod(self, name: str) -> Object | None:
        return self.node.api.find(f"/api/v1/namespaces/{self.workers_namespace}/pods/{name}")

    def components(self) -> list[str]:
        """Return the components that run all the time."""
        label = "app.kubernetes.io/component"
        pods = self.pods()
        return sorted({p["metadata"]["labels"][label] for p in pods if is_lasting(p)})

    def all_ready(self) -> bool:
        """Return whether each component has a ready pod, and all its pods are ready."""
        pods = [pod for pod in self.pods() if is_lasting(pod)]
        return bool(pods) and all(map(is_ready, pods))

    def wait_ready(self, *components: str) -> None:
        """Wait until the components, by default all, are ready."""
        eventually(lambda: self._ready(components), within_s=ROLLOUT_S, every_s=0.5)

    def _ready(self, components: Sequence[str]) -> bool:
        if not components:
            return self.all_ready()
        return all((pods := self.pods(one)) and all(map(is_ready, pods)) for one in components)

    def warm(self, count: int = 3) -> list[Object]:
        """Wait until N idle workers are ready, and return their pods."""

        def ready() -> list[Object] | None:
            found = [p for p in self.worker_pods("warmpool.dev/busy=false") if is_ready(p)]
            return found if len(found) >= count else None

        return eventually(ready, within_s=ROLLOUT_S, every_s=0.5)

    def memory(self) -> dict[str, tuple[float, float]]:
        """Return for each component what it uses and what it requests, in MiB. The kubelet measures
        every few seconds; figures from before a pod was ready are left out.
        """
        measured = {p["podRef"]["name"]: p["containers"][0]["memory"] for p in self.node.stats()["pods"]}
        found = {}
        for pod in (p for p in self.pods() if is_lasting(p)):
            asked = pod["spec"]["containers"][0]["resources"]["requests"]["memory"]
            memory = measured.get(pod["metadata"]["name"], {"time": ""})
            if memory["time"] > ready_since(pod):
                component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
                used = memory["workingSetBytes"] / _MEBI
                found[component] = (used, float(str(asked).removesuffix("Mi")))
        return found


def is_ready(pod: Object) -> bool:
    conditions: list[dict[str, Any]] = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def ready_since(pod: Object) -> str:
    """Return since when it is ready, in the API's notation."""
    return next(str(c["lastTransitionTime"]) for c in pod["status"]["conditions"] if c["type"] == "Ready")


def is_lasting(pod: Object) -> bool:
    """Return whether a controller keeps it running: not a Job's pod, not that of `helm test`."""
    owners = pod["metadata"].get("ownerReferences", [])
    return any(o["kind"] in {"ReplicaSet", "StatefulSet"} for o in owners)


def container_of(pod: Object) -> Object:
    """Return the status of its first container."""
    found: Object = pod["status"]["containerStatuses"][0]
    return found
