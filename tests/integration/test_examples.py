"""The examples run as their first lines say, against a real pool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pool.ops.up.ports import free_port
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, ROOT, System
from tests.support.waiting import eventually

WARM = 3
STARTS_WITHIN_S = 60

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[System]:
    settings = {
        "pool": {"max_workers": WARM},
        "profiles": {"default": {"warm_target": WARM, "grace_s": 1}},
        "orgs": {"auto_create": True, "full": {"cap": 1}},
    }
    url = postgres.create_database("examples")
    with System(tmp_path_factory.mktemp("examples"), url, settings=settings) as made:
        made.run(*EVERYTHING).wait_idle(WARM)
        yield made


@contextmanager
def started(system: System, *words: str) -> Iterator[Path]:
    """Run a Python program beside the block; yield its output."""
    output = system.folder / "example.log"
    env = {**os.environ, "WARMPOOL_BROKER_URL": system.redis.url, "PYTHONPATH": str(ROOT)}
    with output.open("wb") as log:
        process = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        yield output
        assert process.poll() is None, output.read_text()
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def finished(system: System, *words: str) -> str:
    """Return the output of a program that must end well."""
    env = {**os.environ, "WARMPOOL_BROKER_URL": system.redis.url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["service", "async_service"])
def test_a_script_uses_a_worker_and_leaves_no_claim(system: System, name: str) -> None:
    assert "hello" in finished(system, f"examples/{name}.py")
    eventually(lambda: not system.live_claims())


@pytest.mark.parametrize("name", ["celery_chain", "celery_task"])
def test_a_celery_app_uses_a_worker_and_leaves_no_claim(system: System, name: str) -> None:
    command = f"-m celery -A examples.{name} worker --pool threads -c 2 -l WARNING --without-gossip"
    with started(system, *command.split()):
        assert "hello" in finished(system, "-m", f"examples.{name}")
        eventually(lambda: not system.live_claims())


@pytest.mark.parametrize("name", ["fastapi_service", "django_service"])
def test_a_web_service_uses_a_worker_and_reports_a_refusal(system: System, name: str) -> None:
    pytest.importorskip(name.partition("_")[0])
    port = free_port()
    lifespan = "off" if name == "django_service" else "on"
    command = f"-m uvicorn --port {port} --lifespan {lifespan} examples.{name}:app"
    with started(system, *command.split()) as output:
        eventually(lambda: "Uvicorn running" in output.read_text(), within_s=STARTS_WITHIN_S)
        assert asked(port, "acme") == (200, "hello")
        status, _ = asked(port, "no org has spaces")
        assert status == 503
    eventually(lambda: not system.live_claims())


def asked(port: int, org: str) -> tuple[int, str]:
    """Return the status, and what the worker has answered."""
    url = f"http://127.0.0.1:{port}/orgs/{urllib.request.quote(org)}/ask"  # type: ignore[attr-defined]
    try:
        with urllib.request.urlopen(url, data=b"hello", timeout=60) as response:
            return response.status, json.load(response)["body"]
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()
