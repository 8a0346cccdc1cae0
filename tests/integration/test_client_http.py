"""HTTP calls to a worker: `worker.session()`, and `worker.auth` with requests and httpx."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import requests

from pool.client import ClaimLost
from pool.client.testing import FakePool, FakeServer


class HeaderEcho(BaseHTTPRequestHandler):
    """Answers with the path and the headers of the request, or redirects to another server."""

    other = ""

    def do_GET(self) -> None:
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", f"{self.other}/from-elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = json.dumps({"path": self.path, **{k.lower(): v for k, v in self.headers.items()}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class has this name
        """Log nothing."""


def _serving() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), HeaderEcho) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def at_worker() -> Iterator[str]:
    yield from _serving()


@pytest.fixture
def at_other() -> Iterator[str]:
    yield from _serving()


@pytest.fixture
def pool(at_worker: str) -> Iterator[FakePool]:
    with FakePool(FakeServer(endpoint=at_worker)) as made:
        yield made


def test_a_session_proves_the_claim_at_paths_of_the_worker(pool: FakePool, at_worker: str) -> None:
    with pool.acquire("acme") as worker, worker.session() as http:
        for path in ("/echo?n=1", "echo?n=1", f"{at_worker}/echo?n=1"):
            seen = http.get(path, headers={"X-Own": "1"}, timeout=10).json()
            assert (seen["path"], seen["x-own"]) == ("/echo?n=1", "1")
            assert {k.title(): seen[k.lower()] for k in worker.auth} == worker.auth


def test_no_other_address_gets_the_proof(
    pool: FakePool, at_other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeaderEcho, "other", at_other)
    with pool.acquire("acme") as worker, worker.session() as http:
        for url in (f"{at_other}/echo", "/elsewhere"):
            answer = http.get(url, timeout=10)
            assert answer.url.startswith(at_other)
            assert "authorization" not in answer.json()


def test_a_netrc_does_not_replace_the_proof(
    pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pool.acquire("acme") as worker, worker.session() as http:
        assert http.get("/", timeout=10).json()["authorization"] == worker.auth["Authorization"]
        shown = requests.get(worker.endpoint, auth=worker.auth, timeout=10).json()
        assert shown["authorization"] == worker.auth["Authorization"]


def test_a_session_whose_claim_has_ended_sends_nothing(pool: FakePool) -> None:
    worker = pool.acquire("acme")
    with worker.session() as http:
        assert http.get("/", timeout=10).ok
        pool.server.lose(worker.claim_id, "pod_gone")
        with pytest.raises(ClaimLost, match="pod_gone"):
            http.get("/", timeout=10)


def test_without_requests_the_error_names_the_package(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "requests", None)
    with (
        pool.acquire("acme") as worker,
        pytest.raises(ImportError, match=r"pip install requests.*worker\.auth"),
    ):
        worker.session()


@pytest.mark.parametrize("library", [requests, httpx])
def test_auth_is_accepted_as_headers_and_as_auth(pool: FakePool, library: object) -> None:
    get = library.get  # type: ignore[attr-defined]
    with pool.acquire("acme") as worker:
        for seen in (
            get(worker.endpoint, headers=worker.auth, timeout=10).json(),
            get(worker.endpoint, auth=worker.auth, timeout=10).json(),
        ):
            assert seen["authorization"] == worker.auth["Authorization"]
            assert seen["x-warmpool-claim"] == worker.claim_id
    assert isinstance(worker.worker_id, str)
