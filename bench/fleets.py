"""A fleet of rows on a real Postgres and of pods in the Kubernetes driver's own cache, without a
cluster: what a pass reads in a quiet pool of this size.
"""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time

from sqlalchemy import text

from bench.populating import PROFILE, FleetSize, askers, populated_with
from pool.core import profiles
from pool.core.ids import RandomIds
from pool.core.settings import Profile
from pool.core.states import CLAIMED, State
from pool.drivers.kubernetes.decoding import Known
from pool.drivers.kubernetes.pods import PodCache
from pool.drivers.port import (
    LABEL_PROFILE,
    LABEL_ROLE,
    LABEL_WORKER,
    NOTE_REVISION,
    Listing,
    Pod,
    PodPhase,
    PodRole,
    Stamp,
)
from pool.passes import PASSES
from pool.passes.running import Run, carry_out
from pool.store import Store, connect, row_scans, workers
from tests.support.podless import PodlessDriver
from tests.support.postgres_server import PostgresServer
from tests.support.world import WorldStage

# Unused profiles are processed too.
_OTHERS = 4
_AGE_S = 4_000.0


class CachedPods(PodlessDriver):
    """Pods that the watch has reported, in the cache that is used on a real cluster. Calls to the
    API server are counted.
    """

    def __init__(self, pods: Iterator[Known]) -> None:
        super().__init__()
        self._cache = PodCache(lambda created_s: _AGE_S - created_s)
        self.told(pods)

    def told(self, pods: Iterator[Known]) -> None:
        """Set the complete list of pods."""
        self._known = {known.pod.name: known for known in pods}
        self._cache.replace(list(self._known.values()))
        self._names = tuple(self._known)

    def cached(self) -> Listing:
        return Listing(pods=self._cache.pods(), anchored=False)

    def companions(self) -> tuple[str, ...]:
        return self._names

    @property
    def calls_made(self) -> int:
        return len(self.calls)

    # Events.

    def lose(self, name: str) -> None:
        """The pod is gone."""
        self._cache.drop(self._known[name])

    def strip(self, name: str) -> None:
        """The stamp of a pod was removed."""
        known = self._known[name]
        bare = replace(known.pod, version=str(next(_versions)), annotations={})
        self._cache.put(replace(known, pod=bare))

    def stray(self, *names: str) -> None:
        """Pods without a row."""
        for name in names:
            labels = {LABEL_WORKER: name, LABEL_ROLE: str(PodRole.WORKER)}
            pod = Pod(
                name=name,
                uid=name,
                version="1",
                phase=PodPhase.RUNNING,
                ready=True,
                terminating=False,
                labels=labels,
            )
            self._cache.put(Known(pod=pod, created_s=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """The cost of one run: seconds of wall time, of this process' CPU and of the database's, and
    the peak growth of its memory.
    """

    wall_s: float
    cpu_s: float
    server_cpu_s: float
    peak_mib: float
    calls: int


class GrownPool(WorldStage[CachedPods]):
    """A whole pool of one size."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, CachedPods(iter(())))
        self.deps = replace(self.deps, ids=RandomIds())
        # Old enough to be checked, young enough to stay.
        self.configure(max_age_s=10 * 86_400, terminal_keep_s=2 * 86_400)
        self.settle_down()

    def settle_down(self) -> None:
        """Make the pool quiet: every answer is delivered, every pod matches its row, and the warm
        target equals the number of idle workers.
        """
        with self.store.write() as tx:
            tx.execute(
                text(
                    "UPDATE requests SET replied_at = decided_at WHERE decided_at IS NOT NULL AND replied_at IS NULL"
                )
            )
        with self.store.read() as tx:
            self.driver.told(_pod(row) for row in row_scans.live(tx))
        self.broker.sent.clear()
        with self.store.read() as tx:
            idle = workers.count(tx, PROFILE, State.IDLE)
        others = (f"other-{n}" for n in range(_OTHERS))
        shapes = {name: Profile(name=name, warm_target=0) for name in others}
        self.configure(profiles={PROFILE: replace(Profile(), warm_target=idle), **shapes})

    def once(self, name: str) -> PassCost:
        """Run a pass that has nothing to do."""
        forget_peak()
        before, called, served = resident_mib(), self.driver.calls_made, self._served_s()
        began, began_cpu = perf_counter(), process_time()
        report = carry_out(self.deps, PASSES[name], Run(deps=self.deps, name=name))
        cost = PassCost(
            wall_s=perf_counter() - began,
            cpu_s=process_time() - began_cpu,
            server_cpu_s=self._served_s() - served,
            peak_mib=max(0.0, peak_mib() - before),
            calls=self.driver.calls_made - called,
        )
        self.broker.sent.clear()
        if report["outcome"] != "ok" or any(report["actions"].values()):
            raise RuntimeError(f"{name} was to find nothing to do: {report}")
        return cost

    def _served_s(self) -> float:
        """Return the CPU time of the database's processes for this pool. The kernel counts it in
        hundredths of a second.
        """
        with self.store.read() as tx:
            pids = (
                tx.execute(text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()"))
                .scalars()
                .all()
            )
        return sum(_cpu_s(pid) for pid in pids)


def grown(server: PostgresServer, name: str, live: int) -> str:
    """Create a database with this many live workers, three in ten busy and one in ten parked, and
    as many that have ended; with claims, requests and journal 13 rows per live worker. Return its
    URL.
    """
    return populated_with(
        server, name, FleetSize(idle=live * 6 // 10, busy=live * 3 // 10, parked=live // 10, past=live)
    )


def opened(url: str) -> GrownPool:
    return GrownPool(connect(url, call_timeout_s=60, connections=2))


def _pod(row: row_scans.ScannedRow) -> Known:
    """Return the healthy pod of this row, stamped like the row."""
    stamp = Stamp(org=row.org, claim_id=row.claim_id, epoch=row.epoch, busy=row.state in CLAIMED)
    labels = {
        LABEL_WORKER: row.id,
        LABEL_PROFILE: "default",
        LABEL_ROLE: str(PodRole.WORKER),
        **stamp.labels(),
    }
    notes = {NOTE_REVISION: _REVISION, **stamp.annotations()}
    pod = Pod(
        name=row.id,
        uid=row.pod_uid or "",
        version=str(next(_versions)),
        phase=PodPhase.RUNNING,
        ready=True,
        terminating=False,
        endpoint="http://10.0.0.1:8080",
        node=f"node-{hash(row.id) % 100}",
        image="worker:1",
        labels={k: v for k, v in labels.items() if v is not None},
        annotations={k: v for k, v in notes.items() if v is not None},
    )
    return Known(pod=pod, created_s=0.0)


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


_REVISION = profiles.revision(Profile())
_versions = itertools.count(1)
_STATUS, _PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak() -> None:
    """Reset the kernel's peak memory mark; where that is not possible, it only rises."""
    if _PEAK.exists():
        _PEAK.write_text("5")


def resident_mib() -> float:
    return _in_status("VmRSS")


def peak_mib() -> float:
    if _STATUS.exists():
        return _in_status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _in_status(what: str) -> float:
    if not _STATUS.exists():
        return 0.0
    (line,) = (text for text in _STATUS.read_text().splitlines() if text.startswith(f"{what}:"))
    return int(line.split()[1]) / 1024


__all__ = ["GrownPool", "PassCost", "askers", "grown", "opened"]
