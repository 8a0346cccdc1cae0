"""Access to the cluster: address, certificates, and a token that is renewed before it expires.

The official client reads the credentials (a kubeconfig with any login method, or the ServiceAccount
of this pod). Nothing else of it is used.
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

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
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


def load(settings: KubernetesSettings, *, connections: int) -> Access:
    """Read the credentials. Raise `Refused` with one sentence if they are invalid."""
    try:
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException
    except ImportError as exc:
        raise Refused(
            "invalid",
            detail="the driver kubernetes needs its client: pip install 'warmpool-server[kubernetes]'",
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

    return Access(
        server=str(conf.host).rstrip("/"),
        namespace=settings.namespace or namespace or "default",
        http=_connections(conf, connections),
        authorization=authorization,
    )


def _read(settings: KubernetesSettings, conf: Any) -> str:
    """Fill `conf` and return the namespace that the credentials contain."""
    import kubernetes.config

    config: Any = kubernetes.config  # its functions have no types
    if not (settings.kubeconfig or settings.context) and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(client_configuration=conf)
        return _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else ""
    file, context = settings.kubeconfig or None, settings.context or None
    config.load_kube_config(
        config_file=file, context=context, client_configuration=conf, persist_config=False
    )
    contexts, current = config.list_kube_config_contexts(config_file=file)
    chosen = next((c for c in contexts if c["name"] == context), current)
    return str(chosen["context"].get("namespace", ""))


def _connections(conf: Any, size: int) -> urllib3.PoolManager:
    options: dict[str, Any] = {
        "maxsize": size,
        "retries": False,
        "socket_options": _KEEP_ALIVE,
    }
    if str(conf.host).startswith("https"):
        options |= {
            "cert_reqs": "CERT_REQUIRED" if conf.verify_ssl else "CERT_NONE",
            "ca_certs": conf.ssl_ca_cert,
            "cert_file": conf.cert_file,
            "key_file": conf.key_file,
        }
        if conf.tls_server_name:
            options["server_hostname"] = conf.tls_server_name
    if conf.proxy:
        return urllib3.ProxyManager(conf.proxy, **options)
    return urllib3.PoolManager(**options)
