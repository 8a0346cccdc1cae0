"""Access to the API server from within a pod: the files of its ServiceAccount, over real TLS."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import urllib3

from pool.core.errors import Refused, Transient
from pool.core.settings import KubernetesSettings
from pool.drivers.kubernetes import access
from tests.support.helm import ROOT
from tests.support.tls import certificates


class Echo(BaseHTTPRequestHandler):
    """Returns the caller's authorization."""

    def do_GET(self) -> None:
        body = self.headers.get("Authorization", "").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def api_server(folder: Path) -> Iterator[int]:
    made = certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "tls.crt", made / "tls.key")
    server = HTTPServer(("127.0.0.1", 0), Echo)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that a kubelet mounts, and the variables that it sets."""
    folder = tmp_path / "account"
    folder.mkdir()
    with api_server(tmp_path / "tls") as port:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        monkeypatch.setattr(access, "_ACCOUNT", folder)
        (folder / "ca.crt").write_bytes((tmp_path / "tls" / "ca.crt").read_bytes())
        (folder / "token").write_text("first\n")
        (folder / "namespace").write_text("pool")
        yield folder


def answer(found: access.Access) -> str:
    headers = {"Authorization": found.authorization() or ""}
    return str(found.http.request("GET", f"{found.server}/version", headers=headers).data.decode())


def test_the_server_is_verified_and_gets_the_current_token(account: Path) -> None:
    found = access.load(KubernetesSettings(), connections=1)
    assert (found.namespace, answer(found)) == ("pool", "Bearer first")
    (account / "token").write_text("second")
    assert answer(found) == "Bearer second"


def test_a_server_of_another_authority_gets_no_token(account: Path, tmp_path: Path) -> None:
    others = certificates(tmp_path / "others")
    (account / "ca.crt").write_bytes((others / "ca.crt").read_bytes())
    with pytest.raises(urllib3.exceptions.SSLError, match="certificate verify failed"):
        answer(access.load(KubernetesSettings(), connections=1))


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_pod_without_an_account_is_refused_with_the_reason(account: Path, missing: str) -> None:
    (account / missing).unlink()
    with pytest.raises(Refused, match="set automountServiceAccountToken"):
        access.load(KubernetesSettings(), connections=1)


def test_a_token_that_cannot_be_read_is_an_outage(account: Path) -> None:
    found = access.load(KubernetesSettings(), connections=1)
    (account / "token").unlink()
    with pytest.raises(Transient, match="cannot read the token"):
        found.authorization()


def test_an_address_of_version_6_is_put_in_brackets(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert account.exists()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert access.load(KubernetesSettings(), connections=1).server == "https://[fd00::1]:443"


def test_a_pod_does_not_import_the_kubernetes_client(account: Path) -> None:
    code = (
        "import sys, pathlib; from pool.drivers.kubernetes import access\n"
        "from pool.core.settings import KubernetesSettings\n"
        f"access._ACCOUNT = pathlib.Path({str(account)!r})\n"
        "access.load(KubernetesSettings(), connections=1)\n"
        "assert 'kubernetes' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
