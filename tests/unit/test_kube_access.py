"""Credentials: where they are found, which namespace they set, and the error if there are none."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import urllib3

from pool import wiring
from pool.core.errors import Refused
from pool.core.settings import KubernetesSettings, PoolSettings, Settings
from pool.drivers.kubernetes import access
from pool.passes.running import STALE_AFTER_S

FILE = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "one",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/"}}],
    "users": [{"name": "u", "user": {"token": "a-token"}}],
    "contexts": [
        {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "workers"}},
        {"name": "two", "context": {"cluster": "c", "user": "u"}},
    ],
}


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    path = tmp_path / "config"
    path.write_text(json.dumps(FILE))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "namespace"),
    [({}, "workers"), ({"context": "two"}, "default"), ({"namespace": "mine"}, "mine")],
)
def test_the_namespace_is_the_setting_or_that_of_the_context(
    kubeconfig: str, changes: dict[str, str], namespace: str
) -> None:
    found = access.load(KubernetesSettings(kubeconfig=kubeconfig, **changes), connections=1)  # type: ignore[arg-type]
    assert found.namespace == namespace
    assert found.server == "http://127.0.0.1:1"
    assert found.authorization() == "Bearer a-token"


@pytest.mark.parametrize("changes", [{"kubeconfig": "/nowhere/config"}, {"context": "three"}])
def test_without_credentials_the_error_explains_it(kubeconfig: str, changes: dict[str, str]) -> None:
    with pytest.raises(Refused, match=r"no access to a cluster( with \S+)?: "):
        access.load(KubernetesSettings(**{"kubeconfig": kubeconfig, **changes}), connections=1)  # type: ignore[arg-type]


def test_a_vanished_peer_is_detected_by_tcp_keepalive(kubeconfig: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        found = access.load(KubernetesSettings(kubeconfig=kubeconfig), connections=1)
        connection = found.http.connection_from_url(url)._new_conn()
        assert isinstance(connection, urllib3.connection.HTTPConnection)
        connection.connect()
        assert isinstance(connection.sock, socket.socket)
        kept = connection.sock.getsockopt
        assert kept(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, every, count = (
            kept(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + every * count < STALE_AFTER_S
        connection.close()


def test_the_driver_setting_selects_the_driver_without_any_call(kubeconfig: str) -> None:
    settings = Settings(
        pool=PoolSettings(driver="kubernetes"), kubernetes=KubernetesSettings(kubeconfig=kubeconfig)
    )
    driver = wiring.build_driver(settings)
    assert not driver.cached().anchored
    driver.close()
