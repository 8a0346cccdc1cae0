"""The contract of clients: real ones against a real pool, and the fakes of `warmpool.testing`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from opentelemetry.sdk.trace import TracerProvider

from pool.client import AsyncPool, Pool
from pool.client.pytest_plugin import RealPool, warmpool_pool  # noqa: F401 - a fixture
from pool.client.testing import FakeAsyncPool, FakePool, FakeServer
from pool.core.ids import OrgId
from pool.core.settings import OrgDefaults
from pool.store import connect, orgs
from tests.contracts.client import TRACE, ClientContract, Loop

LONG = pytest.mark.skipif(
    os.environ.get("WARMPOOL_TEST_LONG") != "1", reason="the same server again, with WARMPOOL_TEST_LONG=1"
)


class RealGround:
    """A pool that `warmpool up` runs."""

    def __init__(self, real: RealPool, kind: type[Any]) -> None:
        self._real, self._kind = real, kind

    def pool(self) -> Any:
        url, kind = self._real.url, self._kind
        return Loop(lambda: kind(url)) if kind is AsyncPool else kind(url)

    def set_cap(self, org: str, cap: int) -> None:
        # As `warmpool org set` does, without the seconds that a new process takes.
        with (
            closing(connect((self._real.data_dir / "run" / "database.url").read_text().strip())) as store,
            store.write() as tx,
        ):
            orgs.seed(tx, OrgId(org), OrgDefaults(cap=cap))

    def lose(self, worker: Any) -> None:
        request = urllib.request.Request(f"{worker.endpoint}/echo", headers=worker.auth)
        with urllib.request.urlopen(request, timeout=20) as response:
            os.kill(json.load(response)["pid"], signal.SIGKILL)

    def leave(self, worker: Any) -> None:
        self._real.run("drain", "worker", worker.worker_id, "--why", "a test")


class FakeGround:
    """A pool in memory."""

    def __init__(self, kind: type[Any]) -> None:
        self._server, self._kind = FakeServer(), kind

    def pool(self) -> Any:
        kind, server = self._kind, self._server
        return Loop(lambda: kind(server)) if kind is FakeAsyncPool else kind(server)

    def set_cap(self, org: str, cap: int) -> None:
        self._server.set_cap(org, cap)

    def lose(self, worker: Any) -> None:
        self._server.lose(worker.claim_id)

    def leave(self, worker: Any) -> None:
        self._server.leave(worker.claim_id)


@pytest.mark.parametrize("kind", [FakePool, FakeAsyncPool])
class TestFake(ClientContract):
    @pytest.fixture
    def ground(self, kind: type[Any]) -> FakeGround:
        return FakeGround(kind)


def test_a_fake_that_refuses_zero_times_grants() -> None:
    with FakePool() as pool:
        pool.server.refuse("org_cap", times=0)
        assert pool.acquire("acme").worker_id


@pytest.mark.xdist_group("warmpool_pool")
@pytest.mark.parametrize("kind", [Pool, pytest.param(AsyncPool, marks=LONG)])
class TestReal(ClientContract):
    @pytest.fixture
    def ground(self, kind: type[Any], warmpool_pool: RealPool) -> RealGround:  # noqa: F811
        return RealGround(warmpool_pool, kind)


@pytest.mark.xdist_group("warmpool_pool")
def test_the_pool_shows_which_program_holds_a_worker(warmpool_pool: RealPool) -> None:  # noqa: F811
    with Pool(warmpool_pool.url, name="billing") as pool, pool.acquire("acme", wait_s=60) as worker:
        program = f"billing:{os.getpid()}@{socket.gethostname()}"
        assert program in warmpool_pool.run("get", "claims")
        assert f"live  of {program}" in warmpool_pool.run("explain", worker.worker_id)


@pytest.mark.xdist_group("warmpool_pool")
def test_a_call_to_a_worker_is_in_the_trace_of_its_caller(warmpool_pool: RealPool) -> None:  # noqa: F811
    tracer = TracerProvider().get_tracer("shop")
    with Pool(warmpool_pool.url) as pool, tracer.start_as_current_span("order") as order:
        trace_id = f"{order.get_span_context().trace_id:032x}"
        asked = {"wait_s": 60, "request_id": "r-traced"}
        with pool.acquire("acme", **asked) as worker, worker.session() as http:  # type: ignore[arg-type]
            with tracer.start_as_current_span("call") as call:
                seen = http.get("/echo", timeout=20).json()["traceparent"]
            assert seen.startswith(f"00-{trace_id}-{call.get_span_context().span_id:016x}-")
            assert f"traceparent  00-{trace_id}" in warmpool_pool.run("explain", "r-traced")


@pytest.mark.xdist_group("warmpool_pool")
def test_a_celery_app_sends_a_trace_and_a_malformed_one_changes_nothing(warmpool_pool: RealPool) -> None:  # noqa: F811
    with Celery(broker=warmpool_pool.url, backend=warmpool_pool.url) as app, Pool(warmpool_pool.url) as pool:
        for wrong in ("not a trace", 7, ["x" * 1000]):
            result = app.send_task(
                "pool.acquire",
                kwargs={"org": "acme", "wait_s": 60},
                queue="acquire",
                headers={"traceparent": wrong},
            ).get(timeout=90)
            assert pool.adopt(result).release() == "released"
        result = app.send_task(
            "pool.acquire",
            kwargs={"org": "acme", "wait_s": 60, "request_id": "r-celery"},
            queue="acquire",
            headers={"traceparent": TRACE},
        ).get(timeout=90)
        assert f"traceparent  {TRACE}" in warmpool_pool.run("explain", "r-celery")
        assert pool.adopt(result).release() == "released"
        backend: Any = app.backend
        backend.result_consumer.stop()
    assert _skipped_traces(warmpool_pool) == 3


def _skipped_traces(real: RealPool) -> float:
    found = 0.0
    for group in json.loads((real.data_dir / "run" / "metrics.json").read_text()):
        (target,) = group["targets"]
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=20) as response:
            text = response.read().decode()
        found += sum(
            float(n) for n in re.findall(r'warmpool_items_left_out_total\{item="traceparent"\} (\S+)', text)
        )
    return found


@pytest.mark.xdist_group("warmpool_pool")
def test_the_example_of_the_documentation_gets_a_real_worker(warmpool_pool: RealPool) -> None:  # noqa: F811
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    (example,) = (
        block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "warmpool_pool" in block
    )
    found: dict[str, Any] = {}
    exec(compile(example, "docs/testing.md", "exec"), found)
    found["test_a_real_worker_answers"](warmpool_pool)
