"""Many workers on kwok's nodes, with the whole pool running: the API server's audit log shows how
many calls a worker and a claim cost.

`WARMPOOL_TEST_LONG=1` uses 1,000 workers and 500 claims, otherwise a fifth of that.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from sqlalchemy import func, select

from pool.client import Pool
from pool.core.backoff import Backoff, retrying
from pool.core.clock import SystemClock
from pool.core.periods import PERIODS_S
from pool.core.states import LIVE, State
from pool.store import passes, schema
from tests.support.kube_audit import AuditedRequest
from tests.support.kube_cluster import ClusterPart, KubeCluster
from tests.support.kube_ground import least_privileged
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, System
from tests.support.waiting import eventually

LONG = os.environ.get("WARMPOOL_TEST_LONG") == "1"
WORKERS = 1000 if LONG else 200
CLAIMS = WORKERS // 2
AT_ONCE = 5
PATIENCE_S = 1200.0 if LONG else 400.0
WRITES_A_LIFE, WRITES_A_CLAIM = 4, 2
GUARD_RUNS = 5

pytestmark = pytest.mark.timeout(3600 if LONG else 1200)


@dataclass(frozen=True, kw_only=True)
class ScaledFleet:
    """A deployment on its own cluster, and its user's calls since the start."""

    system: System
    cluster: KubeCluster
    namespace: str
    user: str
    begin: int

    def calls(self, since: int | None = None) -> list[AuditedRequest]:
        asked = self.cluster.requests(self.begin if since is None else since)
        return [r for r in asked if r.user == self.user]

    def left(self) -> dict[str, int]:
        """Return what still exists, by kind."""
        here = f"/api/v1/namespaces/{self.namespace}"
        labelled = {"labelSelector": "app.kubernetes.io/managed-by=warmpool"}
        found = {
            kind: len(self.cluster.api.get(f"{here}/{kind}", **labelled)["items"])
            for kind in ("pods", "secrets")
        }
        return found | {"rows": self.system.count(*LIVE)}


def settings(namespace: str, kubeconfig: str, warm_target: int) -> dict[str, object]:
    return {
        "pool": {
            "driver": "kubernetes", "pod_ready_limit_s": 1000, "spawn_budget_s": 1000, "stuck_cutoff_s": 2000,
            "fleet_threads": 20, "pass_limit": 2000, "hot_idle_ttl_s": 600, "call_timeout_s": 60,
            "visibility_timeout_s": 300,
        },
        # The cache is filled again once an hour: not during the count.
        "kubernetes": {
            "namespace": namespace, "kubeconfig": kubeconfig, "qps": 500, "burst": 1000, "relist_s": 3600,
        },
        "profiles": {"default": {"warm_target": warm_target}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def fleet(
    servers: None, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScaledFleet]:
    with KubeCluster(ClusterPart.CONTROLLERS, ClusterPart.SCHEDULER, ClusterPart.KWOK) as cluster:
        cluster.add_kwok_nodes(10)
        namespace = cluster.namespace("scale")
        user = least_privileged(cluster, namespace)
        tables = settings(namespace, str(user.kubeconfig), WORKERS)
        url = postgres.create_database("scale")
        with System(tmp_path_factory.mktemp("scale"), url, settings=tables) as system:
            made = ScaledFleet(
                system=system, cluster=cluster, namespace=namespace, user=user.name, begin=cluster.mark()
            )
            began = time.monotonic()
            system.run(*EVERYTHING).wait_idle(WORKERS, within_s=PATIENCE_S)
            print(f"{WORKERS} workers warm from nothing in {time.monotonic() - began:.0f} s")
            yield made
            assert not system.wrongs()


def successes(system: System, name: str, times: int) -> None:
    """Wait for `times` more successful runs of a pass."""
    seen = set()

    def enough() -> bool:
        with system.store.read() as tx:
            seen.add(passes.get(tx, name).last_success_at)
        return len(seen) > times

    eventually(enough, within_s=PATIENCE_S, every_s=PERIODS_S[name] / 4)


def test_a_quiet_pool_neither_writes_nor_lists(fleet: ScaledFleet) -> None:
    """Neither `guard_disruption` nor another component writes; a sweep of orphans is among the
    passes that read.
    """
    successes(fleet.system, "sweep_orphans", 1)
    since = fleet.cluster.mark()
    successes(fleet.system, "guard_disruption", GUARD_RUNS)
    successes(fleet.system, "sweep_orphans", 1)
    asked = Counter((r.verb, r.resource) for r in fleet.calls(since))
    print(f"{WORKERS} quiet workers, {GUARD_RUNS} runs of the guard and more: {dict(asked)}")
    assert not [r for r in fleet.calls(since) if r.is_write or r.verb == "list"], asked


def test_workers_and_claims_cost_at_most_the_agreed_writes_and_leave_nothing(fleet: ScaledFleet) -> None:
    system = fleet.system
    with Pool(system.redis.url) as pool, ThreadPoolExecutor(AT_ONCE) as threads:

        def use(number: int) -> None:
            # Every second one has a TTL of 0, so that workers end and others are created meanwhile.
            worker = pool.acquire(f"org-{number % 7}", wait_s=300, ttl_s=600 * (number % 2))
            # A busy machine may answer late; repeating it is harmless.
            retrying(lambda: pool.release(worker.claim_id), policy=Backoff(tries=20), clock=SystemClock())

        began = time.monotonic()
        list(threads.map(use, range(CLAIMS)))
        print(f"{CLAIMS} claimed and released, {AT_ONCE} at once, in {time.monotonic() - began:.1f} s")
    eventually(lambda: system.count(State.IDLE) >= WORKERS, within_s=PATIENCE_S, every_s=0.5)

    assert system["passes"].terminate() == 0
    text = system.config.read_text().replace(f"warm_target = {WORKERS}", "warm_target = 0")
    system.config.write_text(text)
    system.shift_clock(1000)
    system.mend()
    nothing = {"pods": 0, "secrets": 0, "rows": 0}
    eventually(lambda: fleet.left() == nothing, within_s=PATIENCE_S, every_s=1.0)

    with system.store.read() as tx:
        lives, claims = (
            int(tx.execute(select(func.count()).select_from(table)).scalar_one())
            for table in (schema.workers, schema.claims)
        )
    calls = fleet.calls()
    writes = Counter((r.verb, r.resource, r.code) for r in calls if r.is_write)
    most = WRITES_A_LIFE * lives + WRITES_A_CLAIM * claims
    print(f"{lives} lives, {claims} claims: {writes.total()} writes of at most {most}: {dict(writes)}")
    assert claims == CLAIMS
    # A claim takes at most one warm worker, and each is replaced by one.
    assert WORKERS + CLAIMS // 2 <= lives <= WORKERS + CLAIMS
    assert writes.total() <= most
    assert [r for r in calls if r.code == 403] == []
