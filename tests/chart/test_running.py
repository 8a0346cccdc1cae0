"""The rendered chart, running: every command line as rendered, over TLS, as the users of the ACL
file, with the shipped probes. Redis goes down under load and comes back, and only a component that
is really stuck would have been restarted.

WARMPOOL_TEST_LONG=1 uses the shipped times of the probes, and an outage that is longer than all of
them together.
"""

from __future__ import annotations

import base64
import http.client
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from pool.client import Pool, Refused
from pool.core import signing
from tests.support.helm import helm, in_image, named, of_kind, rendered, secret_values
from tests.support.leftovers import processes_about
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.rendered import ChartGround, Kubelet, Running, is_there
from tests.support.signed import recipe
from tests.support.system import Load, clear_pods
from tests.support.tls import TlsProxy, certificates
from tests.support.waiting import eventually

LONG = bool(os.environ.get("WARMPOOL_TEST_LONG"))
PROBES = () if LONG else ("probes.silenceSeconds=10", "probes.periodSeconds=1")
OUTAGE_S = 150.0 if LONG else 16.0
SMALL = ("config.pool.fleet_threads=4", "config.pool.bind_threads=4", "config.profiles.default.warm_target=2")

pytestmark = pytest.mark.timeout(900 if LONG else 400)


class ChartDeployment:
    """Everything that the chart runs, in one folder."""

    def __init__(self, folder: Path, redis: RedisServer, tls: TlsProxy, database_url: str) -> None:
        self.folder = folder
        self.redis = redis
        self._tls = tls
        self.objects = rendered("trial", *PROBES, *SMALL)
        self.secret = secret_values(named(self.objects, "Secret", "wp-warmpool"))
        for user, key in (
            ("control", "broker-url"),
            ("flower", "flower-broker-url"),
            ("producer", "producer-broker-url"),
        ):
            self.secret[key] = self.url(user)
        self.secret["database-url"] = database_url
        config = folder / "config"
        config.mkdir()
        toml = named(self.objects, "ConfigMap", "wp-warmpool")["data"]["warmpool.toml"]
        # Pods are processes here, without a process 1 of their own; the rest is as in the cluster.
        (config / "warmpool.toml").write_text(toml.replace('"warmpool-init", "python"', '"python"'))
        over = {"WARMPOOL_DRIVER": "local", "WARMPOOL_DATA_DIR": str(folder)}
        self.ground = ChartGround(folder=folder, secrets={"wp-warmpool": self.secret}, over=over)
        self.parts: dict[str, Running] = {}

    def url(self, user: str) -> str:
        password = self.secret[f"redis-{user}-password"]
        return f"rediss://{user}:{password}@127.0.0.1:{self._tls.port}/0?ssl_ca_certs={self.folder / 'tls' / 'ca.crt'}"

    def org_key(self, org: str) -> str:
        return signing.org_key(self.secret["master-key"].encode(), org, 1).text

    def container(self, component: str) -> dict[str, Any]:
        found = named(self.objects, "Deployment", f"wp-warmpool-{component}")
        return dict(found["spec"]["template"]["spec"]["containers"][0])

    def start(self, component: str, name: str = "") -> Running:
        part = self.parts[name or component] = Running(
            name or component, self.container(component), self.ground
        )
        part.start()
        return part

    def run(self, container: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """Run a container that ends by itself."""
        probes = {
            kind: {"exec": {"command": ["true"]}}
            for kind in ("startupProbe", "livenessProbe", "readinessProbe")
        }
        job = Running(container["name"], {**container, **probes}, self.ground)
        return subprocess.run(
            in_image(container["command"]), env=job.env, capture_output=True, text=True, timeout=110
        )

    def close(self) -> None:
        for part in self.parts.values():
            part.kill()
        clear_pods(self.folder / "local")
        assert not processes_about(self.folder)


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> Iterator[ChartDeployment]:
    folder = tmp_path_factory.mktemp("chart")
    made = certificates(folder / "tls")
    acl = secret_values(named(rendered("trial", *PROBES, *SMALL), "Secret", "wp-warmpool"))["users.acl"]
    redis = RedisServer(appendonly=True, acl=acl)
    with redis, TlsProxy(made, redis.port) as tls:
        deployment = ChartDeployment(folder, redis, tls, postgres.create_database("rendered_chart"))
        try:
            yield deployment
        finally:
            deployment.close()


@pytest.fixture(scope="module")
def running(deployment: ChartDeployment) -> ChartDeployment:
    """Everything: the migration first, then every component."""
    migrate = of_kind(deployment.objects, "Job")[0]["spec"]["template"]["spec"]["containers"][0]
    done = deployment.run(migrate)
    assert done.returncode == 0, done.stderr
    names = [
        d["metadata"]["name"].removeprefix("wp-warmpool-") for d in of_kind(deployment.objects, "Deployment")
    ]
    for component in names:
        if is_there(deployment.container(component)):
            deployment.start(component)
    deployment.start("beat", "beat-2")
    for part in deployment.parts.values():
        part.wait_ready()
    return deployment


def test_init_containers_wait_until_the_migration_is_done(running: ChartDeployment) -> None:
    spec = named(running.objects, "Deployment", "wp-warmpool-acquire")["spec"]["template"]["spec"]
    assert running.run(spec["initContainers"][0]).returncode == 0


def test_every_component_runs_with_its_rendered_command_and_passes_its_probes(
    running: ChartDeployment,
) -> None:
    assert {"acquire", "fleet", "bind", "passes", "beat", "beat-2", "flower"} <= set(running.parts)
    for part in running.parts.values():
        assert part.startup.look(), part.startup.complaints
        assert part.liveness.look(), part.liveness.complaints


def test_the_helm_test_acquires_and_releases(running: ChartDeployment) -> None:
    test = of_kind(running.objects, "Pod")[0]["spec"]["containers"][0]
    done = running.run(test)
    assert done.returncode == 0, done.stderr


def test_a_producer_is_served_by_the_client_and_by_a_celery_app(running: ChartDeployment) -> None:
    key = running.org_key("acme")
    with Pool(running.url("producer"), org_key=key) as pool, pool.acquire("acme", wait_s=30) as worker:
        assert worker.endpoint
    with Pool(running.url("producer")) as nobody, pytest.raises(Refused, match="only signed requests"):
        nobody.acquire("acme")
    url = running.url("producer") + "&ssl_cert_reqs=required"
    app = Celery("service", broker=url, backend=url, set_as_current=False)
    try:
        ask: dict[str, Any] = {}
        exec(recipe(), ask)
        answer = ask["ask"](app, key, "pool.acquire", org="acme", wait_s=30).get(timeout=60)
        assert answer["outcome"] == "granted", answer
        # A user that may push to the queue of acquires cannot run internal tasks there.
        forged = [app.send_task(task, queue="acquire", declare=[]) for task in ("pool.reap", "pool.spawn")]
        refused = app.send_task("celery.starmap", queue="acquire", declare=[]).get(timeout=60)
        assert (refused["outcome"], refused["reason"]) == ("refused", "invalid"), refused
        assert not any(each.ready() for each in forged)
        released = ask["ask"](app, key, "pool.release", claim_id=answer["claim_id"])
        assert released.get(timeout=60) == {"outcome": "released"}
    finally:
        app.close()


def test_flower_shows_the_workers_and_requires_a_login(running: ChartDeployment) -> None:
    flower = running.parts["flower"]

    def get(path: str, login: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", flower.port, timeout=30)
        header = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
        try:
            connection.request("GET", path, headers=header)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    login = running.secret["flower-basic-auth"]
    assert {get(path)[0] for path in ("/", "/workers", "/api/tasks", "/api/workers")} == {401}
    eventually(lambda: "acquire@" in get("/workers", login)[1], within_s=60, every_s=0.5)


def test_a_redis_outage_under_load_restarts_only_stuck_components(running: ChartDeployment) -> None:
    stuck, others = running.parts["beat-2"], [p for n, p in running.parts.items() if n != "beat-2"]
    pids = {part.name: part.process.pid for part in others if part.process}
    kubelet = Kubelet([*others, stuck])
    url, key = running.url("producer"), running.org_key("load")
    with Load(url, threads=2, lease_s=3600, org_key=key) as load, kubelet.looking():
        load.goes_on(5)
        running.redis.kill()
        stuck.send(signal.SIGSTOP)
        newcomer = running.start("passes", "passes-2")
        newcomer.wait_started()
        threading.Event().wait(OUTAGE_S)
        assert not newcomer.readiness.look(), "it cannot have served yet"
        assert newcomer.liveness.look(), newcomer.liveness.complaints
        running.redis.start()
        load.goes_on(20)
        newcomer.wait_ready()
    assert set(kubelet.would_restart) == {"beat-2"}, kubelet.would_restart
    stuck.send(signal.SIGCONT)
    assert {part.name: part.process.pid for part in others if part.process and part.alive()} == pids
    assert kubelet.looks > OUTAGE_S / float(stuck.liveness.spec["periodSeconds"]) / 3


def test_on_sigterm_every_component_ends_in_order(running: ChartDeployment) -> None:
    for part in running.parts.values():
        part.send(signal.SIGTERM)
    assert {part.name: part.ends() for part in running.parts.values()} == dict.fromkeys(running.parts, 0)


def test_the_chart_can_be_packaged(tmp_path: Path) -> None:
    done = helm("package", str(Path(__file__).parents[2] / "charts" / "warmpool"), "-d", str(tmp_path))
    assert done.returncode == 0, done.stderr
