"""Check that a deployment's processes are still the ones that were started, with every thread,
within the chart's memory limit.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import redis
import yaml

from pool.store import passes
from tests.support.system import ROOT, System
from tests.support.waiting import eventually

QUEUES = ("acquire", "acquire.general", "fleet", "bind", "passes")
_UNITS = {"Mi": 2**20, "Gi": 2**30}
_PATIENCE_S = 60.0


class Standing:
    """The processes when this object is created; `complaints` lists later differences."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._pids = {name: part.pid for name, part in system.parts.items()}
        self._crashes = self._crash_count()

    def complaints(self) -> list[str]:
        """Return processes that ended or restarted, threads that died, and memory above the chart's
        limit.
        """
        found = []
        for name, pid in self._pids.items():
            part = self._system[name]
            if not part.alive() or part.pid != pid:
                found.append(f"{name} ended with {part.exit_code()}")
            elif (peak := peak_memory(pid)) > memory_limit(name):
                found.append(f"{name} used {peak >> 20} MiB, its limit is {memory_limit(name) >> 20} MiB")
        for name, (crashes, restarts) in self._crash_count().items():
            before = self._crashes.get(name, (0, 0.0))
            if crashes > before[0]:
                found.append(f"{name}: {crashes - before[0]} threads died of an exception")
            if restarts > before[1]:
                found.append(f"{name}: {restarts - before[1]:g} threads were restarted")
        return found

    def assert_stands(self) -> None:
        found = self.complaints()
        assert not found, f"{found}\n{self._system.tails()}"

    def _crash_count(self) -> dict[str, tuple[int, float]]:
        """Return how many threads have died of an exception, from log and metric."""
        counted = {}
        for name, part in self._system.parts.items():
            restarts = (
                sum(metric(self._system, name, "warmpool_thread_restarts_total")) if part.alive() else 0.0
            )
            counted[name] = (part.log().count("Exception in thread"), restarts)
        return counted


def peak_memory(pid: int) -> int:
    """Return the peak resident memory, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None, status
    return int(found[1]) * 1024


def memory_limit(name: str) -> int:
    """Return the chart's memory limit of this component, in bytes."""
    values = _chart_values()
    component = values.get(name.partition("-")[0]) or {}
    limit = str((component.get("resources") or values["defaults"]["resources"])["limits"]["memory"])
    return int(limit[:-2]) * _UNITS[limit[-2:]]


@cache
def _chart_values() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "charts" / "warmpool" / "values.yaml").read_text()))


def metric(system: System, name: str, metric_name: str) -> list[float]:
    """Return the values of one metric of a process over all labels; empty if it has no such metric."""
    port = system.metrics_ports[name]
    if not port:
        return []
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return [
        float(line.split()[-1]) for line in lines if line.startswith((f"{metric_name}{{", f"{metric_name} "))
    ]


def refused_messages(system: System) -> float:
    """Return how many messages all processes have dropped or refused."""
    return sum(sum(metric(system, name, "warmpool_messages_refused_total")) for name in system.parts)


def drained(system: System, queues: tuple[str, ...] = QUEUES, *, within_s: float = _PATIENCE_S) -> None:
    """Wait until the queues are empty."""
    with redis.Redis.from_url(system.redis.url) as client:
        eventually(lambda: not any(client.llen(queue) for queue in queues), within_s=within_s, every_s=0.1)


def passes_go_on(system: System, name: str = "reap", *, within_s: float = 30.0) -> None:
    """Wait for one more success of a pass."""

    def last() -> object:
        with system.store.read() as tx:
            return passes.get(tx, name).last_success_at

    before = last()
    eventually(lambda: last() != before, within_s=within_s, every_s=0.1)
