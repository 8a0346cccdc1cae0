"""A kubelet without containers: each pod that is bound to its node runs as a real process on this
machine.

    with HollowKubelet(cluster) as kubelet:
        ...   # pods become ready, answer at podIP:containerPort, and end on deletion
        kubelet.signal(namespace, "w-one", signal.SIGKILL)

Each pod has its own address in 127.0.0.0/8, so that all can use one port (Linux only). A pod
without a command runs the reference worker. It behaves like a kubelet: status by the probe, a
missing Secret delays the start, SIGTERM and the grace period, the exit code, containers that
outlive the API server. Without a scheduler it also binds pods, unless its node is cordoned.
"""

from __future__ import annotations

import datetime as dt
import shutil
import signal
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Self

from tests.support.hollow_pod import RETRY_S, HollowHost, HollowPod, NotAnswered
from tests.support.kube_any import NAMESPACE_PREFIX, READY, Cluster
from tests.support.kube_api import ApiClient, ApiError, ApiWatch, Object
from tests.support.kube_cluster import KUBELET
from tests.support.kube_processes import ServerProcesses

HOLLOW = "warmpool.dev/hollow"
LEASE_S = 40


class Binding(Enum):
    """What assigns pods to nodes."""

    OURS = "the kubelet binds unbound pods"
    SCHEDULER = "a scheduler does"


class HollowKubelet:
    """One node and its pods, in namespaces created by tests only: in a borrowed cluster, daemons
    are bound to every node, and this machine must not run them.
    """

    def __init__(
        self, cluster: Cluster, *, node: str = "hollow", labels: Mapping[str, str] | None = None,
        binding: Binding | None = None,
    ) -> None:  # fmt: skip
        self.node = node
        self._api = ApiClient(cluster.access_of(KUBELET), connections=50)
        self._host = HollowHost(
            api=self._api, children=ServerProcesses(), root=Path(tempfile.mkdtemp(prefix="wp-kubelet-"))
        )
        self._cluster = cluster
        self._labels = labels
        self._binding = binding or (Binding.SCHEDULER if cluster.has_scheduler else Binding.OURS)
        self._stopping = threading.Event()
        self._pods: dict[str, HollowPod] = {}
        self._watch: ApiWatch | None = None
        self._threads = [threading.Thread(target=self._follow), threading.Thread(target=self._renew_lease)]

    @property
    def placement(self) -> Object:
        """Return what a pod's spec needs to be bound to this node and to no other, in any cluster."""
        return {
            "nodeSelector": {HOLLOW: self.node},
            "tolerations": [{"key": HOLLOW, "operator": "Exists", "effect": "NoSchedule"}],
        }

    def start(self) -> Self:
        taint = {"key": HOLLOW, "value": self.node, "effect": "NoSchedule"}
        taints = [taint] if self._cluster.is_borrowed else []
        self._cluster.add_node(self.node, labels={HOLLOW: self.node, **(self._labels or {})}, taints=taints)
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """End all containers at once and remove the node; the status of its pods stays as it is."""
        self._stopping.set()
        if self._watch is not None:
            self._watch.stop()
        for pod in tuple(self._pods.values()):
            pod.abandon()
            pod.join()
        for thread in self._threads:
            thread.join(timeout=20)
        self._host.children.close()
        with suppress(*NotAnswered):
            self._api.delete(f"/api/v1/nodes/{self.node}")
        self._api.close()
        shutil.rmtree(self._host.root, ignore_errors=True)

    def signal(self, namespace: str, name: str, what: signal.Signals) -> None:
        """Send a signal to a pod's process."""
        self._of(namespace, name).signal(what)

    def kill_for_memory(self, namespace: str, name: str) -> None:
        """Kill a pod's process as the kernel does when memory is short."""
        self._of(namespace, name).kill_for_memory()

    def pid(self, namespace: str, name: str) -> int:
        """Return a pod's process."""
        process = self._of(namespace, name).process
        assert process is not None
        return process.pid

    @property
    def missing_images(self) -> set[str]:
        """Images that cannot be pulled; tests may change it."""
        return self._host.missing_images

    def running(self, namespace: str) -> list[str]:
        """Return the names of pods that have a process now."""
        pods = tuple(self._pods.values())
        return sorted(pod.name for pod in pods if pod.namespace == namespace and pod.is_running)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _of(self, namespace: str, name: str) -> HollowPod:
        pods = tuple(self._pods.values())
        return next(p for p in pods if (p.namespace, p.name) == (namespace, name) and p.is_running)

    def _follow(self) -> None:
        """List, then watch from there; after any error, list again."""
        while not self._stopping.is_set():
            try:
                self._follow_once()
            except NotAnswered:
                self._stopping.wait(RETRY_S)

    def _follow_once(self) -> None:
        selected = {} if self._binding is Binding.OURS else {"fieldSelector": f"spec.nodeName={self.node}"}
        listed = self._api.get("/api/v1/pods", **selected)
        pods = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        for uid in set(self._pods) - set(pods):
            self._pods.pop(uid).abandon()
        for pod in pods.values():
            self._tell(pod)
        version = listed["metadata"]["resourceVersion"]
        # Pods that could not be bound are tried again with the next list.
        seconds = 5 if self._binding is Binding.OURS else 300
        self._watch = self._api.watch("/api/v1/pods", seconds=seconds, resourceVersion=version, **selected)
        try:
            if self._stopping.is_set():
                return
            for kind, pod in self._watch:
                if self._stopping.is_set():
                    return
                if kind == "DELETED":
                    known = self._pods.pop(pod["metadata"]["uid"], None)
                    if known is not None:
                        known.abandon()
                elif kind != "BOOKMARK":
                    self._tell(pod)
        finally:
            self._watch.close()

    def _tell(self, pod: Object) -> None:
        uid, bound_to = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if not pod["metadata"]["namespace"].startswith(NAMESPACE_PREFIX):
            return
        if bound_to is None and self._binding is Binding.OURS:
            self._bind(pod)
        elif bound_to == self.node:
            if uid not in self._pods:
                self._pods[uid] = HollowPod(self._host, pod)
            self._pods[uid].tell(pod)

    def _bind(self, pod: Object) -> None:
        node = self._api.get(f"/api/v1/nodes/{self.node}")
        wanted = pod["spec"].get("nodeSelector", {}).items()
        if node["spec"].get("unschedulable") or not wanted <= node["metadata"]["labels"].items():
            return
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding"
        try:
            self._api.create(
                path, {"metadata": {"name": meta["name"]}, "target": {"kind": "Node", "name": self.node}}
            )
        except ApiError as exc:
            # Deleted, or bound by another scheduler.
            if exc.code not in (404, 409):
                raise

    def _renew_lease(self) -> None:
        """Report that the node is alive and ready, as the controllers expect."""
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": self.node, "leaseDurationSeconds": LEASE_S}
        while True:
            lease = {"metadata": {"name": self.node}, "spec": spec | {"renewTime": _now()}}
            try:
                if self._api.find(f"{path}/{self.node}") is None:
                    self._api.create(path, lease)
                else:
                    self._api.patch(f"{path}/{self.node}", lease)
                # Correct the status if a controller took the node for lost.
                self._api.patch(f"/api/v1/nodes/{self.node}/status", {"status": {"conditions": [READY]}})
            except NotAnswered:
                if self._stopping.wait(RETRY_S):
                    return
                continue
            if self._stopping.wait(LEASE_S / 4):
                return


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
