"""A call that the API server forbids is recorded in the table within one call, by any process, and
`status` names the permission.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pool import wiring
from pool.core.clock import SystemClock
from pool.core.errors import Refused, Transient
from pool.core.settings import KubernetesSettings, PoolSettings, Settings
from pool.drivers.kubernetes.api import ApiCall
from pool.drivers.kubernetes.driver import KubernetesDriver
from pool.drivers.kubernetes.rights import Right
from pool.drivers.port import NOTE_DO_NOT_DISRUPT, Pod, StampResult
from pool.lifecycle.denials import Denials
from pool.metrics import Metrics
from pool.ops import reporting
from tests.support.kube_api import ApiAccess
from tests.support.world import World


class SaysNo(BaseHTTPRequestHandler):
    """An API server with an empty Role for the pool."""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"kind": "Status", "code": 403, "message": "pods is forbidden"}).encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 - names of the library's

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SaysNo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        file = tmp_path / "kubeconfig"
        access = ApiAccess(server=f"http://127.0.0.1:{server.server_port}", authority="", token="t")
        file.write_text(access.kubeconfig())
        yield file
        server.shutdown()


def worries(world: World) -> dict[str, str]:
    return {w["id"]: w["text"] for w in reporting.status(world.store, world.deps.settings)["worries"]}


def test_a_forbidden_call_is_logged_and_counted(kubeconfig: Path) -> None:
    kubernetes = KubernetesSettings(namespace="here", kubeconfig=str(kubeconfig))
    settings = Settings(pool=PoolSettings(driver="kubernetes", call_timeout_s=5), kubernetes=kubernetes)
    metrics, told = Metrics(), []
    driver = wiring.build_driver(settings, metrics, lambda *call: told.append(call))

    def refusals(right: Right) -> float:
        return float(metrics.api_calls.labels(right.verb, right.resource, "403")._value.get())

    samples = {
        tuple(s.labels.values()) for m in metrics.api_calls.collect() for s in m.samples if s.value == 0
    }
    assert {(r.verb, r.resource, "403") for r in Right} <= samples, "a series that appears late has not grown"
    assert isinstance(driver, KubernetesDriver)
    try:
        for right in (Right.DELETE_PODS, Right.LIST_NODES):
            with pytest.raises(Refused, match=f"may not {right.verb} {right.resource}"):
                driver._api.call(ApiCall(right=right, name="w-one"))
    finally:
        driver.close()
    assert told == [("delete", "pods")], "nodes need not be readable"
    assert refusals(Right.DELETE_PODS) == 1


def test_status_names_the_missing_permission_until_it_is_granted(world: World) -> None:
    forbidden = Denials(world.store, SystemClock())
    forbidden.saw("delete", "pods")
    assert worries(world)["forbidden:delete pods"] == (
        "the API server forbids `delete pods`: the Role does not grant it, or a quota is exhausted"
    )
    world.pass_time(61)
    assert "forbidden:delete pods" not in worries(world)


def test_many_refusals_are_one_write_and_an_unreachable_database_is_no_error(world: World) -> None:
    class Away:
        writes = 0

        def write(self) -> None:
            self.writes += 1
            raise Transient("away")

    away = Away()
    forbidden = Denials(away, SystemClock())  # type: ignore[arg-type]
    for _ in range(20):
        forbidden.saw("patch", "pods")
    forbidden.saw("create", "pods")
    assert away.writes == 2


def test_busy_workers_that_stay_unprotected_are_a_finding_and_just_claimed_ones_are_not(world: World) -> None:
    world.warm(1)
    got = world.granted("acme")
    for seconds, worried in ((0, False), (10, True)):
        world.pass_time(seconds)
        pod = world.driver.read(got.worker_id)
        assert pod is not None
        bare = {k: v for k, v in pod.annotations.items() if k != NOTE_DO_NOT_DISRUPT}
        world.driver.change(got.worker_id, annotations=bare)
        world.run_pass("guard_disruption")
        assert ("unprotected" in worries(world)) == worried
    assert worries(world)["unprotected"].startswith("1 worker in use can be evicted at any time")
    world.run_pass("guard_disruption")
    assert "unprotected" not in worries(world)


def test_a_guard_without_the_patch_permission_tries_every_pod_and_does_not_raise(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.warm(2)
    held = {world.granted("acme").worker_id, world.granted("acme").worker_id}
    tried = set()

    def denied(pod: Pod, _: object) -> StampResult:
        tried.add(pod.name)
        raise Refused("forbidden", detail="may not patch pods")

    monkeypatch.setattr(world.driver, "stamp", denied)
    assert world.run_pass("guard_disruption")["outcome"] == "ok"
    assert tried == held
