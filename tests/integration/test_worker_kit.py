"""Workers of one's own: middleware, proxy, the example in another language, and the check itself."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pool.client import worker_check, worker_command
from pool.client.worker_check import RuleResult
from pool.client.worker_child import free_port
from pool.client.worker_target import CheckOptions
from pool.core import names, tokens
from pool.core.errors import InvalidInput
from tests.support import forking
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "tests.support.worker_programs")
PROXY = (sys.executable, "-m", "pool.client.worker", "proxy", "--")
KEY = tokens.worker_key(b"k" * 32, "w-one")


def failed(*command: str, **options: str) -> dict[str, str]:
    """Check a program, and return the rules that it breaks."""
    lines = worker_check.check(CheckOptions(command=command, **options))  # type: ignore[arg-type]
    return {line.rule: line.text for line in lines if line.result is RuleResult.FAILED}


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_an_application_in_the_middleware_is_a_worker(kind: str) -> None:
    assert failed(*PROGRAM, kind) == {}


def test_an_unmodified_program_is_a_worker_behind_the_proxy() -> None:
    assert failed(*PROXY, *PROGRAM, "plain") == {}


def test_the_example_in_javascript_is_a_worker() -> None:
    node = shutil.which("node")
    if node is None:
        if os.environ.get("CI"):
            pytest.fail("node is not installed")
        pytest.skip("node is not installed")
    assert failed(node, str(ROOT / "examples" / "worker.mjs")) == {}


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("any_token", "no_token"),
        ("any_claim", "wrong_token"),
        ("any_epoch", "epoch"),
        ("long_epoch", "wrong_token"),
        ("kept_session", "sessions"),
        ("uncounted", "sessions"),
        ("leaky", "sessions"),
        ("impatient", "drain"),
        ("ready_for_ever", "drain"),
    ],
)
def test_the_check_finds_a_worker_that_breaks_a_rule(fault: str, rule: str) -> None:
    assert rule in failed(*PROGRAM, "faulty", fault)


def test_the_check_of_a_plain_program_names_the_proxy() -> None:
    text, code = worker_command.run_check(
        CheckOptions(command=(*PROGRAM, "plain"), readiness_path="/"), as_json=False
    )
    assert code == 1
    assert "warmpool worker-proxy -- CMD" in text


def test_the_command_of_the_client_checks_a_program_with_options_of_its_own() -> None:
    words = ["-m", "pool.client.worker", "check", "--json", "--command", *PROXY, *PROGRAM, "plain"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT)
    assert json.loads(done.stdout)["kept"], done.stderr
    for wrong in (["check"], ["proxy"], ["check", "http://127.0.0.1:1"]):
        command = [sys.executable, "-m", "pool.client.worker", *wrong]
        assert subprocess.run(command, capture_output=True, cwd=ROOT).returncode == 2


def test_the_command_reports_and_returns_an_exit_code() -> None:
    words = ("worker", "check", "--json", "--command", *PROGRAM, "wsgi")
    done = forking.run(list(words), env=dict(os.environ), cwd=ROOT)
    assert (done.returncode, json.loads(done.stdout)["kept"]) == (0, True)
    for wrong, missing in (
        (("worker", "check"), "--command"),
        (("worker", "check", "http://x"), "--key-file"),
    ):
        done = forking.run(list(wrong), env=dict(os.environ), cwd=ROOT)
        assert done.returncode == 2
        assert missing in done.stderr


@dataclass(slots=True)
class Proxied:
    """A plain program behind a proxy."""

    process: subprocess.Popen[bytes]
    port: int
    status: Path

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def call(
        self, method: str, path: str, epoch: int = 1, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        connection = self.connect()
        connection.request(method, path, body=body, headers=holder(epoch) | headers)
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer

    def open_requests(self) -> int:
        connection = self.connect()
        connection.request("GET", "/sessions")
        count: int = json.loads(connection.getresponse().read())["open"]
        connection.close()
        return count

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def children(self) -> list[int]:
        done = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True)
        return [int(word) for word in done.stdout.split()]


def holder(epoch: int) -> dict[str, str]:
    claim = f"c-{epoch}"
    return tokens.headers(claim, epoch, tokens.token(KEY, claim, epoch))


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxied]:
    with _proxied(tmp_path, *PROGRAM, "plain") as proxied:
        yield proxied


@contextlib.contextmanager
def _proxied(tmp_path: Path, *command: str) -> Iterator[Proxied]:
    key_file, status, port = tmp_path / "key", tmp_path / "status", free_port()
    key_file.write_text(KEY)
    env = os.environ | {
        names.ENV_KEY_FILE: str(key_file),
        names.ENV_STATUS_FILE: str(status),
        names.ENV_UID: "u-1",
        names.ENV_HOST: "127.0.0.1",
        names.ENV_PORT: str(port),
        names.ENV_GRACE_S: "20",
    }
    log = tmp_path / "proxy.log"
    with (
        log.open("wb") as out,
        subprocess.Popen([*PROXY, *command], env=env, cwd=ROOT, stderr=out) as process,
    ):
        try:
            eventually(lambda: status.exists() and "true" in status.read_text(), within_s=20)
            yield Proxied(process, port, status)
            assert "request_failed" not in log.read_text()
        finally:
            process.kill()


def test_the_program_sees_the_claim_and_no_credentials(proxied: Proxied) -> None:
    status, seen = proxied.call("GET", "/")
    assert status == 200
    assert b"x-warmpool-claim" in seen
    assert b"authorization" not in seen
    (child,) = proxied.children()
    environ = Path(f"/proc/{child}/environ").read_bytes()
    assert names.ENV_KEY_FILE.encode() not in environ
    assert json.loads(proxied.status.read_text()) == {"uid": "u-1", "port": proxied.port, "ready": True}


def test_a_long_body_passes_and_is_never_held_whole(proxied: Proxied) -> None:
    piece, count = os.urandom(1 << 20), 48
    digest = hashlib.sha256()
    for _ in range(count):
        digest.update(piece)
    expected = f"{count << 20} {digest.hexdigest()}".encode()
    connection = proxied.connect()
    connection.request(
        "POST", "/", body=(piece for _ in range(count)), headers=holder(1), encode_chunked=True
    )
    assert connection.getresponse().read() == expected
    connection.close()
    assert proxied.call("POST", "/", body=piece * count)[1] == expected
    peak = next(
        line
        for line in Path(f"/proc/{proxied.process.pid}/status").read_text().splitlines()
        if "VmHWM" in line
    )
    assert int(peak.split()[1]) < 80_000  # KiB; about 35,000 without the body, which has 49,152


def test_a_response_is_passed_on_as_it_comes(proxied: Proxied) -> None:
    connection = proxied.connect()
    connection.request("GET", "/stream", headers=holder(1))
    response = connection.getresponse()
    assert response.read(5) == b"first"
    connection_two = proxied.connect()
    connection_two.request("GET", "/sessions")
    assert json.loads(connection_two.getresponse().read())["open"] == 1
    assert proxied.call("GET", "/proceed")[0] == 200
    assert response.read() == b"second"
    connection.close()
    connection_two.close()


def _tunnel(proxied: Proxied, epoch: int) -> socket.socket:
    tunnel = socket.create_connection(("127.0.0.1", proxied.port), timeout=10)
    headers = holder(epoch) | {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "x" * 24,
        "Host": "w",
    }
    lines = ["GET /upgrade HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items()), "", ""]
    tunnel.sendall("\r\n".join(lines).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += tunnel.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    return tunnel


def test_a_newer_holder_ends_the_tunnel_of_the_one_before(proxied: Proxied) -> None:
    with _tunnel(proxied, 1) as tunnel:
        tunnel.sendall(b"hello")
        assert tunnel.recv(5) == b"HELLO"
        assert proxied.call("GET", "/", epoch=2)[0] == 200
        assert tunnel.recv(1) == b""
    assert proxied.call("GET", "/", epoch=1)[0] == 409


AMBIGUOUS = {
    "two lengths": ("Content-Length: 5", "Transfer-Encoding: chunked"),
    "a length twice": ("Content-Length: 5", "Content-Length: 6"),
    "a space before the colon": ("Content-Length : 5",),
    "a sign": ("Content-Length: +5",),
    "an unknown coding": ("Transfer-Encoding: gzip",),
    "a long head": ("X: " + "x" * 70_000,),
    "an empty length": ("Content-Length:", "Transfer-Encoding: chunked"),
    "a bare CR": ("X: y\rX-Warmpool-Claim: c-other",),
    "a bare LF": ("X: y\nX-Warmpool-Claim: c-other",),
    "a NUL": ("X: y\0",),
}


def test_a_request_that_servers_read_differently_is_refused(proxied: Proxied) -> None:
    own = [f"{n}: {v}" for n, v in holder(1).items()]
    for what, lines in AMBIGUOUS.items():
        text = "\r\n".join(["POST / HTTP/1.1", "Host: w", *own, *lines, "", ""])
        with socket.create_connection(("127.0.0.1", proxied.port), timeout=10) as sent:
            sent.sendall(text.encode())
            assert sent.recv(12) == b"HTTP/1.1 400", what
    for first in ("POST / HTTP/1.1\nX-Warmpool-Claim: c-other", "POST /\r HTTP/1.1", "POST /\0 HTTP/1.1"):
        with socket.create_connection(("127.0.0.1", proxied.port), timeout=10) as sent:
            sent.sendall("\r\n".join([first, "Host: w", *own, "", ""]).encode())
            assert sent.recv(12) == b"HTTP/1.1 400", first


def test_the_program_sees_one_claim_only(proxied: Proxied) -> None:
    seen = proxied.call("GET", "/", X_Warmpool_Claim="c-other", X_Trace="kept")[1]
    assert b"x_trace" in seen
    assert b"x_warmpool_claim" not in seen


def test_a_refused_upgrade_passes_on_no_second_request(proxied: Proxied) -> None:
    headers = holder(1) | {"Connection": "Upgrade", "Upgrade": "websocket"}
    lines = ["GET / HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items()), "", ""]
    with socket.create_connection(("127.0.0.1", proxied.port), timeout=10) as sent:
        sent.sendall("\r\n".join(lines).encode() + b"GET /exit HTTP/1.1\r\n\r\n")
        with sent.makefile("rb") as received:
            assert received.readline().startswith(b"HTTP/1.1 200")
    assert proxied.call("GET", "/")[0] == 200
    assert proxied.process.poll() is None


def test_a_refusal_arrives_although_its_body_is_not_read(proxied: Proxied) -> None:
    assert proxied.call("GET", "/", epoch=2)[0] == 200
    assert proxied.call("POST", "/", epoch=1, body=b"x" * 8_000_000)[0] == 409


def test_connections_that_send_nothing_do_not_delay_the_exit(proxied: Proxied) -> None:
    with socket.create_connection(("127.0.0.1", proxied.port), timeout=10):
        assert proxied.call("GET", "/")[0] == 200
        proxied.process.terminate()
        assert proxied.process.wait(10) == 0


DEAF = """
import os, socket, time
listening = socket.create_server(("127.0.0.1", int(os.environ["PORT"])), backlog=0)
time.sleep(60)
"""


def test_a_newer_holder_ends_requests_that_the_program_has_not_accepted(tmp_path: Path) -> None:
    with _proxied(tmp_path, sys.executable, "-c", DEAF) as proxied:
        sent = [socket.create_connection(("127.0.0.1", proxied.port), timeout=10) for _ in range(3)]
        for each in sent:  # more than the program's backlog: at least one is not connected
            lines = ["GET / HTTP/1.1", *(f"{n}: {v}" for n, v in holder(1).items()), "", ""]
            each.sendall("\r\n".join(lines).encode())
        eventually(lambda: proxied.open_requests() == 3)
        newer = proxied.connect()
        newer.request("GET", "/", headers=holder(2))
        assert [each.recv(100) for each in sent] == [b"", b"", b""]
        newer.close()
        for each in sent:
            each.close()


ENDLESS = """
import os, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Endless(BaseHTTPRequestHandler):
    stalled = []

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/stalled":
            self.wfile.write(b"%d" % len(self.stalled))
            return
        self.connection.settimeout(0.5)
        try:
            while self.path == "/endless":
                self.wfile.write(b"x" * 65_536)
        except TimeoutError:
            self.stalled.append(1)
            threading.Event().wait()

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Endless).serve_forever()
"""


def test_a_newer_holder_ends_downloads_that_are_not_read(tmp_path: Path) -> None:
    with _proxied(tmp_path, sys.executable, "-c", ENDLESS) as proxied:
        lines = ["GET /endless HTTP/1.1", *(f"{n}: {v}" for n, v in holder(1).items()), "", ""]
        sent = [socket.create_connection(("127.0.0.1", proxied.port), timeout=10) for _ in range(20)]
        for each in sent:
            each.sendall("\r\n".join(lines).encode())
        eventually(lambda: proxied.call("GET", "/stalled")[1] == b"20")
        assert proxied.call("GET", "/", epoch=2)[0] == 200
        eventually(lambda: proxied.open_files() < 20)
        for each in sent:
            each.close()


@pytest.mark.parametrize("words", [("--port", "70000"), ("--connections", "0")])
def test_the_proxy_refuses_numbers_out_of_range(words: tuple[str, str]) -> None:
    command = [*PROXY[:-1], *words, "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, words[0] in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_the_proxy_names_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        env = os.environ | {names.ENV_HOST: "127.0.0.1", names.ENV_PORT: port}
        done = subprocess.run([*PROXY, "sleep", "60"], env=env, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, port in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://[::1", "http://127.0.0.1:x"])
def test_the_check_refuses_an_address_that_is_none(url: str) -> None:
    with pytest.raises(InvalidInput, match="url must be http://HOST:PORT"):
        worker_check.check(CheckOptions(url=url, key=KEY))


NESTED = """
import os
from http.server import BaseHTTPRequestHandler, HTTPServer

class Nested(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[" * 60_000)

HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Nested).serve_forever()
"""


def test_the_check_survives_a_report_that_is_nested_too_deeply() -> None:
    assert "not 200 with a JSON object" in failed(sys.executable, "-c", NESTED)["self_report"]


def test_a_running_worker_is_checked_as_the_help_shows(proxied: Proxied, tmp_path: Path) -> None:
    url, key_file = f"http://127.0.0.1:{proxied.port}", ("--key-file", str(tmp_path / "key"))
    done = forking.run(["worker", "check", "--json", *key_file, url], env=dict(os.environ), cwd=ROOT)
    assert (done.returncode, json.loads(done.stdout)["kept"]) == (0, True), done.stderr
    done = forking.run(["worker", "check", url, *key_file], env=dict(os.environ), cwd=ROOT)
    assert (done.returncode, "options must come before the URL" in done.stderr) == (2, True)
    assert "--key-file key http://" in worker_command.CHECK_HELP


def test_a_proxy_ends_when_its_program_ends(proxied: Proxied) -> None:
    assert proxied.call("GET", "/exit")[0] == 502
    assert proxied.process.wait(10) == 7


def test_no_program_outlives_its_proxy(proxied: Proxied) -> None:
    (child,) = proxied.children()
    proxied.process.send_signal(signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{child}").exists())


def test_a_stopping_proxy_waits_for_its_session_then_stops_the_program(proxied: Proxied) -> None:
    (child,) = proxied.children()
    assert proxied.call("POST", "/sessions")[0] == 200
    proxied.process.terminate()
    eventually(lambda: proxied.call("GET", "/healthz")[0] == 503)
    assert '"ready": false' in proxied.status.read_text()
    assert proxied.call("GET", "/")[0] == 200
    assert proxied.call("DELETE", "/sessions")[0] == 200
    assert proxied.process.wait(10) == 0
    assert not Path(f"/proc/{child}").exists()
