"""A running pool scraped by a real Prometheus: every process is scraped, every query of the
dashboard returns data, and no alert fires in a healthy pool.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pool.metrics import dashboard
from pool.metrics.catalog import CATALOG
from tests.support.postgres_server import PostgresServer
from tests.support.prometheus import Prometheus, command
from tests.support.system import EVERYTHING, ROOT, Service, System
from tests.support.waiting import eventually

RULES = ROOT / "charts" / "warmpool" / "files" / "alerts.yaml"
# Absent in a healthy pool on this machine: there is no cluster API, and nothing fails.
QUIET = (
    "api_calls",
    "park_failures",
    "activation_failures",
    "spawn_failures",
    "pass_overflow",
    "fallback_runs",
)


@pytest.fixture(scope="module")
def seen(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> Iterator[tuple[System, Prometheus]]:
    command("prometheus")
    folder = tmp_path_factory.mktemp("pool")
    settings = {"profiles": {"default": {"warm_target": 2}}, "orgs": {"acme": {"cap": 5}}}
    url = postgres.create_database("metrics_live")
    with System(folder, url, settings=settings, measured=True) as system:
        system.run(*EVERYTHING, "exporter").wait_idle(2)
        service = Service(system.redis.url)
        service.granted("acme", lease_s=600)
        tainted = service.granted("acme")["claim_id"]
        with Prometheus(folder / "prometheus", system.metrics_ports, rules=RULES) as prometheus:
            try:
                eventually(lambda: set(prometheus.scraped().values()) == {"up"}, within_s=60, every_s=0.2)
                # Rates need two scrapes with changes in between.
                service.call("release", claim_id=tainted, condition="tainted")
                service.granted("acme", lease_s=600)
                eventually(
                    lambda: prometheus.query('increase(warmpool_acquires_total{outcome="granted"}[1m])'),
                    within_s=60, every_s=0.5,
                )  # fmt: skip
                yield system, prometheus
            finally:
                service.close()


def test_every_process_is_scraped_and_labelled_with_its_component(seen: tuple[System, Prometheus]) -> None:
    _, prometheus = seen
    roles = {r["metric"]["role"]: r["metric"]["component"] for r in prometheus.query("warmpool_build_info")}
    assert roles == {name: name for name in EVERYTHING}
    assert prometheus.query("warmpool_database_up")[0]["metric"]["component"] == "exporter"


def test_every_metric_exists_in_a_running_pool(seen: tuple[System, Prometheus]) -> None:
    _, prometheus = seen
    for metric in CATALOG.values():
        if metric.name not in QUIET:
            name = metric.series[-1]
            eventually(partial(prometheus.query, name), within_s=60, every_s=0.5)


def test_every_query_of_the_dashboard_is_answered(seen: tuple[System, Prometheus]) -> None:
    """Queries without data in a healthy pool are still valid."""
    _, prometheus = seen
    quiet = re.compile("|".join(f"warmpool_{n}_total" for n in QUIET) + r'|to="lost"|lock_held > 0')
    unanswered = set(dashboard.queries())

    def answered() -> bool:
        unanswered.difference_update([q for q in unanswered if prometheus.query(q)])
        return not [q for q in unanswered if not quiet.search(q)]

    try:
        eventually(answered, within_s=45, every_s=1.0)
    except AssertionError:
        assert not [q for q in unanswered if not quiet.search(q)]


def test_metrics_match_the_pool(seen: tuple[System, Prometheus]) -> None:
    system, prometheus = seen
    idle = 'warmpool_workers{profile="default",state="idle"}'
    # Each process is scraped at its own time.
    expected = {
        idle: 2,
        'sum(warmpool_acquires_total{outcome="granted"})': 3,
        'warmpool_claims_ended_total{why="tainted",component="acquire"}': 1,
        'warmpool_org_cap{org="acme"}': 5,
        'warmpool_org_in_use{org="acme"}': 2,
    }
    for query, number in expected.items():
        eventually(partial(has_value, prometheus, query, number), within_s=30, every_s=0.5)
    assert value(prometheus, "sum(warmpool_spawn_seconds_count)") >= 2
    assert len(system.entries()) >= value(prometheus, "sum(warmpool_moves_total)")


def test_no_alert_fires_in_a_healthy_pool(seen: tuple[System, Prometheus]) -> None:
    _, prometheus = seen
    assert prometheus.firing() == set()


def test_a_port_in_use_is_reported_with_the_settings_name(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.create_database("taken_port")
    with System(tmp_path, url) as system, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        env = {**system.env, "WARMPOOL_METRICS_PORT": str(taken.getsockname()[1])}
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "pool.ops.cli", *words], cwd=ROOT, env=env, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True
            )
            for words in (["worker", "acquire"], ["beat"], ["exporter"])
        ]  # fmt: skip
        for process in started:
            _, said = process.communicate(timeout=100)
            assert process.returncode == 1, said
            assert "metrics_port (WARMPOOL_METRICS_PORT)" in said
            assert "Traceback" not in said


def has_value(prometheus: Prometheus, expr: str, wanted: float) -> bool:
    return value(prometheus, expr) == wanted


def value(prometheus: Prometheus, expr: str) -> float:
    found: list[dict[str, Any]] = prometheus.query(expr)
    assert found, expr
    return float(found[0]["value"][1])
