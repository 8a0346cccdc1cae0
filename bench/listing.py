"""The pod cache at 10,000 pods of a real API server: filling it, and a sweep over it, compared with
fetching the same list and decoding the needed fields, which every client must do. Each runs in a
new process.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from bench.measuring import BenchReport, Effort, Figure, Measured, percentile
from bench.peers.bare_http import BareClient
from bench.spawning import AT_ONCE, spec
from pool.core.settings import KubernetesSettings, Profile
from pool.drivers.kubernetes import manifests
from pool.drivers.kubernetes.manifests import PodPlace
from tests.support.kube_any import ClusterUser
from tests.support.kube_cluster import KubeCluster
from tests.support.kube_ground import least_privileged
from tests.support.system import ROOT

# `calls` is the number of pods.
FULL = Effort(rounds=7, calls=10_000, warm_up=1)
QUICK = Effort(rounds=3, calls=2_000, warm_up=1)
MOST_CPU, MOST_MEMORY = 2.0, 1.3


def run(effort: Effort) -> BenchReport:
    """Start a cluster, fill it with pods, list them in turn, end it."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(KubeCluster())
        namespace = cluster.namespace("listing")
        user = least_privileged(cluster, namespace)
        _make(user, namespace, effort.calls)
        found: dict[str, list[dict[str, Any]]] = {"raw": [], "driver": []}
        for _ in range(effort.rounds):
            for how, rounds in found.items():
                rounds.append(_listed(how, user, namespace, effort.calls))
    raw, driver = found["raw"], found["driver"]
    times = {
        "raw decoding": [[r["wall_s"]] for r in raw],
        "raw decoding, CPU": [[r["cpu_s"]] for r in raw],
        "cache fill": [[r["wall_s"]] for r in driver],
        "cache fill, CPU": [[r["cpu_s"]] for r in driver],
        "sweep": [[r["sweep_s"]] for r in driver],
    }
    figures = (
        _ratio("cache fill to raw decoding: CPU", driver, raw, "cpu_s", most=MOST_CPU),
        _ratio("cache fill to raw decoding: time", driver, raw, "wall_s"),
        _ratio("cache fill to raw decoding: memory at most", driver, raw, "mib", most=MOST_MEMORY),
        _ratio("cache fill to raw decoding: memory that stays", driver, raw, "kept_mib"),
        _sweep("a sweep to raw decoding: time", driver, raw),
    )
    return BenchReport(bench="listing", figures=figures, measured=Measured(rounds=times))


def _make(user: ClusterUser, namespace: str, count: int) -> None:
    """With the bare client: their Secrets are not needed."""
    client = BareClient(user.access)
    path = f"/api/v1/namespaces/{namespace}"
    settings = KubernetesSettings(namespace=namespace)
    anchor = json.loads(client.post(f"{path}/configmaps", msgspec.json.encode(manifests.anchor(settings))))
    place = PodPlace(settings=settings, anchor_uid=anchor["metadata"]["uid"])
    bodies = (msgspec.json.encode(manifests.pod(spec(), Profile(), place)) for _ in range(count))
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for made in threads.map(lambda body: client.post(f"{path}/pods", body), bodies):
            del made


def _listed(how: str, user: ClusterUser, namespace: str, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.peers.lister", how, str(user.kubeconfig), namespace]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if found["pods"] != count:
        raise RuntimeError(f"{found['pods']} of {count} pods were listed")
    return found


def _ratio(
    name: str, ours: list[dict[str, Any]], raw: list[dict[str, Any]], what: str, *, most: float | None = None
) -> Figure:
    ratios = [a[what] / b[what] for a, b in zip(ours, raw, strict=True)]
    return Figure(name=name, ratio=percentile(ratios, 50), lowest=min(ratios), highest=max(ratios), most=most)


def _sweep(name: str, ours: list[dict[str, Any]], raw: list[dict[str, Any]]) -> Figure:
    ratios = [a["sweep_s"] / b["wall_s"] for a, b in zip(ours, raw, strict=True)]
    return Figure(name=name, ratio=percentile(ratios, 50), lowest=min(ratios), highest=max(ratios), most=0.5)
