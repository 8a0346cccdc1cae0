"""The reference worker: which callers it serves, which it refuses, and how it ends. Each test calls
a real one.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pool.core import names, tokens
from pool.drivers.port import Pod, PodPhase
from tests.support.local_ground import MASTER_KEY, LocalGround, auth, call
from tests.support.waiting import eventually


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[LocalGround]:
    ground = LocalGround(tmp_path / "data")
    try:
        yield ground
    finally:
        ground.clear()


@pytest.fixture
def worker(ground: LocalGround) -> Pod:
    return ground.make_ready(ground.driver().create(ground.spec()))


def test_a_holder_is_served_and_gets_the_workers_name(ground: LocalGround, worker: Pod) -> None:
    for path in ("/", "/echo", "/echo?colour=green"):
        status, said = call(worker, "POST", path, auth("w-one", "c-1", 3), "hello")
        assert status == 200
        assert (said["worker"], said["claim"], said["epoch"]) == ("w-one", "c-1", 3)
        assert (said["method"], said["body"], said["pid"]) == ("POST", "hello", ground.identity(worker).pid)


OTHERS_TOKEN = tokens.token(tokens.worker_key(MASTER_KEY, "w-two"), "c-1", 1)
GOOD = auth("w-one", "c-1", 1)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"Authorization": GOOD["Authorization"]}, id="token-without-claim"),
        pytest.param({k: v for k, v in GOOD.items() if k != "Authorization"}, id="claim-without-token"),
        pytest.param(tokens.headers("c-1", 1, OTHERS_TOKEN), id="another-workers-token"),
        pytest.param(GOOD | {tokens.HEADER_EPOCH: "2"}, id="another-epoch"),
        pytest.param(GOOD | {tokens.HEADER_CLAIM: "c-2"}, id="another-claim"),
        pytest.param(GOOD | {tokens.HEADER_EPOCH: "one"}, id="epoch-is-no-number"),
        pytest.param(GOOD | {tokens.HEADER_EPOCH: "-1"}, id="epoch-is-negative"),
        pytest.param(GOOD | {"Authorization": GOOD["Authorization"].replace("Bearer", "Basic")}, id="scheme"),
        pytest.param(GOOD | {"Authorization": "Bearer \xe9"}, id="not-ascii"),
    ],
)
def test_without_a_valid_token_nothing_is_served(worker: Pod, headers: dict[str, str]) -> None:
    for method, path in (
        ("GET", "/echo"),
        ("POST", "/activate"),
        ("POST", "/sessions"),
        ("DELETE", "/sessions"),
    ):
        assert call(worker, method, path, headers)[0] == 401
    assert call(worker, "GET", "/sessions")[1]["claim"] is None


def test_a_lower_epoch_is_refused_once_a_higher_was_seen(worker: Pod) -> None:
    old, new = auth("w-one", "c-1", 1), auth("w-one", "c-2", 2)
    assert call(worker, "GET", "/echo", old)[0] == 200
    assert call(worker, "GET", "/echo", new)[0] == 200
    for method, path in (
        ("GET", "/echo"),
        ("POST", "/activate"),
        ("POST", "/sessions"),
        ("DELETE", "/sessions"),
    ):
        assert call(worker, method, path, old)[0] == 409
    assert call(worker, "GET", "/echo", new)[0] == 200


def test_one_epoch_has_one_holder(worker: Pod) -> None:
    assert call(worker, "GET", "/echo", auth("w-one", "c-1", 1))[0] == 200
    assert call(worker, "GET", "/echo", auth("w-one", "c-2", 1))[0] == 409


def test_a_newer_holder_ends_the_session_of_the_holder_before(worker: Pod) -> None:
    assert call(worker, "POST", "/sessions", auth("w-one", "c-1", 1))[0] == 200
    assert call(worker, "GET", "/echo", auth("w-one", "c-2", 2))[0] == 200
    said = call(worker, "GET", "/sessions")[1]
    assert (said["open"], said["claim"], said["epoch"]) == (0, "c-2", 2)


def test_the_self_report_counts_sessions_and_names_the_holder(worker: Pod) -> None:
    fresh = call(worker, "GET", "/sessions")[1]
    assert fresh == {"open": 0, "claim": None, "epoch": 0, "last_used_s": None, "draining": False}
    for _ in range(2):
        assert call(worker, "POST", "/sessions", GOOD)[0] == 200
    said = call(worker, "GET", "/sessions")[1]
    assert (said["open"], said["claim"], said["epoch"]) == (1, "c-1", 1)
    assert said["last_used_s"] >= 0
    for _ in range(2):
        assert call(worker, "DELETE", "/sessions", GOOD)[0] == 200
    assert call(worker, "GET", "/sessions")[1]["open"] == 0


def test_a_request_in_flight_is_a_session(worker: Pod) -> None:
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(call, worker, "POST", "/activate", GOOD, '{"sleep_s": 1}')
        eventually(lambda: call(worker, "GET", "/sessions")[1]["open"] == 1)
        assert slow.result()[0] == 200
    assert call(worker, "GET", "/sessions")[1]["open"] == 0


def test_an_activation_is_stored(worker: Pod) -> None:
    assert call(worker, "POST", "/activate", GOOD, '{"org": "acme", "colour": "green"}')[0] == 200
    said = call(worker, "GET", "/echo", auth("w-one", "c-2", 2))[1]
    assert (said["org"], said["activation"]["colour"]) == ("acme", "green")


def test_a_worker_bound_to_an_org_refuses_another(worker: Pod) -> None:
    assert call(worker, "POST", "/activate", GOOD, '{"org": "acme"}')[0] == 200
    assert call(worker, "POST", "/activate", auth("w-one", "c-2", 2), '{"org": "other"}')[0] == 409
    assert call(worker, "GET", "/echo", auth("w-one", "c-2", 2))[1]["org"] == "acme"


def test_a_failed_activation_binds_nothing(worker: Pod) -> None:
    assert call(worker, "POST", "/activate", GOOD, '{"org": "acme", "fail": true}')[0] == 500
    assert call(worker, "GET", "/echo", GOOD)[1]["org"] is None


def test_an_activation_overtaken_by_a_newer_holder_binds_nothing(worker: Pod) -> None:
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(call, worker, "POST", "/activate", GOOD, '{"org": "acme", "sleep_s": 1}')
        eventually(lambda: call(worker, "GET", "/sessions")[1]["open"] == 1)
        assert call(worker, "GET", "/echo", auth("w-one", "c-2", 2))[0] == 200
        assert slow.result()[0] == 409
    assert call(worker, "GET", "/echo", auth("w-one", "c-2", 2))[1]["org"] is None


@pytest.mark.parametrize("body", ["{", "[]", '"text"'])
def test_an_activation_that_is_no_json_object_is_refused(worker: Pod, body: str) -> None:
    assert call(worker, "POST", "/activate", GOOD, body)[0] == 400


def test_unknown_paths_and_methods_are_refused(worker: Pod) -> None:
    assert call(worker, "GET", "/nothing", GOOD)[0] == 404
    assert call(worker, "PUT", "/activate", GOOD)[0] == 405
    assert call(worker, "POST", "/echo", GOOD | {"Content-Length": "-1"})[0] == 413
    assert call(worker, "POST", "/echo", GOOD, "x" * (1 << 20))[0] == 200


def test_a_connection_serves_many_requests(worker: Pod) -> None:
    connection = _connect(worker)
    for _ in range(3):
        connection.request("GET", "/echo", headers=GOOD)
        response = connection.getresponse()
        response.read()
        assert (response.status, response.version, response.will_close) == (200, 11, False)
    connection.close()


def test_a_stopping_worker_waits_for_its_session(ground: LocalGround, worker: Pod) -> None:
    assert call(worker, "POST", "/sessions", GOOD)[0] == 200
    ground.driver().delete(worker.name, worker.uid)
    eventually(lambda: call(worker, "GET", "/healthz")[0] == 503)
    assert call(worker, "GET", "/sessions")[1]["draining"] is True
    # Its holder continues until it is done.
    assert call(worker, "GET", "/echo", GOOD)[0] == 200
    assert ground.identity(worker).alive()
    assert call(worker, "DELETE", "/sessions", GOOD)[0] == 200
    eventually(lambda: ground.driver().read(worker.name) is None)


def test_a_stopping_worker_answers_requests_in_flight(ground: LocalGround, worker: Pod) -> None:
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(call, worker, "POST", "/activate", GOOD, '{"sleep_s": 1}')
        eventually(lambda: call(worker, "GET", "/sessions")[1]["open"] == 1)
        ground.driver().delete(worker.name, worker.uid)
        eventually(lambda: call(worker, "GET", "/healthz")[0] == 503)
        assert call(worker, "POST", "/sessions", GOOD)[0] == 503
        assert slow.result()[0] == 200
    eventually(lambda: ground.driver().read(worker.name) is None)


def test_a_stopping_worker_closes_idle_connections(ground: LocalGround, worker: Pod) -> None:
    assert call(worker, "POST", "/sessions", GOOD)[0] == 200
    connection = _connect(worker)
    connection.request("GET", "/echo", headers=GOOD)
    connection.getresponse().read()
    ground.driver().delete(worker.name, worker.uid)
    assert connection.sock.recv(1) == b""
    connection.close()
    assert call(worker, "DELETE", "/sessions", GOOD)[0] == 200


def test_a_stopping_worker_answers_new_connections(ground: LocalGround, worker: Pod) -> None:
    assert call(worker, "POST", "/sessions", GOOD)[0] == 200
    connection = _connect(worker)
    connection.connect()
    # Once another request was answered, this one has been accepted.
    assert call(worker, "GET", "/healthz")[0] == 200
    ground.driver().delete(worker.name, worker.uid)
    eventually(lambda: call(worker, "GET", "/healthz")[0] == 503)
    connection.request("DELETE", "/sessions", headers=GOOD)
    assert connection.getresponse().status == 200
    connection.close()


def test_a_worker_exits_at_the_end_of_its_grace_period(ground: LocalGround) -> None:
    pod = ground.make_ready(ground.driver().create(replace(ground.spec(), grace_s=1)))
    assert call(pod, "POST", "/sessions", GOOD)[0] == 200
    ground.driver().delete(pod.name, pod.uid, grace_s=300)
    eventually(lambda: ground.driver().read(pod.name) is None)


def test_a_worker_whose_directory_was_removed_exits(ground: LocalGround, worker: Pod) -> None:
    ground.run_file(worker, "status").unlink()
    eventually(lambda: not ground.identity(worker).alive(), within_s=15)


def test_a_worker_runs_in_a_container_without_status_file(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(tokens.worker_key(MASTER_KEY, "w-one") + "\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = {names.ENV_WORKER: "w-one", names.ENV_PORT: str(port), names.ENV_KEY_FILE: str(key_file)}
    env = os.environ | told | {"PYTHONPATH": str(Path.cwd())}
    pod = Pod(
        name="w-one", uid="", version="", phase=PodPhase.RUNNING, ready=True, terminating=False,
        endpoint=f"http://127.0.0.1:{port}",
    )  # fmt: skip
    with subprocess.Popen([sys.executable, "-m", "pool.drivers.local.worker"], env=env) as container:
        try:
            eventually(lambda: _is_healthy(pod))
            assert call(pod, "GET", "/echo", GOOD)[0] == 200
            container.terminate()
            assert container.wait(timeout=10) == 0
        finally:
            container.kill()


def test_a_worker_starts_with_the_standard_library_alone() -> None:
    code = "import sys, pool.drivers.local.worker; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    others = set(done.stdout.split()) - set(sys.stdlib_module_names) - {"pool", "__main__"}
    assert {m for m in others if not m.startswith("_")} == set()


def test_many_clients_at_once_are_all_served(worker: Pod) -> None:
    start = threading.Barrier(16)

    def ask() -> int:
        start.wait()
        return call(worker, "GET", "/echo", GOOD)[0]

    with ThreadPoolExecutor(16) as threads:
        assert [f.result() for f in [threads.submit(ask) for _ in range(16)]] == [200] * 16
    assert call(worker, "GET", "/sessions")[1]["open"] == 0


def _connect(pod: Pod) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(pod.endpoint).netloc, timeout=10)


def _is_healthy(pod: Pod) -> bool:
    try:
        return call(pod, "GET", "/healthz")[0] == 200
    except ConnectionError:
        return False
