"""The client as a service gets it: its wheel in a fresh environment, in a project with modules of its
own named `pool` and `tasks`, against a pool that `warmpool up` runs. Needs a package index.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.client_wheel import CLIENT, build_sdist, build_wheel
from tests.support.up import Up

# Celery 5.4 does not bound kombu, and kombu 5.5 needs a later redis.
OLDEST = ("celery[redis]==5.4.0", "kombu==5.4.*", "redis==5.0.1")
NEWEST = ("celery[redis]", "redis")

POOL = 'OWN = "a table of the service"\n'
TASKS = """
import os
from celery import Celery

url = os.environ["WARMPOOL_BROKER_URL"]
app = Celery("shop", broker=url, backend=url)
OWN = "the tasks of the service"
"""
SERVICE = """
import asyncio, json, urllib.request, warnings
import celery, redis
import pool, tasks
from warmpool import AsyncPool, ClaimLost, Pool, Refused

warnings.filterwarnings("error", module="warmpool")

def claim_seen_by(worker):
    request = urllib.request.Request(f"{worker.endpoint}/echo", headers=worker.auth)
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)["claim"]

def blocking():
    with Pool(name="shop") as own:
        with own.acquire("acme", wait_s=60) as worker:
            assert claim_seen_by(worker) == worker.claim_id
        acquire = tasks.app.signature("pool.acquire", kwargs={"org": "acme", "wait_s": 60}, queue="acquire")
        with own.adopt(acquire.delay().get(timeout=90)) as worker:
            assert claim_seen_by(worker) == worker.claim_id
            claim = worker.let_go()
        assert own.adopt(claim).release() == "released"
        try:
            own.adopt(claim)
        except ClaimLost:
            print("ended")
        try:
            own.acquire("acme", "no-such-profile")
        except Refused as no:
            print(no.reason)

async def asynchronous():
    async with AsyncPool(name="shop") as own, own.acquire("acme", wait_s=60) as worker:
        print(await asyncio.to_thread(claim_seen_by, worker) == worker.claim_id)

blocking()
asyncio.run(asynchronous())
print(pool.OWN, "and", tasks.OWN)
print("celery", celery.__version__, "redis", redis.__version__)
"""
TYPED = """
from typing import assert_type

from warmpool import CancelOutcome, Pool, RefusalReason, Refused, ReleaseOutcome, WorkerSource

def use(pool: Pool) -> None:
    try:
        worker = pool.acquire("acme", wait_s=5)
    except Refused as no:
        assert_type(no.reason, RefusalReason)
        return
    assert_type(worker.source, WorkerSource)
    assert_type(worker.release("tainted"), ReleaseOutcome)
    assert_type(pool.cancel("acme", "r"), CancelOutcome)
"""


# Runs with the plugin that the wheel registers; nothing here imports it.
FAKE_TEST = """
import pytest
from warmpool import Refused

def test_fake(fake_pool):
    fake_pool.server.refuse("org_cap")
    with pytest.raises(Refused, match="org_cap"):
        fake_pool.acquire("acme")
    with fake_pool.acquire("acme") as worker:
        assert fake_pool.server.held == [worker.claim_id]
    assert fake_pool.server.held == []
"""
PLAIN = (
    "import os, http.server as h; "
    "h.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), h.SimpleHTTPRequestHandler).serve_forever()"
)
WSGI = """
import os
from wsgiref.simple_server import WSGIServer, make_server
from socketserver import ThreadingMixIn
from warmpool.worker import WsgiWorkerMiddleware

def app(environ, start_response):
    start_response("200 OK", [])
    return [environ["warmpool"].claim_id.encode()]

class WsgiThreads(ThreadingMixIn, WSGIServer):
    daemon_threads = True

app = WsgiWorkerMiddleware(app)
make_server("127.0.0.1", int(os.environ["PORT"]), app, server_class=WsgiThreads).serve_forever()
"""


@dataclass(frozen=True, slots=True)
class Project:
    """A service's folder and its virtual environment."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "venv" / "bin" / "python")

    def install(self, *requirements: str) -> None:
        _ran([sys.executable, "-m", "venv", str(self.folder / "venv")])
        _ran([self.python, "-m", "pip", "-q", "--disable-pip-version-check", "install", *requirements])

    def run(self, *words: str, **env: str) -> str:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("WARMPOOL_", "PYTHON"))}
        return _ran([self.python, *words], cwd=self.folder, env=inherited | env)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_wheel(CLIENT, tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module", params=[OLDEST, NEWEST], ids=["oldest", "newest"])
def project(request: pytest.FixtureRequest, wheel: str, tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("project")
    for name, text in {"pool": POOL, "tasks": TASKS, "service": SERVICE, "typed": TYPED}.items():
        (folder / f"{name}.py").write_text(text)
    made = Project(folder)
    made.install(wheel, *request.param)
    return made


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    made = Up(tmp_path_factory.mktemp("up"))
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_a_service_with_its_own_pool_and_tasks_gets_workers(project: Project, up: Up) -> None:
    *printed, versions = project.run("service.py", WARMPOOL_BROKER_URL=up.broker_url()).splitlines()
    print(versions)
    assert printed == [
        "ended",
        "unknown_profile",
        "True",
        "a table of the service and the tasks of the service",
    ]
    assert up.wrongs() == []


def test_importing_it_imports_neither_redis_nor_asyncio(project: Project) -> None:
    code = "import warmpool, sys; print({'redis', 'asyncio', 'celery', 'pool', 'tasks'} & set(sys.modules))"
    assert project.run("-c", code) == "set()\n"


def test_the_testing_kit_and_the_worker_kit_work_from_the_wheel(project: Project) -> None:
    project.install("pytest")
    (project.folder / "test_fake.py").write_text(FAKE_TEST)
    assert "1 passed" in project.run("-m", "pytest", "-q", "test_fake.py")
    (project.folder / "wsgi.py").write_text(WSGI)
    checked = project.run("-m", "warmpool.worker", "check", "--command", project.python, "wsgi.py")
    assert "all 9 rules passed" in checked
    plain = ("-m", "warmpool.worker", "proxy", "--", project.python, "-c", PLAIN)
    checked = project.run("-m", "warmpool.worker", "check", "--command", project.python, *plain)
    assert "all 9 rules passed" in checked


def test_a_type_checker_sees_its_types(project: Project) -> None:
    """The checker of this environment reads the package as installed in the other."""
    _ran(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", project.python, "typed.py"],
        cwd=project.folder,
    )


@pytest.mark.parametrize("celery", ["5.4.0", "5.5.3", "5.6.3", "5.7.0"])
def test_it_can_be_installed_beside_celery(celery: str, wheel: str) -> None:
    wanted = ["--dry-run", "--ignore-installed", f"celery[redis]=={celery}", wheel]
    _ran([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", *wanted])


def test_a_wheel_from_the_sdist_is_the_wheel_from_the_checkout(wheel: str, tmp_path: Path) -> None:
    sdist = build_sdist(CLIENT, tmp_path)
    unpacked = tmp_path / "unpacked"
    _ran(["tar", "-xzf", str(sdist), "--one-top-level=unpacked"], cwd=tmp_path)
    (folder,) = unpacked.iterdir()
    assert build_wheel(folder, tmp_path / "wheel").read_bytes() == Path(wheel).read_bytes()


def _ran(words: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
