"""Two concurrent verbs on one worker, in every order of their steps: the result equals that of a
serial run, and the counters, the rows and the journal agree. No order depends on a sleep: see
`tests/support/interleaving.py`.

A step is a transaction, in all orders; or a statement or a commit, where a verb stops at each of
its steps while the other continues. `make proof` tries all orders, and stops a verb twice;
otherwise a part of both is tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pool.store import Store
from tests.support.interleaving import Grain
from tests.support.meeting import TRIED, let_meet
from tests.support.pairs import PAIRS

LONG = bool(os.environ.get("WARMPOOL_TEST_LONG"))
PREEMPTIONS, EVERY_ORDER, EVERY_STOP = (2, 1, 1) if LONG else (1, 5, 3)

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.timeout(1800 if LONG else 900)]


@pytest.fixture(scope="module", autouse=True)
def _printed() -> Iterator[None]:
    yield
    print(f"\n{len(PAIRS)} pairs: {dict(TRIED)}")


@pytest.mark.parametrize("name", PAIRS)
def test_two_concurrent_verbs_end_as_in_some_serial_order(name: str, store: Store) -> None:
    let_meet(PAIRS[name], store, Grain.TRANSACTION, preemptions=None, every=EVERY_ORDER)


@pytest.mark.parametrize("name", PAIRS)
def test_two_verbs_interleaved_at_any_statement_end_as_in_some_serial_order(name: str, store: Store) -> None:
    let_meet(PAIRS[name], store, Grain.STATEMENT, preemptions=PREEMPTIONS, every=EVERY_STOP)
