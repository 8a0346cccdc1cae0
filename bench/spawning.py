"""How fast pods are created: the driver's `create` (pod and Secret, from 50 threads, without its
rate limit) compared with a bare HTTP client with 50 connections that makes the same writes with
prepared bodies. Both take turns on one real API server, so that its growing store slows both.
"""

from __future__ import annotations

import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

import msgspec

from bench.measuring import BenchReport, Effort, Figure, Measured, percentile
from bench.peers.bare_http import BareClient, uid_in
from pool import wiring
from pool.core import tokens
from pool.core.settings import KubernetesSettings, PoolSettings, Profile, Settings
from pool.drivers.kubernetes import manifests
from pool.drivers.kubernetes.driver import KubernetesDriver
from pool.drivers.kubernetes.manifests import PodPlace
from pool.drivers.port import PodSpec
from tests.support.kube_any import ClusterUser
from tests.support.kube_cluster import KubeCluster
from tests.support.kube_ground import least_privileged

AT_ONCE = 50
# The number of pods of each kind per round; the warm-up opens the connections.
FULL = Effort(rounds=10, calls=100, warm_up=100)
QUICK = Effort(rounds=4, calls=50, warm_up=50)
LEAST = 0.7
_KEY = b"k" * 32
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bodies:
    """A pod that is ready to be sent, and its Secret without the pod's uid."""

    pod: bytes
    secret: bytes


class Spawner:
    """The driver."""

    def __init__(self, settings: KubernetesSettings, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        pool = PoolSettings(driver="kubernetes", fleet_threads=AT_ONCE, call_timeout_s=60)
        made = wiring.build_driver(Settings(pool=pool, kubernetes=settings))
        assert isinstance(made, KubernetesDriver)
        self.driver = made

    def make(self, count: int) -> float:
        specs = [spec() for _ in range(count)]
        began = perf_counter()
        list(self._threads.map(self.driver.create, specs))
        return perf_counter() - began


class BareSpawner:
    """The same writes with prepared bodies."""

    def __init__(
        self, user: ClusterUser, place: PodPlace, namespace: str, threads: ThreadPoolExecutor
    ) -> None:
        self._client = BareClient(user.access)
        self._place = place
        self._path = f"/api/v1/namespaces/{namespace}"
        self._threads = threads

    def make(self, count: int) -> float:
        bodies = [self._bodies() for _ in range(count)]
        began = perf_counter()
        list(self._threads.map(self._one, bodies))
        return perf_counter() - began

    def _one(self, bodies: Bodies) -> None:
        uid = uid_in(self._client.post(f"{self._path}/pods", bodies.pod))
        self._client.post(f"{self._path}/secrets", bodies.secret.replace(_UNKNOWN, uid.encode()))

    def _bodies(self) -> Bodies:
        wanted = spec()
        pod = manifests.pod(wanted, Profile(), self._place)
        secret = manifests.secret(wanted, _UNKNOWN.decode(), self._place.settings)
        return Bodies(pod=msgspec.json.encode(pod), secret=msgspec.json.encode(secret))


_UNKNOWN = b"00000000-0000-0000-0000-000000000000"


def run(effort: Effort) -> BenchReport:
    """Start a cluster, create pods in turn, end it."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(KubeCluster())
        threads = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        namespace = cluster.namespace("spawning")
        user = least_privileged(cluster, namespace)
        settings = KubernetesSettings(
            namespace=namespace, kubeconfig=str(user.kubeconfig), qps=10_000, burst=10_000
        )
        ours = Spawner(settings, threads)
        stack.callback(ours.driver.close)
        place = PodPlace(settings=settings, anchor_uid=ours.driver._anchor.uid())
        bare = BareSpawner(user, place, namespace, threads)
        rounds: dict[str, list[list[float]]] = {"driver": [], "bare client": [], "bare client (again)": []}
        order: list[tuple[str, Spawner | BareSpawner]] = [
            ("driver", ours),
            ("bare client", bare),
            ("bare client (again)", bare),
        ]
        for _, subject in order[:2]:
            subject.make(effort.warm_up)
        for number in range(effort.rounds):
            # None always comes after the same one.
            for name, subject in order[number % 3 :] + order[: number % 3]:
                rounds[name].append([subject.make(effort.calls) / effort.calls])
    measured = Measured(rounds=rounds)
    figures = (
        _rate("pods a second: driver to bare client", measured, "driver", least=LEAST),
        _rate("the bare client to itself (the noise)", measured, "bare client (again)"),
    )
    return BenchReport(bench="spawning", figures=figures, measured=measured)


def _rate(name: str, measured: Measured, of: str, *, least: float | None = None) -> Figure:
    pairs = zip(measured.rounds[of], measured.rounds["bare client"], strict=True)
    ratios = [bare[0] / ours[0] for ours, bare in pairs]
    return Figure(
        name=name, ratio=percentile(ratios, 50), lowest=min(ratios), highest=max(ratios), least=least
    )


def spec() -> PodSpec:
    name = f"w-spawned-{next(_numbers)}"
    return PodSpec(
        name=name, profile="default", revision="rev-1", image="worker:1", cpu_millicores=100, memory_mib=64,
        port=8080,
        grace_s=30, secret=tokens.worker_key(_KEY, name),
    )  # fmt: skip
