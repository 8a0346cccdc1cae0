"""A running pool is broken in the ways with the highest cost. Each fault must be visible within
three periods: on the board, which is open in a browser, in `warmpool status`, and as an alert of a
real Prometheus with the shipped rules. `make drill` runs it and prints how long each took.

Only two times are scaled: Prometheus scrapes every second, and an alert's `for` is one second. The
drill tests whether the rules fire; tests/alerts tests their `for`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from redis import Redis

from pool.client import Pool
from pool.core.ids import ProfileName
from pool.core.periods import PERIODS_S
from pool.core.states import State
from pool.ops import operating
from pool.ops.operating import Operator
from tests.support.browser import chromium
from tests.support.drilling import Drill, Row, printed
from tests.support.fault_proxy import FaultProxy
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_any import RBAC
from tests.support.kube_binaries import Missing
from tests.support.kube_cluster import ClusterPart, KubeCluster
from tests.support.kube_ground import KubeGround, rules
from tests.support.local_ground import MASTER_KEY
from tests.support.postgres_server import PostgresServer
from tests.support.prometheus import command
from tests.support.system import EVERYTHING, System
from tests.support.waiting import eventually

LONG = bool(os.environ.get("WARMPOOL_TEST_LONG"))
LEAK = 50
OPERATOR = Operator(name="operator", way="cli", why="a drill")

pytestmark = [
    pytest.mark.skipif(not LONG, reason="minutes of waiting: make drill"),
    pytest.mark.timeout(900),
]

Opening = Callable[[dict[str, Any]], Drill]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def rows() -> Iterator[list[Row]]:
    """Print the duration of each drill at the end."""
    found: list[Row] = []
    yield found
    print(printed(found))


@pytest.fixture
def drill(tmp_path: Path, browser: Browser, rows: list[Row], postgres: PostgresServer) -> Iterator[Opening]:
    command("prometheus")
    with ExitStack() as stack:

        def made(settings: dict[str, Any]) -> Drill:
            url = postgres.create_database(tmp_path.name)
            system = stack.enter_context(System(tmp_path / "pool", url, settings=settings, measured=True))
            system.run(*EVERYTHING, "exporter")
            return stack.enter_context(Drill(system, browser, tmp_path, rows))

        yield made


def test_a_reap_whose_lock_is_never_released_is_reported(drill: Opening) -> None:
    at = drill({})
    at.system.wait_idle(3)
    at.quiet()
    with Redis.from_url(at.system.redis.url) as redis:
        # Another program took its lock and never releases it.
        eventually(lambda: redis.set("warmpool.lock.reap", "wedged", nx=True), within_s=30)
        at.seen(
            "a wedged reaper", "its lock has no live holder", worry="pass_dark:reap",
            text="pass reap is dark",
            alert="WarmpoolPassDark", period_s=PERIODS_S["reap"],
        )  # fmt: skip
        assert at.labels("WarmpoolPassDark", "pass") == {"reap"}
        redis.delete("warmpool.lock.reap")
    at.quiet()


def test_an_emptied_redis_is_reported_and_the_pool_continues(drill: Opening) -> None:
    at = drill({})
    at.system.wait_idle(3)
    at.quiet()
    with Redis.from_url(at.system.redis.url) as redis:
        redis.flushall()
    at.seen(
        "an emptied Redis", "FLUSHALL", worry="broker_emptied", text="Redis lost all its data",
        alert="WarmpoolBrokerEmptied", period_s=PERIODS_S["reap"],
    )  # fmt: skip
    with Pool(at.system.redis.url, name="drill") as pool, pool.acquire("acme", wait_s=30) as held:
        assert held.endpoint
    assert "beat_dark" not in at.worries()


def test_a_leak_of_fifty_idle_workers_is_reported(drill: Opening) -> None:
    pool = {"surplus_ttl_s": 1, "fleet_threads": 8}
    at = drill({"pool": pool, "profiles": {"default": {"warm_target": LEAK}}})
    at.system.wait_idle(LEAK, within_s=600)
    at.quiet()
    # A paused reap also pauses its fallback.
    operating.set_pass_paused(at.system.store, "reap", paused=True, operator=OPERATOR)
    operating.set_warm(at.system.store, ProfileName("default"), 0, OPERATOR)
    at.seen(
        "an idle leak of 50", "reap paused, target set to 0", worry="idle_overdue:default",
        text="profile default has 50 workers idle above its warm target", alert="WarmpoolIdleOverdue",
        period_s=PERIODS_S["reap"],
    )  # fmt: skip
    assert at.system.count(State.IDLE) == LEAK
    [seen] = at.prometheus.query('warmpool_idle_overdue{kind="surplus"}')
    assert float(seen["value"][1]) == LEAK
    operating.set_pass_paused(at.system.store, "reap", paused=False, operator=OPERATOR)
    at.quiet()
    assert at.system.count(State.IDLE) == 0


def test_a_missing_permission_is_reported(drill: Opening) -> None:
    """On a real API server, with the chart's Role; one verb is removed from it while the pool runs."""
    try:
        cluster = KubeCluster(ClusterPart.CONTROLLERS, ClusterPart.SCHEDULER)
    except Missing as exc:
        pytest.fail(str(exc)) if os.environ.get("CI") else pytest.skip(str(exc))
    with cluster, HollowKubelet(cluster) as kubelet, FaultProxy(cluster.access) as proxy:
        ground = KubeGround(cluster, kubelet, cluster.namespace("drill"), proxy)
        tables = ground.tables()
        at = drill({**tables, "pool": {**tables["pool"], "master_key": MASTER_KEY.decode()}})
        at.system.wait_idle(3)
        at.quiet()
        role = f"{RBAC}/namespaces/{ground.namespace}/roles/warmpool"
        cluster.api.patch(role, {"rules": [without(rule, "pods", "patch") for rule in rules("Role")]})
        with Pool(at.system.redis.url, name="drill") as pool, pool.acquire("acme", wait_s=30):
            at.seen(
                "a missing RBAC verb", "patch pods taken out of the Role", worry="forbidden:patch pods",
                text="the API server forbids `patch pods`", alert="WarmpoolApiForbidden",
                period_s=PERIODS_S["guard_disruption"],
            )  # fmt: skip
            assert at.labels("WarmpoolApiForbidden", "verb") == {"patch"}
            eventually(lambda: "unprotected" in at.worries(), within_s=60)
            cluster.api.patch(role, {"rules": rules("Role")})
            eventually(lambda: "unprotected" not in at.worries(), within_s=60)
        cluster.api.call("DELETE", ground.path("pods"), {"gracePeriodSeconds": 0})


def without(rule: dict[str, Any], resource: str, verb: str) -> dict[str, Any]:
    """Return the same rule without one verb."""
    if resource not in rule["resources"]:
        return rule
    return {**rule, "verbs": [v for v in rule["verbs"] if v != verb]}
