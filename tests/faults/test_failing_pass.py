"""One pass of a real pass worker raises at every run: it is reported, and the others go on. Only when none can run does the process exit."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from pool.core.settings import UNBOUNDED
from pool.passes.failing import FREQUENT
from pool.store import passes
from tests.support.postgres_server import PostgresServer
from tests.support.system import System
from tests.support.waiting import eventually

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


def metrics(system: System) -> str:
    url = f"http://127.0.0.1:{system['exporter'].metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=5) as page:
        return str(page.read().decode())


def test_a_pass_that_always_raises_is_reported_and_harms_no_other_pass(system: System) -> None:
    execute(system, BREAK_REAP)
    worker = system.run("passes", "exporter", "beat")["passes"]
    eventually(lambda: rows(system).get("reap", passes.PassRow(name="")).failures > LIMIT, within_s=90)
    before = rows(system)
    failed = before["reap"].failures

    def all_others_ran_again() -> bool:
        now = rows(system)
        return now["reap"].failures > failed and all(
            now[name].last_success_at != before[name].last_success_at for name in FREQUENT - {"reap"}
        )

    eventually(all_others_ran_again, within_s=90)
    others = {name: row for name, row in rows(system).items() if name != "reap"}
    assert {(row.last_outcome, row.failures) for row in others.values()} == {("ok", 0)}
    assert others["collect_garbage"].last_success_at is not None
    seen = json.loads(system.command("status", "--json", ok=(1,)))
    (worry,) = [w for w in seen["worries"] if "pass reap" in w["text"]]
    assert "release_asked_at" in worry["text"]
    assert not [w for w in seen["worries"] if w["id"].startswith("pass_") and w != worry]
    exported = metrics(system)
    assert 'warmpool_pass_failures_in_a_row{pass="guard_disruption"} 0.0' in exported
    (line,) = [
        x for x in exported.splitlines() if x.startswith('warmpool_pass_failures_in_a_row{pass="reap"}')
    ]
    assert float(line.split()[1]) >= 3
    assert "pass_keeps_raising" in worker.log()
    assert UNBOUNDED in worker.log()
    assert worker.alive()
    assert worker.terminate() == 0


def test_a_process_none_of_whose_passes_can_run_exits_and_logs_the_cause(system: System) -> None:
    worker = system.run("passes", "beat")["passes"]
    eventually(
        lambda: all(n in rows(system) and rows(system)[n].last_success_at for n in FREQUENT), within_s=90
    )
    execute(system, BREAK_ALL)
    assert worker.ends(within_s=180) == 1
    (line,) = [x for x in worker.log().splitlines() if "no_pass_can_run" in x]
    for name in FREQUENT:
        assert name in line
    assert "passes" in line
