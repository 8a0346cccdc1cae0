"""Access to the cluster: address, certificates, and a token that is renewed before it expires.

In a pod these are files of its ServiceAccount. Elsewhere the official client reads them from a
kubeconfig with any login method. Nothing else of it is used: importing it takes a second and 40 MB.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from pool.core.errors import Refused, Transient
from pool.core.settings import KubernetesSettings

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A dead peer is detected within 11 s without a call. A watch may be silent for a minute and be
# healthy.
_KEEP_ALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A pool of connections to one API server, with the credentials."""

    server: str
    namespace: str
    http: urllib3.PoolManager
    authorization: Callable[[], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a kubeconfig or a ServiceAccount contains."""

    server: str
    namespace: str
    authorization: Callable[[], str | None]
    authority: str | None
    verify: bool = True
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    proxy: str | None = None


def load(settings: KubernetesSettings, *, connections: int) -> Access:
    """Read the credentials. Raise `Refused` with one sentence if they are invalid."""
    if not (settings.kubeconfig or settings.context) and os.environ.get("KUBERNETES_SERVICE_HOST"):
        found = _of_this_pod()
    else:
        found = _of_kubeconfig(settings)
    return Access(
        server=found.server,
        namespace=settings.namespace or found.namespace or "default",
        http=_connections(found, connections),
        authorization=found.authorization,
    )


def _of_this_pod() -> Credentials:
    """Return the credentials of the pod that this process runs in."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token, authority, namespace = (_ACCOUNT / name for name in ("token", "ca.crt", "namespace"))

    def authorization() -> str:
        # The kubelet replaces the file long before the token expires.
        try:
            return f"Bearer {token.read_text().strip()}"
        except OSError as exc:
            raise Transient(f"cannot read the token for the cluster: {exc}") from exc

    if not (token.is_file() and authority.is_file()):
        raise Refused(
            "invalid",
            detail=f"no access to a cluster: {_ACCOUNT} has no token or ca.crt; "
            "set automountServiceAccountToken of this pod",
        )
    return Credentials(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace.read_text().strip() if namespace.is_file() else "",
        authorization=authorization,
        authority=str(authority),
    )


def _of_kubeconfig(settings: KubernetesSettings) -> Credentials:
    """Return the credentials of a kubeconfig, as kubectl would use them."""
    try:
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException
    except ImportError as exc:
        raise Refused(
            "invalid",
            detail="a kubeconfig needs the Kubernetes client: pip install 'warmpool-server[kubernetes]'",
        ) from exc
    conf = Configuration()
    try:
        namespace = _read(settings, conf)
    except (ConfigException, OSError, ValueError) as exc:
        by = f" with {settings.kubeconfig}" if settings.kubeconfig else ""
        raise Refused("invalid", detail=f"no access to a cluster{by}: {exc}") from exc

    def authorization() -> str | None:
        try:
            return conf.get_api_key_with_prefix("BearerToken", "authorization")
        except (ConfigException, OSError, ValueError) as exc:
            raise Transient(f"cannot renew the token for the cluster: {exc}") from exc

    return Credentials(
        server=str(conf.host).rstrip("/"),
        namespace=namespace,
        authorization=authorization,
        authority=conf.ssl_ca_cert,
        verify=conf.verify_ssl,
        certificate=conf.cert_file,
        key=conf.key_file,
        server_name=conf.tls_server_name,
        proxy=conf.proxy,
    )


def _read(settings: KubernetesSettings, conf: Any) -> str:
    """Fill `conf` and return the namespace of the context."""
    import kubernetes.config

    config: Any = kubernetes.config  # its functions have no types
    file, context = settings.kubeconfig or None, settings.context or None
    config.load_kube_config(
        config_file=file, context=context, client_configuration=conf, persist_config=False
    )
    contexts, current = config.list_kube_config_contexts(config_file=file)
    chosen = next((c for c in contexts if c["name"] == context), current)
    return str(chosen["context"].get("namespace", ""))


def _connections(found: Credentials, size: int) -> urllib3.PoolManager:
    options: dict[str, Any] = {
        "maxsize": size,
        "retries": False,
        "socket_options": _KEEP_ALIVE,
    }
    if found.server.startswith("https"):
        options |= {
            "cert_reqs": "CERT_REQUIRED" if found.verify else "CERT_NONE",
            "ca_certs": found.authority,
            "cert_file": found.certificate,
            "key_file": found.key,
        }
        if found.server_name:
            options["server_hostname"] = found.server_name
    if found.proxy:
        return urllib3.ProxyManager(found.proxy, **options)
    return urllib3.PoolManager(**options)
