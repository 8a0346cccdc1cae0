"""Real Kubernetes clusters for tests: any cluster that KUBECONFIG names, or one of our own on free loopback ports.

    with KubeCluster(Part.CONTROLLERS, Part.SCHEDULER) as cluster:
        namespace = cluster.namespace("pool")
        user = cluster.user("pool", namespace, [rule("pods", "get", "list")])
        marker = cluster.mark()
        ...
        writes = [r for r in cluster.requests(marker) if r.user == user.name and r.is_write]

Our own has etcd and a kube-apiserver with RBAC and an audit log, and those of the other parts that are named. It ends with the
process that started it, and leaves nothing behind.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import urllib3

from tests.support import kube_binaries
from tests.support.kube_api import Access, Api, ApiError, Object
from tests.support.kube_processes import Children
from tests.support.waiting import eventually

STAGES = kube_binaries.SOURCES / "stages.yaml"
KWOK_NODE = "kwok.x-k8s.io/node"
READ_VERBS = frozenset({"get", "list", "watch"})
START_LIMIT_S = 60.0

# One record a call, made when it is answered; for a watch, when it has begun.
AUDIT_POLICY: Object = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "users": ["system:apiserver"]}, {"level": "Metadata"}],
}


class Part(StrEnum):
    """What a cluster of our own may have beside etcd and the API server; its name is its user's in the audit log."""

    CONTROLLERS = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KWOK = "kwok"


ADMIN = "admin"
KUBELET = "hollow-kubelet"
USERS = (ADMIN, KUBELET, *Part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call as the API server recorded it."""

    verb: str
    resource: str
    user: str
    code: int
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def is_write(self) -> bool:
        return self.verb not in READ_VERBS


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody who may do only what was granted; the name is the one in the audit log."""

    name: str
    access: Access
    kubeconfig: Path


def rule(resource: str, *verbs: str, group: str = "", names: Sequence[str] = ()) -> Object:
    """One rule of a Role."""
    only = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **only}


class Cluster:
    """Any cluster that we may use as an administrator."""

    def __init__(self, access: Access, root: Path) -> None:
        self.root = root
        self.access = access
        self.api = Api(access)
        self.kubeconfig = self.write_kubeconfig(ADMIN, access)
        self._namespaces: list[str] = []

    @classmethod
    def of_kubeconfig(cls) -> Cluster:
        """The one that KUBECONFIG names; kubectl reads the file."""
        shown = subprocess.run(
            ["kubectl", "config", "view", "--raw", "--minify", "--flatten", "-o", "json"], capture_output=True
        )
        if shown.returncode:
            raise kube_binaries.Missing(f"KUBECONFIG can not be read: {shown.stderr.decode()[-300:]}")
        view = json.loads(shown.stdout)
        return cls(_access(view), Path(tempfile.mkdtemp(prefix="wp-kube-")))

    def namespace(self, name: str, *, security: str = "restricted") -> str:
        """A new namespace, whose name begins so; pods are held to that standard of pod security."""
        enforced = {"pod-security.kubernetes.io/enforce": security}
        unique = f"wp-{name}-{secrets.token_hex(3)}"
        self.api.create("/api/v1/namespaces", {"metadata": {"name": unique, "labels": enforced}})
        self._namespaces.append(unique)
        return unique

    def user(
        self, name: str, namespace: str, rules: Sequence[Object], *, cluster_rules: Sequence[Object] = ()
    ) -> User:
        """A service account with a Role of these rules and, if any are given, a ClusterRole of the others."""
        here = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.api.create(here, {"metadata": {"name": name}})
        self._grant("Role", f"/namespaces/{namespace}", name, namespace, rules)
        if cluster_rules:
            self._grant("ClusterRole", "", f"{namespace}-{name}", namespace, cluster_rules, subject=name)
        spec = {"spec": {"expirationSeconds": 24 * 3600}}
        token = self.api.create(f"{here}/{name}/token", spec)["status"]["token"]
        access = Access(server=self.access.server, authority=self.access.authority, token=token)
        full = f"system:serviceaccount:{namespace}:{name}"
        return User(name=full, access=access, kubeconfig=self.write_kubeconfig(f"{namespace}-{name}", access))

    def add_node(
        self, name: str, *, labels: Mapping[str, str] | None = None, taints: Sequence[Object] = (),
        annotations: Mapping[str, str] | None = None,
    ) -> Object:  # fmt: skip
        """A ready node with room for anything. Nobody runs what is bound to it, unless a kubelet comes or it is kwok's."""
        meta = {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})},
            "annotations": dict(annotations or {}),
        }
        self.api.create("/api/v1/nodes", {"metadata": meta, "spec": {"taints": list(taints)}})
        room = {"cpu": "1k", "memory": "1Ti", "pods": "10k"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        return self.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def add_kwok_nodes(self, count: int, *, labels: Mapping[str, str] | None = None) -> list[str]:
        """Nodes on which kwok makes pods run that do nothing."""
        names = [f"kwok-{secrets.token_hex(2)}-{n}" for n in range(count)]
        for name in names:
            self.add_node(name, labels={"type": "kwok", **(labels or {})}, annotations={KWOK_NODE: "fake"})
        return names

    def write_kubeconfig(self, name: str, access: Access) -> Path:
        """A kubeconfig of that name, readable by nobody else."""
        path = self.root / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(access.kubeconfig())
        return path

    def kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root), "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run([self._kubectl(), *arguments], capture_output=True, text=True, env=env)

    def stop(self) -> None:
        """Let go of it, with what was made in it."""
        for name in self._namespaces:
            self.api.delete(f"/api/v1/namespaces/{name}")
        self.close()

    def close(self) -> None:
        self.api.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def _kubectl(self) -> str:
        return "kubectl"

    def _grant(
        self, kind: str, place: str, name: str, namespace: str, rules: Sequence[Object], *, subject: str = ""
    ) -> None:
        path = f"/apis/rbac.authorization.k8s.io/v1{place}"
        who = {"kind": "ServiceAccount", "name": subject or name, "namespace": namespace}
        what = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        self.api.create(f"{path}/{kind.lower()}s", {"metadata": {"name": name}, "rules": list(rules)})
        self.api.create(
            f"{path}/{kind.lower()}bindings", {"metadata": {"name": name}, "roleRef": what, "subjects": [who]}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class KubeCluster(Cluster):
    """A cluster of our own. Kill and restart lose nothing that was written."""

    def __init__(self, *parts: Part, limits: Sequence[str] = ()) -> None:
        """`limits` are further options of the API server, such as --max-requests-inflight=10."""
        self._bin = kube_binaries.find((*kube_binaries.SHORTEST, *parts))
        self._parts = parts
        self._limits = limits
        root = Path(tempfile.mkdtemp(prefix="wp-kube-"))
        self._port, self._etcd_port, peer_port = _free_ports(3)
        self._children = Children()
        self._marks = itertools.count()
        self._apiserver: subprocess.Popen[bytes] | None = None
        self._tokens = {user: secrets.token_hex(16) for user in USERS}
        self.root = root
        (root / "policy.json").write_text(json.dumps(AUDIT_POLICY))
        (root / "audit.log").touch()
        tokens = root / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text("".join(f"{t},{user},{user},system:masters\n" for user, t in self._tokens.items()))
        self._start_etcd(peer_port)
        self._launch_apiserver()
        # The API server makes its own certificate when it first starts.
        eventually(lambda: self._alive() and (root / "certs" / "apiserver.crt").exists(), within_s=START_LIMIT_S)
        super().__init__(self.access_of(ADMIN), root)
        for user in USERS:
            self.write_kubeconfig(user, self.access_of(user))

    def start(self) -> Self:
        """Wait until it serves, and start the other parts."""
        self.wait_ready()
        for part in self._parts:
            self._children.start(self._command(part), log=self.root / f"{part}.log", env=self._env())
        return self

    def namespace(self, name: str, *, security: str = "restricted") -> str:
        made = super().namespace(name, security=security)
        if Part.CONTROLLERS in self._parts:
            # Pods are refused until the controllers have given the namespace its service account.
            path = f"/api/v1/namespaces/{made}/serviceaccounts/default"
            eventually(lambda: self.api.find(path), within_s=30)
        return made

    def access_of(self, user: str) -> Access:
        """How one of USERS reaches it; they may do anything."""
        authority = (self.root / "certs" / "apiserver.crt").read_text()
        return Access(server=self.server, authority=authority, token=self._tokens[user])

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def kill_apiserver(self) -> None:
        """Take the API server away as a crash would."""
        if self._apiserver is not None:
            self._children.kill(self._apiserver)
            self._apiserver = None

    def restart_apiserver(self) -> None:
        """Start it again, on the same address and data, and wait until it serves."""
        self.kill_apiserver()
        self._launch_apiserver()
        self.wait_ready()

    def wait_ready(self) -> None:
        eventually(lambda: self._alive() and self._serves(), within_s=START_LIMIT_S, every_s=0.05)

    def mark(self) -> int:
        """This moment in the audit log."""
        self._settle()
        return (self.root / "audit.log").stat().st_size

    def requests(self, since: int = 0) -> list[Request]:
        """What was asked of the API server since then, and answered by now; its own calls to itself are left out."""
        self._settle()
        return list(self._recorded(since))

    def log(self, part: str) -> str:
        """What a server has said: etcd, kube-apiserver, or a Part."""
        path = self.root / f"{part}.log"
        return path.read_text() if path.exists() else ""

    def stop(self) -> None:
        """End it with all that was in it."""
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

    def _start_etcd(self, peer_port: int) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, peer_port))
        options = {
            "data-dir": str(self.root / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            # What a killed API server wrote is kept by the process; only a crash of the machine would lose it.
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }
        self._children.start(
            [self._bin / "etcd", *_options(options)], log=self.root / "etcd.log", env=self._env()
        )

    def _launch_apiserver(self) -> None:
        # Its own TLS key signs the tokens of service accounts, so that no other key has to be made.
        certs, key = self.root / "certs", str(self.root / "certs" / "apiserver.key")
        off = [] if Part.CONTROLLERS in self._parts else ["ServiceAccount", "TaintNodesByCondition"]
        options = {
            "etcd-servers": f"http://127.0.0.1:{self._etcd_port}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": str(self._port),
            "cert-dir": str(certs),
            "endpoint-reconciler-type": "none",
            "service-cluster-ip-range": "10.96.0.0/16",
            "authorization-mode": "Node,RBAC",
            "token-auth-file": str(self.root / "tokens.csv"),
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "disable-admission-plugins": ",".join(off),
            "audit-policy-file": str(self.root / "policy.json"),
            "audit-log-path": str(self.root / "audit.log"),
            "audit-log-maxsize": "100000",
            "profiling": "false",
        }
        argv = [self._bin / "kube-apiserver", *_options(options), *self._limits]
        self._apiserver = self._children.start(argv, log=self.root / "kube-apiserver.log", env=self._env())

    def _command(self, part: Part) -> list[str]:
        options = {"kubeconfig": str(self.root / f"{part}.kubeconfig")}
        match part:
            case Part.KWOK:
                options |= {
                    "config": str(STAGES),
                    "manage-nodes-with-annotation-selector": f"{KWOK_NODE}=fake",
                    "cidr": "10.200.0.0/16",
                }
            case Part.SCHEDULER | Part.CONTROLLERS:
                # Their own limits are made for large clusters with many more of them, and would be what a test at scale measures.
                options |= {
                    "leader-elect": "false",
                    "secure-port": "0",
                    "kube-api-qps": "1000",
                    "kube-api-burst": "2000",
                }
        if part is Part.CONTROLLERS:
            options["service-account-private-key-file"] = str(self.root / "certs" / "apiserver.key")
            options["root-ca-file"] = str(self.root / "certs" / "apiserver.crt")
            options["concurrent-gc-syncs"] = "50"
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
        """Wait until what was answered is recorded: the record is made just after the answer."""
        if self._apiserver is None:
            return
        path = f"/version?settle={next(self._marks)}"
        begin = (self.root / "audit.log").stat().st_size
        self.api.get(path)
        eventually(lambda: any(r.path == path for r in self._recorded(begin, settling=True)))

    def _recorded(self, since: int, *, settling: bool = False) -> Iterable[Request]:
        with (self.root / "audit.log").open("rb") as log:
            log.seek(since)
            for line in log:
                record = json.loads(line) if line.endswith(b"\n") else {}
                once = "ResponseStarted" if record.get("verb") == "watch" else "ResponseComplete"
                if record.get("stage") == once and ("/version?settle=" in record["requestURI"]) is settling:
                    yield _request(record)


def _request(record: Mapping[str, Any]) -> Request:
    what = record.get("objectRef", {})
    resource = "/".join(word for word in (what.get("resource"), what.get("subresource")) if word)
    return Request(
        verb=record["verb"], resource=resource, user=record["user"].get("username", ""),
        code=record.get("responseStatus", {}).get("code", 0), namespace=what.get("namespace", ""),
        name=what.get("name", ""), path=record["requestURI"],
    )  # fmt: skip


def _access(view: Mapping[str, Any]) -> Access:
    cluster, user = view["clusters"][0]["cluster"], (view.get("users") or [{}])[0].get("user", {})
    if "exec" in user or "auth-provider" in user:
        raise kube_binaries.Missing("KUBECONFIG has a user that needs a program: give one with a token or a certificate")

    def pem(section: Mapping[str, Any], key: str) -> str:
        return base64.b64decode(section.get(f"{key}-data", "")).decode()

    return Access(
        server=cluster["server"], authority=pem(cluster, "certificate-authority"), token=user.get("token", ""),
        certificate=pem(user, "client-certificate"), key=pem(user, "client-key"),
    )  # fmt: skip


def _options(options: Mapping[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items()]


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
