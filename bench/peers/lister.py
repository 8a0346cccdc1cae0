"""A process that fetches all pods of a pool once and prints what that took: `raw` decodes the answers
into the needed fields and keeps those, `driver` fills the driver's cache and then sweeps over it.
Each runs in its own process, so that its memory can be measured.

    python -m bench.peers.lister raw|driver KUBECONFIG NAMESPACE   # prints one line of JSON
"""

from __future__ import annotations

import gc
import json
import math
import sys
import threading
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import msgspec

from bench.fleets import forget_peak, peak_mib, resident_mib
from pool import wiring
from pool.core.ids import WorkerId
from pool.core.settings import KubernetesSettings, PoolSettings, Settings
from pool.core.states import State
from pool.drivers.kubernetes import wire
from pool.drivers.kubernetes.api import ApiCall
from pool.drivers.kubernetes.driver import KubernetesDriver
from pool.drivers.kubernetes.rights import Right
from pool.passes import sweep_orphans
from pool.store.row_scans import ScannedRow


def main() -> int:
    how, kubeconfig, namespace = sys.argv[1:]
    kubernetes = KubernetesSettings(kubeconfig=kubeconfig, namespace=namespace, qps=10_000, burst=10_000)
    settings = Settings(pool=PoolSettings(driver="kubernetes", call_timeout_s=60), kubernetes=kubernetes)
    driver = wiring.build_driver(settings)
    assert isinstance(driver, KubernetesDriver)
    # Authenticated, connected, and everything imported.
    driver._anchor.is_there()
    print(json.dumps(_raw(driver) if how == "raw" else _cached(driver)), flush=True)
    driver.close()
    return 0


def _raw(driver: KubernetesDriver) -> dict[str, Any]:
    decoder = msgspec.json.Decoder(wire.ListOf[wire.PodObject])
    kept: list[Any] = []

    def fetch() -> None:
        query = {**driver._selected, "resourceVersion": "0"}
        answer = driver._api.call(ApiCall(right=Right.LIST_PODS, query=query))
        kept.extend(decoder.decode(answer.body).items or ())

    return _measured(fetch) | {"pods": len(kept)}


def _cached(driver: KubernetesDriver) -> dict[str, Any]:
    stop = threading.Event()

    def fill() -> None:
        threading.Thread(target=lambda: list(driver.watch(stop)), daemon=True).start()
        while driver._pods.age_s() == math.inf:
            stop.wait(0.002)

    filled = _measured(fill)
    listing = driver.cached()
    rows = [
        ScannedRow(WorkerId(name), State.IDLE, 0, None, None, pod.uid)
        for name, pod in listing.named().items()
    ]
    found: list[sweep_orphans.Compared] = []
    swept = _measured(lambda: found.append(sweep_orphans.compared(driver.cached().named(), rows)))
    if found[0].missing or found[0].unowned:
        raise RuntimeError("the sweep was to find nothing")
    stop.set()
    return filled | {"pods": len(rows), "sweep_s": swept["wall_s"], "sweep_mib": swept["mib"]}


def _measured(what: Callable[[], object]) -> dict[str, Any]:
    gc.collect()
    forget_peak()
    before, began, began_cpu = resident_mib(), perf_counter(), process_time()
    what()
    took, cpu = perf_counter() - began, process_time() - began_cpu
    return {"wall_s": took, "cpu_s": cpu, "mib": peak_mib() - before, "kept_mib": resident_mib() - before}


if __name__ == "__main__":
    sys.exit(main())
