"""A real Kubernetes cluster for tests, on free ports.

    with KubeCluster(ClusterPart.CONTROLLERS, ClusterPart.SCHEDULER) as cluster:
        namespace = cluster.namespace("pool")
        user = cluster.user("pool", namespace, [rule("pods", "get", "list")])
        marker = cluster.mark()
        ...
        writes = [r for r in cluster.requests(marker) if r.user == user.name and r.is_write]

It has etcd, a kube-apiserver with RBAC and an audit log, and the other components that are named.
It ends with the process that started it, and leaves nothing behind.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Self

import urllib3

from pool.ops.up.ports import free_port
from tests.support import kube_audit, kube_binaries
from tests.support.kube_any import ADMIN, KWOK_NODE, Cluster
from tests.support.kube_api import ApiAccess, ApiError
from tests.support.kube_audit import AuditedRequest
from tests.support.kube_processes import ServerProcesses
from tests.support.waiting import eventually

STAGES = kube_binaries.SOURCES / "stages.yaml"
START_LIMIT_S = 60.0


class ClusterPart(StrEnum):
    """Optional components beside etcd and the API server; the name is that of its user in the audit
    log.
    """

    CONTROLLERS = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KWOK = "kwok"


KUBELET = "hollow-kubelet"
USERS = (ADMIN, KUBELET, *ClusterPart)


class KubeCluster(Cluster):
    """A cluster of our own. Killing and restarting it loses nothing that was written."""

    def __init__(self, *parts: ClusterPart, limits: Sequence[str] = (), address: str = "127.0.0.1") -> None:
        """`limits` are further options of the API server, such as --max-requests-inflight=10. Pods
        reach it only at an address outside loopback.
        """
        self._address = address
        self._bin = kube_binaries.find((*kube_binaries.SHORTEST, *parts))
        self._parts = parts
        self._limits = limits
        self._children = ServerProcesses()
        self._marks = itertools.count()
        self._apiserver: subprocess.Popen[bytes] | None = None
        self._tokens = {user: secrets.token_hex(16) for user in USERS}
        self._port, self._etcd_port, self._peer_port = (free_port() for _ in range(3))
        root = self.root = Path(tempfile.mkdtemp(prefix="wp-kube-"))
        self._audit = root / "audit.log"
        try:
            self._write_files()
            self._start_etcd()
            self._launch_apiserver()
            # The API server generates its own certificate at its first start.
            made = root / "certs" / "apiserver.crt"
            eventually(lambda: self._alive() and made.exists() and made.read_text(), within_s=START_LIMIT_S)
            super().__init__(self.access_of(ADMIN), root)
        except BaseException:
            self._children.close()
            shutil.rmtree(root, ignore_errors=True)
            raise
        self.has_scheduler = ClusterPart.SCHEDULER in parts
        self.is_borrowed = False

    def start(self) -> Self:
        """Wait until the API server is ready, and start the other components."""
        self.wait_ready()
        for part in self._parts:
            self.write_kubeconfig(part, self.access_of(part))
            self._children.start(self._command(part), log=self.root / f"{part}.log", env=self._env())
        return self

    def namespace(self, name: str, *, security: str = "restricted") -> str:
        made = super().namespace(name, security=security)
        if ClusterPart.CONTROLLERS in self._parts:
            # Pods are refused until the controllers have created the namespace's service account.
            path = f"/api/v1/namespaces/{made}/serviceaccounts/default"
            eventually(lambda: self.api.find(path), within_s=30)
        return made

    def access_of(self, user: str) -> ApiAccess:
        """Return the access of one of USERS, which may do anything."""
        authority = (self.root / "certs" / "apiserver.crt").read_text()
        return ApiAccess(server=self.server, authority=authority, token=self._tokens[user])

    @property
    def server(self) -> str:
        return f"https://{self._address}:{self._port}"

    def kill_apiserver(self) -> None:
        """Kill the API server as in a crash."""
        if self._apiserver is not None:
            self._children.kill(self._apiserver)
            self._apiserver = None

    def restart_apiserver(self) -> None:
        """Start it again with the same address and data, and wait until it is ready."""
        self.kill_apiserver()
        self._launch_apiserver()
        self.wait_ready()

    def wait_ready(self) -> None:
        eventually(lambda: self._alive() and self._serves(), within_s=START_LIMIT_S, every_s=0.05)

    def mark(self) -> int:
        """Return the current position in the audit log."""
        self._settle()
        return self._audit.stat().st_size

    def requests(self, since: int = 0) -> list[AuditedRequest]:
        """Return the calls that were answered since then, without the API server's own calls."""
        self._settle()
        return [r for r in kube_audit.recorded(self._audit, since) if not r.is_marker]

    def log(self, part: str) -> str:
        """Return the log of etcd, kube-apiserver or another component."""
        path = self.root / f"{part}.log"
        return path.read_text() if path.exists() else ""

    def stop(self) -> None:
        """Stop the cluster and delete its data."""
        self._children.close()
        self.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def _kubectl(self) -> str:
        ours = self._bin / "kubectl"
        return str(ours) if ours.exists() else "kubectl"

    def _write_files(self) -> None:
        self._audit.touch()
        (self.root / "policy.json").write_text(json.dumps(kube_audit.POLICY))
        tokens = self.root / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text("".join(f"{t},{user},{user},system:masters\n" for user, t in self._tokens.items()))

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        options = {
            "data-dir": str(self.root / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            # The operating system keeps what a killed API server wrote; only a crash of the machine
            # loses it.
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }
        self._children.start(
            [str(self._bin / "etcd"), *_options(options)], log=self.root / "etcd.log", env=self._env()
        )

    def _launch_apiserver(self) -> None:
        # Its own TLS key signs the tokens of service accounts, so that no other key is needed.
        certs, key = self.root / "certs", str(self.root / "certs" / "apiserver.key")
        off = [] if ClusterPart.CONTROLLERS in self._parts else ["ServiceAccount", "TaintNodesByCondition"]
        options = {
            "etcd-servers": f"http://127.0.0.1:{self._etcd_port}",
            "bind-address": self._address,
            "advertise-address": self._address,
            "secure-port": str(self._port),
            "cert-dir": str(certs),
            # Loopback is no valid endpoint of the Service `kubernetes`.
            "endpoint-reconciler-type": "none" if self._address.startswith("127.") else "lease",
            "service-cluster-ip-range": "10.96.0.0/16",
            "authorization-mode": "Node,RBAC",
            "token-auth-file": str(self.root / "tokens.csv"),
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "disable-admission-plugins": ",".join(off),
            "audit-policy-file": str(self.root / "policy.json"),
            "audit-log-path": str(self._audit),
            "audit-log-maxsize": "100000",
            "profiling": "false",
        }
        argv = [str(self._bin / "kube-apiserver"), *_options(options), *self._limits]
        self._apiserver = self._children.start(argv, log=self.root / "kube-apiserver.log", env=self._env())

    def _command(self, part: ClusterPart) -> list[str]:
        options = {"kubeconfig": str(self.root / f"{part}.kubeconfig")}
        match part:
            case ClusterPart.KWOK:
                options |= {
                    "config": str(STAGES),
                    "manage-nodes-with-annotation-selector": f"{KWOK_NODE}=fake",
                    "cidr": "10.200.0.0/16",
                    # Without leases the controllers take its nodes for lost after a while.
                    "node-lease-duration-seconds": "40",
                }
            case ClusterPart.SCHEDULER | ClusterPart.CONTROLLERS:
                # The default limits are for large clusters with many more controllers. A test at
                # scale would measure them.
                options |= {
                    "leader-elect": "false",
                    "secure-port": "0",
                    "kube-api-qps": "1000",
                    "kube-api-burst": "2000",
                }
        if part is ClusterPart.CONTROLLERS:
            options["service-account-private-key-file"] = str(self.root / "certs" / "apiserver.key")
            options["root-ca-file"] = str(self.root / "certs" / "apiserver.crt")
            options["concurrent-gc-syncs"] = "50"
            # A lease that is late on a busy machine is no lost node.
            options["node-monitor-grace-period"] = "300s"
        return [str(self._bin / part), *_options(options)]

    def _env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.root), "TMPDIR": str(self.root)}

    def _alive(self) -> bool:
        assert self._apiserver is not None
        if self._apiserver.poll() is not None:
            said = self.log("kube-apiserver")[-3000:] + self.log("etcd")[-1000:]
            raise RuntimeError(f"kube-apiserver ended: {said}")
        return True

    def _serves(self) -> bool:
        try:
            self.api.get("/readyz")
        except (ApiError, urllib3.exceptions.HTTPError):
            return False
        return True

    def _settle(self) -> None:
        """Wait until answered calls are recorded: a record is written just after the answer."""
        if self._apiserver is None:
            return
        path = kube_audit.marker(next(self._marks))
        begin = self._audit.stat().st_size
        self.api.get(path)
        eventually(lambda: any(r.path == path for r in kube_audit.recorded(self._audit, begin)))


def _options(options: Mapping[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items()]
