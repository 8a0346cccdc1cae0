"""One pass raises at every run: it is reported, and the others go on. Only when none can run does the process exit.

`WARMPOOL_TEST_LONG=1` lets it fail for an hour of the database's clock.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from pool.core.periods import PERIODS_S
from pool.core.settings import UNBOUNDED
from pool.passes.failing import FREQUENT
from pool.store import now, passes
from tests.support.postgres_server import PostgresServer
from tests.support.prometheus import Prometheus
from tests.support.system import EVERYTHING, ROOT, Insider, System
from tests.support.waiting import eventually

# Each start of a process counts, on a machine that may be busy.
LONG = os.environ.get("WARMPOOL_TEST_LONG") == "1"
pytestmark = pytest.mark.timeout(3600 if LONG else 600)
# How long the pass fails, by the database's clock.
SHIFTED_S = 3600.0 if LONG else 120.0
ALERTS = ROOT / "charts" / "warmpool" / "files" / "alerts.yaml"
LIMIT = 3
# Only `reap` reads this column.
BREAK_REAP = "ALTER TABLE claims RENAME COLUMN release_asked_at TO gone"
BREAK_ALL = "ALTER TABLE passes RENAME TO gone"


@pytest.fixture
def system(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, postgres_template: str
) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("failing")
    url = postgres.create_database(folder.name, template=postgres_template)
    settings = {
        "pool": {"pass_failures_limit": LIMIT},
        "profiles": {"default": {"warm_target": 0}},
    }
    with System(folder, url, settings=settings, measured=True) as made:
        yield made


def execute(system: System, statement: str) -> None:
    with system.store.write() as tx:
        tx.execute(text(statement))


def rows(system: System) -> dict[str, passes.PassRow]:
    with system.store.read() as tx:
        return passes.every(tx)


def schedule() -> list[tuple[float, set[str]]]:
    """Return when each pass is due, in seconds from the beginning."""
    due: dict[float, set[str]] = defaultdict(set)
    for name, period_s in PERIODS_S.items():
        for nth in range(1, int(SHIFTED_S / period_s) + 1):
            due[nth * period_s].add(name)
    return sorted(due.items())


def advance_to(system: System, moment: datetime) -> datetime:
    """Advance the database's clock to that moment, if it is earlier; return its time."""
    with system.store.read() as tx:
        left_s = (moment - now(tx)).total_seconds()
    system.shift_clock(max(0.0, left_s))
    with system.store.read() as tx:
        return now(tx)


def run_due(system: System, insider: Insider, due: set[str], since: datetime) -> None:
    """Send the ticks of these passes until each has run, as beat does: `reap` failed, the others succeeded."""
    failed = rows(system)["reap"].failures

    def left() -> set[str]:
        found = rows(system)
        late = {n for n in due - {"reap"} if (at := found[n].last_success_at) is None or at < since}
        return late | ({"reap"} & due if found["reap"].failures == failed else set())

    def all_ran() -> bool:
        for name in left():
            insider.order(f"pool.{name}")
        try:
            return eventually(lambda: not left(), within_s=0.2)
        except AssertionError:
            return False

    eventually(all_ran, within_s=60)


def about_passes(prometheus: Prometheus) -> set[tuple[str, str]]:
    """Return the alerts about passes, and the pass that each one names."""
    states = "firing" if LONG else "pending|firing"
    found = prometheus.query(f'ALERTS{{alertname=~"WarmpoolPass.*",alertstate=~"{states}"}}')
    return {(a["metric"]["alertname"], a["metric"]["pass"]) for a in found}


def test_a_pass_that_always_raises_is_reported_and_harms_no_other_pass(system: System) -> None:
    """The whole pool runs; the database's clock is advanced from one tick to the next."""
    system.run(*EVERYTHING, "exporter")
    eventually(
        lambda: all(n in rows(system) and rows(system)[n].last_success_at for n in PERIODS_S), within_s=90
    )
    pids = {name: part.pid for name, part in system.parts.items()}
    execute(system, BREAK_REAP)
    targets = {"exporter": system["exporter"].metrics_port}
    insider = Insider(system)
    with Prometheus(system.folder / "prometheus", targets, rules=ALERTS) as prometheus:
        with system.store.read() as tx:
            began = now(tx)
        for moment, due in schedule():
            since = advance_to(system, began + timedelta(seconds=moment))
            run_due(system, insider, due, since)
        insider.close()
        eventually(
            lambda: (
                about_passes(prometheus) == {("WarmpoolPassDark", "reap"), ("WarmpoolPassFailing", "reap")}
            ),
            within_s=120,
            every_s=0.5,
        )
    found = rows(system)
    assert found["reap"].failures >= SHIFTED_S / PERIODS_S["reap"]
    others = [row for name, row in found.items() if name != "reap"]
    assert {(row.last_outcome, row.failures) for row in others} == {("ok", 0)}
    seen = json.loads(system.command("status", "--json", ok=(1,)))
    assert {name for name, p in seen["passes"].items() if p["dark"]} == {"reap"}
    (worry,) = [w for w in seen["worries"] if w["id"].startswith("pass_")]
    assert worry["id"] == "pass_dark:reap"
    assert "release_asked_at" in worry["text"]
    assert {name: part.pid for name, part in system.parts.items()} == pids
    assert all(part.alive() for part in system.parts.values())
    assert "pass_keeps_raising" in system["passes"].log()
    assert UNBOUNDED in system["passes"].log()
    assert [name for name, part in system.parts.items() if "thread_restarted" in part.log()] == []
    assert system["passes"].terminate() == 0


def test_a_process_none_of_whose_passes_can_run_exits_and_logs_the_cause(system: System) -> None:
    worker = system.run("passes", "beat")["passes"]
    eventually(
        lambda: all(n in rows(system) and rows(system)[n].last_success_at for n in FREQUENT), within_s=90
    )
    execute(system, BREAK_ALL)
    assert worker.ends(within_s=180) == 1
    line, *_ = [x for x in worker.log().splitlines() if "no_pass_can_run" in x]
    for name in FREQUENT:
        assert name in line
    assert "passes" in line
