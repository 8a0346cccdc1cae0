"""A drill: a running pool is broken in the ways that have cost others most, and the alert for it fires in a real Prometheus. `make drill` runs all
of it and says how long each took; the leak is made of fifty real workers, so it waits for `WARMPOOL_TEST_LONG`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis

from pool.periods import PERIODS_S
from pool.states import State
from tests.support.prometheus import Prometheus, command
from tests.support.system import EVERYTHING, ROOT, System
from tests.support.waiting import eventually

LONG = bool(os.environ.get("WARMPOOL_TEST_LONG"))
LEAK = 50
PATIENCE_S = 120.0

pytestmark = [
    pytest.mark.skipif(not LONG, reason="minutes of waiting: make drill"),
    pytest.mark.timeout(600),
]


def hurried(folder: Path) -> Path:
    """The shipped rules, with `for` cut to a second: what is tried is whether they see it, not how patient they are."""
    rules = yaml.safe_load((ROOT / "charts" / "warmpool" / "files" / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["for"] = "1s"
    file = folder / "alerts.yaml"
    file.write_text(yaml.safe_dump(rules))
    return file


class Drill:
    """A pool, a Prometheus that watches it, and a stopwatch."""

    def __init__(self, system: System, prometheus: Prometheus) -> None:
        self.system = system
        self.prometheus = prometheus

    def quiet(self) -> None:
        eventually(lambda: not self.prometheus.firing(), within_s=PATIENCE_S, every_s=0.5)

    def fires(self, alert: str, since: float) -> float:
        """Wait for an alert; how many seconds after that moment it fired."""
        try:
            eventually(lambda: alert in self.prometheus.firing(), within_s=PATIENCE_S, every_s=0.2)
        except AssertionError as exc:
            raise AssertionError(f"{alert} does not fire; firing: {self.prometheus.firing()}") from exc
        return time.monotonic() - since

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.system.command("status", "--json", ok=(0, 1))))


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Callable[..., Drill]]:
    command("prometheus")
    opened: list[Any] = []

    def made(settings: dict[str, Any] | None = None) -> Drill:
        system = System(tmp_path / "pool", settings=settings or {}, measured=True)
        opened.append(system)
        system.__enter__()
        system.run(*EVERYTHING, "exporter")
        prometheus = Prometheus(tmp_path / "prometheus", system.metrics_ports, rules=hurried(tmp_path))
        opened.append(prometheus)
        prometheus.__enter__()
        return Drill(system, prometheus)

    yield made
    for thing in reversed(opened):
        thing.close()


def told(what: str, alert: str, seconds: float, period_s: float) -> None:
    print(
        f"\ndrill: {what}: {alert} fired after {seconds:.1f} s ({seconds / period_s:.1f} periods of {period_s:.0f} s)"
    )


def test_a_wedged_reaper_is_seen(drill: Callable[..., Drill]) -> None:
    at = drill()
    at.system.wait_idle(3)
    at.quiet()
    redis = Redis.from_url(at.system.redis.url)
    # Somebody took its lock and never lets go, as a bug once did for four days.
    eventually(lambda: redis.set("warmpool.lock.reap", "wedged", nx=True), within_s=30)
    wedged = time.monotonic()
    took = at.fires("WarmpoolPassDark", wedged)
    assert at.status()["passes"]["reap"]["dark"]
    assert {r["metric"]["pass"] for r in at.prometheus.query('ALERTS{alertname="WarmpoolPassDark"}')} == {
        "reap"
    }
    told("a wedged reaper", "WarmpoolPassDark", took, PERIODS_S["reap"])
    redis.delete("warmpool.lock.reap")
    redis.close()
    at.quiet()


def test_an_emptied_redis_is_seen_and_the_pool_goes_on(
    drill: Callable[..., Drill],
) -> None:
    at = drill()
    at.system.wait_idle(3)
    at.quiet()
    redis = Redis.from_url(at.system.redis.url)
    redis.flushall()
    emptied = time.monotonic()
    redis.close()
    took = at.fires("WarmpoolBrokerEmptied", emptied)
    told("an emptied Redis", "WarmpoolBrokerEmptied", took, PERIODS_S["reap"])
    assert not at.status()["beat_dark"]
    assert at.system.count(State.IDLE) == 3


def test_a_leak_of_fifty_idle_workers_is_seen(drill: Callable[..., Drill]) -> None:
    pool = {"surplus_ttl_s": 1, "fleet_threads": 8}
    at = drill({"pool": pool, "profiles": {"default": {"warm_target": LEAK}}})
    at.system.wait_idle(LEAK, within_s=400)
    at.quiet()
    at.system.command("pass", "pause", "reap")  # forgotten, and so the fallback is off, too
    at.system.configure({"pool": pool, "profiles": {"default": {"warm_target": 1}}})
    for name in ("passes", "exporter"):
        at.system[name].terminate()
    at.system.mend()
    leaked = time.monotonic()
    took = at.fires("WarmpoolIdleOverdue", leaked)
    assert at.system.count(State.IDLE) == LEAK
    seen = at.prometheus.query('warmpool_idle_overdue{kind="surplus"}')
    assert float(seen[0]["value"][1]) == LEAK - 1
    told("a leak of fifty idle workers", "WarmpoolIdleOverdue", took, PERIODS_S["reap"])
    at.system.command("pass", "resume", "reap")
    at.quiet()
    assert at.system.count(State.IDLE) == 1
