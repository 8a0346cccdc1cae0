"""A replica whose wall clock is minutes off makes no pass dark, and old ticks in the queue are not
run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import redis

from pool.passes import PASSES
from pool.store import now, passes
from tasks.worker.ticks import HEADER
from tests.support.clock_skew import skewed
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, Insider, System
from tests.support.waiting import eventually

# Each start of a process counts, on a machine that may be busy.
pytestmark = pytest.mark.timeout(400)

TEN_MINUTES_S = 600.0
# The passes with short periods: the same holds for the ticks of all.
QUICK = ("guard_disruption", "reap", "reconcile_warm")


@pytest.fixture
def system(tmp_path: Path, postgres: PostgresServer) -> Iterator[System]:
    url = postgres.create_database(tmp_path.name)
    with System(tmp_path, url, settings={"profiles": {"default": {"warm_target": 1, "grace_s": 1}}}) as made:
        yield made


def _successes(system: System) -> dict[str, datetime | None]:
    with system.store.read() as tx:
        known = passes.every(tx)
    return {name: known[name].last_success_at if name in known else None for name in QUICK}


def _passes_go_on(system: System) -> None:
    """Wait until each of them has a success that began after this call."""
    with system.store.read() as tx:
        since = now(tx)

    def all_did() -> bool:
        return all(at is not None and at > since for at in _successes(system).values())

    try:
        eventually(all_did, within_s=40, every_s=0.2)
    except AssertionError as exc:
        raise AssertionError(f"dark: {_successes(system)} since {since}\n{system.tails()}") from exc


@pytest.mark.parametrize("shift_s", [-TEN_MINUTES_S, TEN_MINUTES_S], ids=["behind", "ahead"])
def test_a_replica_whose_clock_is_minutes_off_makes_no_pass_dark(system: System, shift_s: float) -> None:
    """Beat, then the pass workers, then the acquire workers and a client: each alone is wrong while
    the others are right.
    """
    system.run(*EVERYTHING)
    system.wait_idle(1)
    system.skew("beat", shift_s)
    _passes_go_on(system)
    system.skew("beat", 0)
    system.skew("passes", shift_s)
    _passes_go_on(system)
    system.skew("passes", 0)
    system.skew("acquire", shift_s)
    _passes_go_on(system)
    held = system.command(
        "acquire", "--org", "acme", "--wait", "20", "--", "sh", "-c", "echo $WARMPOOL_ENDPOINT"
    )
    assert held.startswith("http://")
    system.skew("acquire", 0)
    held = system.command(
        "acquire",
        "--org",
        "acme",
        "--wait",
        "20",
        "--",
        "sh",
        "-c",
        "echo $WARMPOOL_ENDPOINT",
        env=skewed(system.env, shift_s),
    )
    assert held.startswith("http://")
    assert not system.wrongs()


def test_old_ticks_in_the_queue_are_not_run(system: System) -> None:
    """As after an outage: the ticks are old by the broker's clock, whatever other clocks show."""
    insider = Insider(system)
    client = redis.Redis.from_url(system.redis.url)
    seconds, _ = client.time()
    for _ in range(50):
        insider.order("pool.reap", headers={HEADER: float(seconds) - 60})
    system.run("passes")
    seconds, _ = client.time()
    insider.order("pool.guard_disruption", headers={HEADER: float(seconds)})
    insider.close()
    eventually(lambda: _successes(system)["guard_disruption"] is not None, within_s=30)
    eventually(lambda: client.llen("passes") == 0, within_s=30)
    eventually(lambda: system["passes"].log().count("tick_expired") == 50, within_s=30)
    client.close()
    with system.store.read() as tx:
        assert passes.get(tx, "reap").last_attempt_at is None


def test_every_pass_is_due_as_soon_as_beat_starts(system: System) -> None:
    """Also the pass that is due once an hour."""
    system.run("beat")
    with redis.Redis.from_url(system.redis.url) as client:
        eventually(lambda: client.llen("passes") >= len(PASSES), within_s=30)
        sent = {json.loads(m)["headers"]["task"] for m in client.lrange("passes", 0, -1)}
    assert sent == {f"pool.{name}" for name in PASSES}
