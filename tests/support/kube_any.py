"""Any Kubernetes cluster with administrator access: kind, k3d, a real one, or one of our own
(`kube_cluster`).
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.support.kube_api import ApiAccess, ApiClient, ApiError, Object
from tests.support.kube_binaries import Missing

ADMIN = "admin"
NAMESPACE_PREFIX = "wp-"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KWOK_NODE = "kwok.x-k8s.io/node"
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUser:
    """A user with only the granted permissions; the name is the one in the audit log."""

    name: str
    access: ApiAccess
    kubeconfig: Path


def rule(resource: str, *verbs: str, group: str = "", names: Sequence[str] = ()) -> Object:
    """One rule of a Role."""
    only = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **only}


class Cluster:
    """Any cluster with administrator access."""

    def __init__(self, access: ApiAccess, root: Path) -> None:
        self.root = root
        self.access = access
        self.api = ApiClient(access)
        self.kubeconfig = self.write_kubeconfig(ADMIN, access)
        self.has_scheduler = True
        self.is_borrowed = True
        self._made: list[str] = []

    @classmethod
    def of_kubeconfig(cls) -> Cluster:
        """The cluster that KUBECONFIG names; kubectl reads the file."""
        shown = subprocess.run(
            ["kubectl", "config", "view", "--raw", "--minify", "--flatten", "-o", "json"], capture_output=True
        )
        if shown.returncode:
            raise Missing(f"KUBECONFIG cannot be read: {shown.stderr.decode()[-300:]}")
        view = json.loads(shown.stdout)
        return cls(_access(view), Path(tempfile.mkdtemp(prefix="wp-kube-")))

    def access_of(self, user: str) -> ApiAccess:
        """Return the access of a component of that name; in a borrowed cluster each is the
        administrator.
        """
        return self.access

    def namespace(self, name: str, *, security: str = "restricted") -> str:
        """Create a namespace with this prefix and this standard of pod security."""
        enforced = {"pod-security.kubernetes.io/enforce": security}
        unique = f"{NAMESPACE_PREFIX}{name}-{secrets.token_hex(3)}"
        self.api.create("/api/v1/namespaces", {"metadata": {"name": unique, "labels": enforced}})
        self._made.append(f"/api/v1/namespaces/{unique}")
        return unique

    def user(
        self, name: str, namespace: str, rules: Sequence[Object], *, cluster_rules: Sequence[Object] = ()
    ) -> ClusterUser:
        """Create a service account with a Role of these rules and, if any are given, a ClusterRole
        of the others.
        """
        here = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.api.create(here, {"metadata": {"name": name}})
        who = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        self._grant("Role", name, rules, who, f"{RBAC}/namespaces/{namespace}")
        if cluster_rules:
            self._made += self._grant("ClusterRole", f"{namespace}-{name}", cluster_rules, who, RBAC)
        spec = {"spec": {"expirationSeconds": 24 * 3600}}
        token = self.api.create(f"{here}/{name}/token", spec)["status"]["token"]
        access = ApiAccess(server=self.access.server, authority=self.access.authority, token=token)
        full = f"system:serviceaccount:{namespace}:{name}"
        return ClusterUser(
            name=full, access=access, kubeconfig=self.write_kubeconfig(f"{namespace}-{name}", access)
        )

    def add_node(
        self, name: str, *, labels: Mapping[str, str] | None = None, taints: Sequence[Object] = (),
        annotations: Mapping[str, str] | None = None,
    ) -> Object:  # fmt: skip
        """Create a ready node with room for any pod. Its pods do not run, unless a kubelet joins or
        kwok owns it.
        """
        meta = {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})},
            "annotations": dict(annotations or {}),
        }
        self.api.create("/api/v1/nodes", {"metadata": meta, "spec": {"taints": list(taints)}})
        room = {"cpu": "1k", "memory": "1Ti", "pods": "10k", "ephemeral-storage": "1Pi"}
        status = {"capacity": room, "allocatable": room, "conditions": [READY]}
        return self.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def add_kwok_nodes(self, count: int, *, labels: Mapping[str, str] | None = None) -> list[str]:
        """Create nodes on which kwok simulates pods."""
        names = [f"kwok-{secrets.token_hex(2)}-{n}" for n in range(count)]
        for name in names:
            self.add_node(name, labels={"type": "kwok", **(labels or {})}, annotations={KWOK_NODE: "fake"})
        return names

    def write_kubeconfig(self, name: str, access: ApiAccess) -> Path:
        """Write a kubeconfig of that name, readable only by its owner."""
        path = self.root / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(access.kubeconfig())
        return path

    def kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator."""
        with self.start_kubectl(*arguments) as running:
            output, errors = running.communicate()
        return subprocess.CompletedProcess(running.args, running.returncode, output, errors)

    def start_kubectl(self, *arguments: str) -> subprocess.Popen[str]:
        """Start kubectl as the administrator."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root), "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.Popen(
            [self._kubectl(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )

    def stop(self) -> None:
        """Disconnect, and delete what was created in it."""
        for path in self._made:
            with suppress(ApiError):
                self.api.delete(path)
        self.close()

    def close(self) -> None:
        self.api.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def _kubectl(self) -> str:
        return "kubectl"

    def _grant(self, kind: str, name: str, rules: Sequence[Object], who: Object, path: str) -> list[str]:
        """Create a role and its binding; return their paths."""
        what = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        roles, bindings = f"{path}/{kind.lower()}s", f"{path}/{kind.lower()}bindings"
        self.api.create(roles, {"metadata": {"name": name}, "rules": list(rules)})
        self.api.create(bindings, {"metadata": {"name": name}, "roleRef": what, "subjects": [who]})
        return [f"{bindings}/{name}", f"{roles}/{name}"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _access(view: Mapping[str, Any]) -> ApiAccess:
    cluster, user = view["clusters"][0]["cluster"], (view.get("users") or [{}])[0].get("user", {})
    if "exec" in user or "auth-provider" in user:
        raise Missing("KUBECONFIG has a user that needs a program: give one with a token or a certificate")

    def pem(section: Mapping[str, Any], key: str) -> str:
        return base64.b64decode(section.get(f"{key}-data", "")).decode()

    return ApiAccess(
        server=cluster["server"], authority=pem(cluster, "certificate-authority"),
        token=user.get("token", ""),
        certificate=pem(user, "client-certificate"), key=pem(user, "client-key"),
    )  # fmt: skip
