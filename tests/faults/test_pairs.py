"""Two verbs at once on one worker, in every order of their steps: they end as if one had come after the other, whatever they are told on the
way, and the counters, the rows and the journal agree. No order is found by sleeping: see `tests/support/interleaving.py`.

On SQLite, where writers go one by one, a step is a transaction. On Postgres a step is a statement or a commit, and a verb is stopped at each of its steps
while the other goes on. `make proof` tries all orders, and on Postgres stops them twice; without it a part of both is tried."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pool.store import Store
from tests.support.interleaving import Grain
from tests.support.meeting import TRIED, let_meet
from tests.support.pairs import PAIRS
from tests.support.postgres_server import empty
from tests.support.snapshots import memory_store

LONG = bool(os.environ.get("WARMPOOL_TEST_LONG"))
PREEMPTIONS, SQLITE_EVERY, POSTGRES_EVERY = (2, 1, 1) if LONG else (1, 5, 10)

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.timeout(1800 if LONG else 900)]


@pytest.fixture(scope="module", autouse=True)
def _printed() -> Iterator[None]:
    yield
    print(f"\n{len(PAIRS)} pairs: {dict(TRIED)}")


@pytest.mark.parametrize("name", PAIRS)
def test_two_at_once_end_as_one_after_the_other(name: str) -> None:
    store = memory_store()
    try:
        let_meet(PAIRS[name], store, Grain.TRANSACTION, preemptions=None, every=SQLITE_EVERY)
    finally:
        store.close()


@pytest.mark.parametrize("name", PAIRS)
def test_two_at_once_on_postgres_end_as_one_after_the_other(name: str, one_postgres: Store) -> None:
    empty(one_postgres)
    let_meet(PAIRS[name], one_postgres, Grain.STATEMENT, preemptions=PREEMPTIONS, every=POSTGRES_EVERY)
