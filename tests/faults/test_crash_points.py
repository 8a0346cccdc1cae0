"""Every external call of every verb and pass: refused, with a lost reply, denied, or with a crash
of its process. Each time the pool recovers by itself within a bounded number of passes, and no
holder loses its worker.

`make proof` tries all of them and prints the table of scripts, calls and cases; otherwise a part of
each script's cases is tried.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator

import pytest

from pool.broker.locks import Locks
from pool.drivers.port import Driver
from pool.lifecycle.deps import Broker, WorkerApi
from pool.passes import PASSES
from pool.store import Store
from tasks.routes import ROUTES
from tests.support.crash_points import HEADING, Tried, a_life, beginning, crash_points
from tests.support.failing import CASES, NO_CALLS, Plan, failing
from tests.support.scripts import SCRIPTS, warm

LONG = bool(os.environ.get("WARMPOOL_TEST_LONG"))
EVERY = 1 if LONG else 29

_table: list[Tried] = []


@pytest.fixture(scope="module", autouse=True)
def _printed() -> Iterator[None]:
    """Print the table when all scripts have run."""
    yield
    print(f"\n{HEADING}")
    for tried in _table:
        print(tried.row())
    calls, cases = sum(len(t.calls) for t in _table), sum(t.cases for t in _table)
    print(f"{calls} crash points, {cases} cases, {sum(len(t.failures) for t in _table)} failures")


pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.timeout(1800 if LONG else 300)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_crash_point_converges(name: str, store: Store) -> None:
    tried = crash_points(SCRIPTS[name], beginning(SCRIPTS[name], store), every=EVERY)
    _table.append(tried)
    assert not tried.failures, "\n".join(tried.failures)
    assert tried.calls


def test_every_call_that_the_pool_can_make_has_its_cases() -> None:
    """A new method of a port cannot be forgotten: it is a call with cases, or it is listed as none."""
    ports = {"store": Store, "driver": Driver, "broker": Broker, "worker": WorkerApi, "locks": Locks}
    methods = {
        f"{port}.{name}"
        for port, kind in ports.items()
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    # A lock is acquired and released in one statement of the port; queries of a store are reads.
    assert methods - {"locks.taken", "store.ask"} == (CASES.keys() | NO_CALLS) - {
        "locks.take",
        "locks.release",
    }


def test_every_pass_and_every_task_has_a_script() -> None:
    covered = {task for script in SCRIPTS.values() for task in script.covers}
    assert {f"pool.{name}" for name in PASSES} | ROUTES.keys() == covered


def test_a_call_of_an_unknown_kind_is_an_error(store: Store) -> None:
    life = a_life(store)
    life.world.deps = failing(life.world.deps, Plan())
    with pytest.raises(AssertionError, match=r"CASES does not say how driver\.drain_events can fail"):
        life.world.deps.driver.drain_events()  # type: ignore[attr-defined]


def test_leftovers_are_detected(store: Store) -> None:
    """The final condition of all cases can fail: it does for each of these."""
    life = a_life(store)
    warm(life)
    life.round(4)
    assert life.unsettled() == []
    life.world.driver.secrets["w-left"] = "s"
    life.world.warm(1)
    life.world.driver.take_away(next(iter(life.world.driver.pods)))
    left = " ".join(life.unsettled())
    for word in ("companions of w-left", "its pod is None", "3 of 2 default are warm"):
        assert word in left
