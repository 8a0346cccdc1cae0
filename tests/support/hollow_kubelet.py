"""A kubelet without containers: each pod that is bound to its node runs as a real process on this machine.

    with HollowKubelet(cluster) as kubelet:
        ...                                   pods become ready, answer at podIP:containerPort, and end when told to
        kubelet.signal("w-one", signal.SIGKILL)

Each pod has an address of its own in 127.0.0.0/8, so many listen on one port (Linux only). A pod without a command runs the
reference worker. It keeps what a kubelet keeps: status by the probe, a missing Secret holds a start, SIGTERM and the grace, the exit
code, a container that outlives the API server. Without a scheduler it also binds pods, unless its node is cordoned.
"""

from __future__ import annotations

import datetime
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Self

import urllib3

from tests.support import hollow_container as container
from tests.support.kube_api import STRATEGIC, Api, ApiError, Object, Watch
from tests.support.kube_cluster import KUBELET, Cluster, KubeCluster, Part
from tests.support.kube_processes import Children

NotAnswered = (ApiError, urllib3.exceptions.HTTPError)
RETRY_S = 0.1
STARTING_PROBE_S = 0.05
LEASE_S = 40


class Binding(Enum):
    """Who decides about a pod's node."""

    OURS = "the kubelet binds what nobody has bound"
    SCHEDULER = "a scheduler does"


class HollowKubelet:
    """One node and its pods, in all namespaces."""

    def __init__(
        self, cluster: Cluster, *, node: str = "hollow", labels: Mapping[str, str] | None = None,
        binding: Binding | None = None,
    ) -> None:  # fmt: skip
        has_scheduler = not isinstance(cluster, KubeCluster) or Part.SCHEDULER in cluster.parts
        access = cluster.access_of(KUBELET) if isinstance(cluster, KubeCluster) else cluster.access
        self.node = node
        self.api = Api(access, connections=50)
        self.children = Children()
        self.root = Path(tempfile.mkdtemp(prefix="wp-kubelet-"))
        self.missing_images: set[str] = set()
        self._cluster = cluster
        self._labels = labels
        self._binding = binding or (Binding.SCHEDULER if has_scheduler else Binding.OURS)
        self._stopping = threading.Event()
        self._pods: dict[str, HollowPod] = {}
        self._watch: Watch | None = None
        self._threads = [threading.Thread(target=self._follow), threading.Thread(target=self._renew_lease)]

    def start(self) -> Self:
        self._cluster.add_node(self.node, labels=self._labels)
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """End all containers at once; the node and what the API server says of its pods stay."""
        self._stopping.set()
        if self._watch is not None:
            self._watch.stop()
        for pod in tuple(self._pods.values()):
            pod.abandon()
        for thread in self._threads:
            thread.join(timeout=20)
        self.children.close()
        self.api.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def signal(self, name: str, what: signal.Signals) -> None:
        """Send a signal to a pod's process."""
        self._of(name).signal(what)

    def kill_for_memory(self, name: str) -> None:
        """Kill a pod's process as the kernel does when memory is short."""
        self._of(name).kill_for_memory()

    def pid(self, name: str) -> int:
        """A pod's process."""
        return self._of(name).pid

    def running(self) -> list[str]:
        """The names of pods that have a process now."""
        return sorted(pod.name for pod in tuple(self._pods.values()) if pod.is_running)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _of(self, name: str) -> HollowPod:
        return next(pod for pod in tuple(self._pods.values()) if pod.name == name and pod.is_running)

    def _follow(self) -> None:
        """List, then watch from there; whatever goes wrong, again from the list."""
        while not self._stopping.is_set():
            try:
                self._follow_once()
            except NotAnswered:
                self._stopping.wait(RETRY_S)

    def _follow_once(self) -> None:
        selected = {} if self._binding is Binding.OURS else {"fieldSelector": f"spec.nodeName={self.node}"}
        listed = self.api.get("/api/v1/pods", **selected)
        pods = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        for uid in set(self._pods) - set(pods):
            self._pods.pop(uid).abandon()
        for pod in pods.values():
            self._tell(pod)
        version = listed["metadata"]["resourceVersion"]
        self._watch = self.api.watch("/api/v1/pods", seconds=300, resourceVersion=version, **selected)
        try:
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
        if bound_to is None and self._binding is Binding.OURS:
            self._bind(pod)
        elif bound_to == self.node:
            if uid not in self._pods:
                self._pods[uid] = HollowPod(self, pod)
            self._pods[uid].tell(pod)

    def _bind(self, pod: Object) -> None:
        node = self.api.get(f"/api/v1/nodes/{self.node}")
        wanted = pod["spec"].get("nodeSelector", {}).items()
        if node["spec"].get("unschedulable") or not wanted <= node["metadata"]["labels"].items():
            return
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding"
        try:
            self.api.create(
                path, {"metadata": {"name": meta["name"]}, "target": {"kind": "Node", "name": self.node}}
            )
        except ApiError as exc:
            # Gone, or bound by another.
            if exc.code not in (404, 409):
                raise

    def _renew_lease(self) -> None:
        """Say that the node lives, as the controllers expect."""
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": self.node, "leaseDurationSeconds": LEASE_S}
        while True:
            lease = {"metadata": {"name": self.node}, "spec": spec | {"renewTime": _now(timespec="microseconds")}}
            try:
                if self.api.find(f"{path}/{self.node}") is None:
                    self.api.create(path, lease)
                else:
                    self.api.patch(f"{path}/{self.node}", lease)
            except NotAnswered:
                if self._stopping.wait(RETRY_S):
                    return
                continue
            if self._stopping.wait(LEASE_S / 4):
                return


class HollowPod:
    """One pod's life, in a thread of its own."""

    def __init__(self, kubelet: HollowKubelet, pod: Object) -> None:
        meta = pod["metadata"]
        self.name: str = meta["name"]
        self._kubelet = kubelet
        self._uid: str = meta["uid"]
        self._path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._pod = pod
        self._address = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._short_of_memory = False
        self._restarts = 0
        self._told = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._live)
        self._thread.start()

    def tell(self, pod: Object) -> None:
        """The newest state of the pod."""
        self._pod = pod
        self._told.set()

    def abandon(self) -> None:
        """The pod is no more, or the kubelet leaves: its process is killed."""
        self._abandoned.set()
        self._told.set()
        self._thread.join(timeout=20)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, what: signal.Signals) -> None:
        assert self._process is not None
        container.signal_if_alive(self._process, what)

    def kill_for_memory(self) -> None:
        self._short_of_memory = True
        self.signal(signal.SIGKILL)
