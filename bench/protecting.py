"""How soon a claimed worker's pod is protected against disruption: from the call of the acquire until
the API server has answered the patch, by its audit log. Compared with a bare patch of the same pod.

The whole pool runs, on a real API server with kwok's nodes. In a burst all callers acquire at once,
and each warm worker is replaced meanwhile: the patches compete with the creation of new pods.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from bench.measuring import BenchReport, Effort, Figure, Measured, percentile
from bench.peers.bare_http import BareClient
from pool.client import Pool, Worker
from tests.support.kube_cluster import ClusterPart, KubeCluster
from tests.support.kube_ground import least_privileged
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, System
from tests.support.waiting import eventually

# `calls` acquires in each burst, and a tenth as many one after the other.
FULL = Effort(rounds=4, calls=300, warm_up=30)
QUICK = Effort(rounds=2, calls=60, warm_up=10)
ALONE_S, BURST_S = 0.05, 1.0
NODES = 10
# As many connections as a bind worker has threads.
CONNECTIONS = 8
PATIENCE_S = 300.0
_CALLERS = 32
_ALONE, _ALONE_BARE = "protected, alone", "bare patch, alone"
_BURST, _BURST_BARE = "protected, in a burst", "bare patch, in a burst"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The pool under measurement, and a bare client of the same API server."""

    system: System
    cluster: KubeCluster
    pool: Pool
    bare: BareClient
    user: str
    namespace: str
    threads: ThreadPoolExecutor

    def acquire(self, count: int) -> list[tuple[Worker, float]]:
        """Acquire this many at once; return each with the time of its call."""
        return list(self.threads.map(lambda _: self._acquired(), range(count)))

    def protected(self, held: Sequence[tuple[Worker, float]], since: int) -> list[float]:
        """Return how long after its call each pod was patched."""
        names = {worker.worker_id for worker, _ in held}

        def patched() -> dict[str, float] | None:
            asked = self.cluster.requests(since)
            first = {r.name: r.at for r in reversed(asked) if r.verb == "patch" and r.user == self.user}
            return first if names <= first.keys() else None

        at = eventually(patched, within_s=PATIENCE_S, every_s=0.2)
        return [at[worker.worker_id] - began for worker, began in held]

    def patched(self, worker: Worker) -> float:
        """Patch one pod with the bare client and return the end of the call."""
        body = b'{"metadata":{"annotations":{"bench":"%d"}}}' % time.monotonic_ns()
        self.bare.patch(f"/api/v1/namespaces/{self.namespace}/pods/{worker.worker_id}", body)
        return perf_counter()

    def release(self, held: Sequence[tuple[Worker, float]]) -> None:
        list(self.threads.map(lambda each: each[0].release(), held))

    def _acquired(self) -> tuple[Worker, float]:
        began = time.time()
        return self.pool.acquire("acme", wait_s=60, lease_s=600, ttl_s=0), began


def run(effort: Effort) -> BenchReport:
    """Start cluster and pool, measure lone calls and bursts in turn, end them."""
    with contextlib.ExitStack() as stack:
        ground = _ground(stack, effort.calls)
        rounds: dict[str, list[list[float]]] = {
            name: [] for name in (_ALONE, _ALONE_BARE, _BURST, _BURST_BARE)
        }
        _alone(ground, effort.warm_up)
        for _ in range(effort.rounds):
            alone, bare = _alone(ground, max(10, effort.calls // 10))
            rounds[_ALONE].append(alone)
            rounds[_ALONE_BARE].append(bare)
            burst, bare = _burst(ground, effort.calls)
            rounds[_BURST].append(burst)
            rounds[_BURST_BARE].append(bare)
    measured = Measured(rounds=rounds)
    figures = (
        _against(f"alone, p50, to {1000 * ALONE_S:.0f} ms", rounds[_ALONE], 50, ALONE_S),
        _against(f"burst of {effort.calls}, p99, to {BURST_S:g} s", rounds[_BURST], 99, BURST_S),
        measured.ratio("alone, p50, to a bare patch", _ALONE, _ALONE_BARE),
        measured.ratio("in a burst, p99, to bare patches", _BURST, _BURST_BARE, q=99),
    )
    return BenchReport(bench="protecting", figures=figures, measured=measured)


def _ground(stack: contextlib.ExitStack, workers: int) -> Ground:
    server = PostgresServer(fsync=True).start()
    stack.callback(server.destroy)
    cluster = stack.enter_context(
        KubeCluster(ClusterPart.CONTROLLERS, ClusterPart.SCHEDULER, ClusterPart.KWOK)
    )
    cluster.add_kwok_nodes(NODES)
    namespace = cluster.namespace("protecting")
    user = least_privileged(cluster, namespace)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wp-bench-")))
    tables = {
        "pool": {
            "driver": "kubernetes", "pass_limit": 2000, "call_timeout_s": 30, "pod_ready_limit_s": 300,
            "spawn_budget_s": 300, "stuck_cutoff_s": 600, "visibility_timeout_s": 300,
        },
        "kubernetes": {
            "namespace": namespace, "kubeconfig": str(user.kubeconfig), "qps": 500, "burst": 1000,
        },
        "profiles": {"default": {"warm_target": workers}},
    }  # fmt: skip
    system = stack.enter_context(System(folder, server.create_database("protecting"), settings=tables))
    system.run(*EVERYTHING).wait_idle(workers, within_s=PATIENCE_S)
    return Ground(
        system=system, cluster=cluster, pool=stack.enter_context(Pool(system.redis.url)),
        bare=BareClient(cluster.access), user=user.name, namespace=namespace,
        threads=stack.enter_context(ThreadPoolExecutor(_CALLERS)),
    )  # fmt: skip


def _alone(ground: Ground, calls: int) -> tuple[list[float], list[float]]:
    protected, bare = [], []
    for _ in range(calls):
        since = ground.cluster.mark()
        held = ground.acquire(1)
        protected += ground.protected(held, since)
        began = perf_counter()
        bare.append(ground.patched(held[0][0]) - began)
        ground.release(held)
    return protected, bare


def _burst(ground: Ground, calls: int) -> tuple[list[float], list[float]]:
    ground.system.wait_idle(calls, within_s=PATIENCE_S)
    since = ground.cluster.mark()
    held = ground.acquire(calls)
    protected = ground.protected(held, since)
    with ThreadPoolExecutor(CONNECTIONS) as connections:
        began = perf_counter()
        ends = list(connections.map(ground.patched, [worker for worker, _ in held]))
    ground.release(held)
    return protected, [end - began for end in ends]


def _against(name: str, rounds: Sequence[Sequence[float]], q: float, limit_s: float) -> Figure:
    """A quantile relative to a limit in seconds, round by round."""
    ratios = [percentile(each, q) / limit_s for each in rounds]
    return Figure(
        name=name, ratio=percentile(ratios, 50), lowest=min(ratios), highest=max(ratios), most=1.0,
        gate=10.0, rounds=ratios,
    )  # fmt: skip
