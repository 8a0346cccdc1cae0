"""A real cluster of one node: a control plane, containerd, kubelet, kube-proxy and CoreDNS, all in
namespaces of their own.

    with NodeCluster(parts, archives) as node:
        node.helm("install", ...)
        node.kubectl("get", "pods")
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from tests.support import helm
from tests.support.kube_api import Object
from tests.support.kube_cluster import ClusterPart, KubeCluster
from tests.support.node_space import ADDRESS, NodeSpace
from tests.support.waiting import eventually

NAME = "node"
PODS = "10.244.0.0/24"
PAUSE = "docker.io/library/pause:test"
START_S = 120.0
# The API server has no name server that knows the node.
REACH = ("--kubelet-preferred-address-types=InternalIP",)
_CTR = ("--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io")
_COREFILE = """.:53 {{
    errors
    ready
    cache 2
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 2
    }}
}}
"""


class NodeCluster:
    """The cluster, with the thread that made it in the node's network until it is closed."""

    def __init__(self, parts: Path, archives: Sequence[Path]) -> None:
        self._parts = parts
        self._archives = archives
        self._stack = ExitStack()
        self._volumes = itertools.count()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.space = NodeSpace(parts / "pause")

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def _start(self) -> None:
        self._stack.enter_context(self.space)
        self._stack.enter_context(self.space.network())
        parts = (ClusterPart.CONTROLLERS, ClusterPart.SCHEDULER)
        self.cluster = self._stack.enter_context(KubeCluster(*parts, limits=REACH, address=ADDRESS))
        self.api = self.cluster.api
        self._write_files()
        self._launch("containerd", "--config", str(self.root / "containerd.toml"))
        eventually(self._containerd_answers, within_s=START_S, every_s=0.2)
        for archive in self._archives:
            self.space.run(str(self._parts / "ctr"), *_CTR, "images", "import", str(archive))
        kubeconfig = str(self.cluster.kubeconfig)
        self._launch("coredns", "-conf", str(self.root / "Corefile"))
        self._launch("kube-proxy", "--config", str(self.root / "kube-proxy.json"))
        self._launch(
            "kubelet", "--config", str(self.root / "kubelet.json"), "--kubeconfig", kubeconfig,
            "--hostname-override", NAME, "--node-ip", ADDRESS,
        )  # fmt: skip
        eventually(self.is_ready, within_s=START_S, every_s=0.2)
        self._add_storage()

    def _launch(self, name: str, *words: str) -> None:
        env = {"PATH": f"{self._parts}:{os.environ['PATH']}", "HOME": str(self.root)}
        program = str(self._parts / name)
        log = self.root / f"{name}.log"
        self._running[name] = self.space.start([program, *words], log=log, env=env)

    @property
    def root(self) -> Path:
        return self.space.root

    def is_ready(self) -> bool:
        """Return whether the kubelet reports that pods can run; raise if a part has ended."""
        ended = [name for name, running in self._running.items() if running.poll() is not None]
        assert not ended, "\n".join(self.log(name)[-2000:] for name in ended)
        found = self.api.find(f"/api/v1/nodes/{NAME}")
        conditions = found["status"].get("conditions", []) if found else []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def kubectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator."""
        return self.cluster.kubectl(*words)

    def helm(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Helm as the administrator."""
        home = str(self.root / "helm")
        env = {"KUBECONFIG": str(self.cluster.kubeconfig), "HELM_CACHE_HOME": home, "HELM_CONFIG_HOME": home}
        return helm.helm(*words, env={**env, "HELM_DATA_HOME": home})

    def stats(self) -> Object:
        """Return the kubelet's figures of all pods."""
        found: Object = self.api.get(f"/api/v1/nodes/{NAME}/proxy/stats/summary")
        return found

    def kill(self, container_id: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to the first process of a container."""
        known = container_id.rpartition("/")[2]
        place = next(self.space.cgroups()[0].rglob(known))
        listed = [int(line) for line in (place / "cgroup.procs").read_text().split()]
        os.kill(min(listed, key=_age), number)

    def runs(self, uid: str, program: str) -> bool:
        """Return whether a process of a pod runs a program, by the start of its name."""
        pods = self.space.cgroups()[0].glob(f"kubepods/**/pod{uid}")
        lists = [path for pod in pods for path in pod.glob("*/cgroup.procs")]
        with suppress(FileNotFoundError, ProcessLookupError):
            ids = [pid for path in lists for pid in path.read_text().split()]
            return any(Path(f"/proc/{pid}/comm").read_text().startswith(program) for pid in ids)
        return False

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()

    def _containerd_answers(self) -> bool:
        try:
            self.space.run(str(self._parts / "ctr"), *_CTR, "version")
        except RuntimeError:
            return False
        return True

    def _add_storage(self) -> None:
        """Local volumes, of a class that is the default."""
        note = {"storageclass.kubernetes.io/is-default-class": "true"}
        self.api.create(
            "/apis/storage.k8s.io/v1/storageclasses",
            {
                "metadata": {"name": "local", "annotations": note},
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "WaitForFirstConsumer",
            },
        )

    def add_volume(self, size: str) -> None:
        """Add a volume that one claim can have."""
        name = f"volume-{next(self._volumes)}"
        place = self.root / "volumes" / name
        place.mkdir(parents=True)
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}
        self.api.create(
            "/api/v1/persistentvolumes",
            {
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": size},
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": "local",
                    "local": {"path": str(place)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
                },
            },
        )

    def _write_files(self) -> None:
        kubeconfig = str(self.cluster.kubeconfig)
        (self.root / "containerd.toml").write_text(self._containerd_toml())
        (self.root / "Corefile").write_text(_COREFILE.format(kubeconfig=kubeconfig))
        network = self.root / "cni"
        network.mkdir()
        # Routed, not bridged: what comes back through a Service's address passes the node's rules.
        addresses = {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
        plugin = {"type": "ptp", "ipMasq": False, "ipam": addresses}
        _write_json(
            network / "10-pods.conflist", {"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]}
        )
        _write_json(self.root / "kubelet.json", self._kubelet_settings())
        _write_json(self.root / "kube-proxy.json", _proxy_settings(kubeconfig))

    def _kubelet_settings(self) -> Object:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": True,
            "cgroupRoot": f"/{self.space.cgroup}",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "failSwapOn": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            # Root of a container may lack the right to lower it.
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
            # The disk is shared with others.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi"},
            "maxPods": 60,
        }

    def _containerd_toml(self) -> str:
        return f"""version = 3
root = "{self.root}/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{self.root}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def _age(pid: int) -> int:
    """Return when a process started, in ticks since the machine did."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _proxy_settings(kubeconfig: str) -> Object:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": kubeconfig},
        "clusterCIDR": PODS,
        "hostnameOverride": NAME,
        "oomScoreAdj": 0,
        # These limits would be set for the whole machine.
        "conntrack": {
            "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
            "udpTimeout": "0s", "udpStreamTimeout": "0s",
        },
    }  # fmt: skip


def _write_json(path: Path, content: Object) -> None:
    path.write_text(json.dumps(content, indent=1))
