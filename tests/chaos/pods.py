"""Where the pods of a chaos run are: processes of this machine, or a cluster with a real API
server.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from pool.drivers.port import Pod
from tests.chaos.schedule import FaultKind
from tests.support.fault_proxy import FaultProxy
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_cluster import ClusterPart, KubeCluster
from tests.support.kube_ground import KubeGround
from tests.support.local_ground import LocalGround

Ending = Callable[[], None]


class ChaosPods(Protocol):
    """Actions of chaos on pods, and queries."""

    def tables(self) -> dict[str, dict[str, Any]]:
        """The part of the pool's configuration for them."""

    def names(self) -> set[str]:
        """Return the pods that exist and are not terminating."""

    def kill_one(self, number: int) -> str | None:
        """Kill any pod, busy or not, as the kernel does when memory is short. Return its name, if
        there was one.
        """

    def api_away(self) -> Ending:
        """Block the creation of pods; return what restores it."""


class LocalPods:
    """Processes, created by the pool itself."""

    further: frozenset[FaultKind] = frozenset()

    def __init__(self, folder: Path) -> None:
        self._ground = LocalGround(folder / "local")

    def tables(self) -> dict[str, dict[str, Any]]:
        return self._ground.tables()

    def names(self) -> set[str]:
        return {pod.name for pod in self._listed()}

    def kill_one(self, number: int) -> str | None:
        usable = [pod for pod in self._listed() if pod.usable]
        if not usable:
            return None
        pod = usable[number % len(usable)]
        self._ground.make_container_die(pod)
        return pod.name

    def api_away(self) -> Ending:
        return lambda: None  # this machine creates them itself

    def _listed(self) -> list[Pod]:
        return sorted(self._ground.driver().list().pods, key=lambda pod: pod.name)


class ClusterPods:
    """Pods that the pool creates with its least permissions, each run as a process by a hollow
    kubelet.
    """

    further = frozenset({FaultKind.API_AWAY})

    def __init__(self, cluster: KubeCluster, kubelet: HollowKubelet, ground: KubeGround) -> None:
        self._cluster = cluster
        self._kubelet = kubelet
        self._ground = ground

    def tables(self) -> dict[str, dict[str, Any]]:
        return self._ground.tables()

    def names(self) -> set[str]:
        found = self._cluster.api.get(self._ground.path("pods"))["items"]
        return {p["metadata"]["name"] for p in found if "deletionTimestamp" not in p["metadata"]}

    def kill_one(self, number: int) -> str | None:
        running = self._kubelet.running(self._ground.namespace)
        if not running:
            return None
        name = running[number % len(running)]
        self._kubelet.signal(self._ground.namespace, name, signal.SIGKILL)
        return name

    def api_away(self) -> Ending:
        self._cluster.kill_apiserver()
        return self._cluster.restart_apiserver


@contextmanager
def cluster_pods() -> Iterator[ClusterPods]:
    with (
        KubeCluster(ClusterPart.CONTROLLERS, ClusterPart.SCHEDULER) as cluster,
        FaultProxy(cluster.access) as proxy,
        HollowKubelet(cluster, node="only") as kubelet,
    ):
        ground = KubeGround(cluster, kubelet, cluster.namespace("chaos"), proxy)
        yield ClusterPods(cluster, kubelet, ground)
