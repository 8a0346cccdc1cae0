"""The cost of a claim does not grow with the pool: its picks walk their own index from its end and
stop at the first row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from pool.core.contract import Acquire, Granted, Pending, RefusedAnswer
from pool.core.ids import OrgId
from pool.core.records import ReplyTo
from pool.core.settings import OrgDefaults
from pool.lifecycle import claiming
from pool.lifecycle.claiming import AcquireCall, Call, Decided
from pool.store import Store, Tx, connect, orgs, rules
from tests.support.postgres_server import PostgresServer
from tests.support.world import World

T = TypeVar("T")
ROWS = 10_000


@pytest.fixture(scope="module")
def full(postgres: PostgresServer, postgres_template: str) -> Iterator[Store]:
    """Ten thousand idle workers, and a thousand parked ones of each of ten orgs."""
    store = connect(postgres.create_database("claim_cost", template=postgres_template))
    with store.write() as tx:
        for org in ("org-3", "org-new"):
            orgs.seed(tx, OrgId(org), OrgDefaults())
        tx.execute(text("ALTER TABLE workers DISABLE TRIGGER USER"))
        insert = (
            "INSERT INTO workers (id, profile, image, revision, cpu_millicores, memory_mib, grace_s, state, org, epoch,"
            " endpoint, pod_uid, created_at, state_since, ready_at, hot_idle_since, hot_idle_until, moved_by, moved_reason)"
            " SELECT '{prefix}-' || n, 'default', 'i', 'r', 1, 1, 1, '{state}', {org}, 0, 'http://x', 'u' || n, now(), now(),"
            " now() - make_interval(secs => n), {parked}, {parked}, 'a', 'ready' FROM generate_series(1, {rows}) n"
        )
        idle = {"prefix": "w", "state": "idle", "org": "NULL", "parked": "NULL::timestamptz"}
        parked = {
            "prefix": "p",
            "state": "hot_idle",
            "org": "'org-' || (n % 10)",
            "parked": "now() + make_interval(secs => n)",
        }
        for kind in (idle, parked):
            tx.execute(text(insert.format(**kind, rows=ROWS)))
        tx.execute(text("ALTER TABLE workers ENABLE TRIGGER USER"))
    with store.read() as tx:
        tx.execute(text("VACUUM ANALYZE workers"))
    yield store
    store.close()


@pytest.fixture
def world(full: Store) -> World:
    return World(full)


Cost = dict[str, tuple[int, int]]


def read_so_far(tx: Tx) -> Cost:
    """Return how often each table was scanned as a whole and how many rows were fetched by an
    index; for each index, how often it was walked and how many entries were read. From the
    session's own statistics, which may include earlier work.
    """
    tables = "SELECT relname, seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables"
    indexes = (
        "SELECT indexrelname, pg_stat_get_xact_numscans(indexrelid), pg_stat_get_xact_tuples_returned(indexrelid)"
        " FROM pg_stat_user_indexes"
    )
    return {name: (one, other) for name, one, other in tx.execute(text(f"{tables} UNION ALL {indexes}"))}


def cost_of(store: Store, use: Callable[[Tx], T]) -> tuple[T, Cost]:
    """Run this in a transaction that is rolled back; return its result and its reads."""
    with store.engine.connect() as tx:
        before = read_so_far(tx)
        found = use(tx)
        after = read_so_far(tx)
        tx.rollback()
    return found, {
        name: (one - before.get(name, (0, 0))[0], other - before.get(name, (0, 0))[1])
        for name, (one, other) in after.items()
    }


def served(world: World, *calls: Call) -> tuple[list[Decided], Cost]:
    return cost_of(world.store, lambda tx: claiming.serve(world.deps, calls, rules.Within(tx))[0])


def asking(org: str, number: int = 0, **given: Any) -> AcquireCall:
    asked = Acquire.parse({"org": org, **given}, task_id=f"t-{number}")
    return AcquireCall(asked=asked, reply=ReplyTo(task_id=f"t-{number}"))


@pytest.mark.parametrize(
    ("parked", "index"), [(False, "idle_in_claim_order"), (True, "parked_in_claim_order")]
)
def test_a_pick_walks_its_own_index_and_reads_one_entry(full: Store, parked: bool, index: str) -> None:
    picks = "parked('org-3', 'default', 1)" if parked else "warm('default', 1)"
    pick = text(rules.qualified(f"SELECT w.id FROM unnest(warmpool_pick_{picks}) w"))
    found, cost = cost_of(full, lambda tx: tx.execute(pick).scalar_one())
    assert found is not None
    assert cost[index] == (1, 1)
    assert cost["workers"] == (0, 1)


@pytest.mark.parametrize(("org", "source"), [("org-3", "hot_idle"), ("org-new", "warm")])
def test_a_claim_reads_a_constant_number_of_rows(world: World, org: str, source: str) -> None:
    (answer,), cost = served(world, asking(org))
    assert isinstance(answer, Granted)
    assert answer.source == source
    scans, rows = cost["workers"]
    assert scans == 0
    assert 1 <= rows <= 12


def test_a_batch_reads_rows_in_proportion_to_its_size_and_scans_nothing(world: World) -> None:
    """Twenty claims in one batch, some of parked workers."""
    decided, cost = served(world, *(asking(("org-3", "org-new")[n % 2], n) for n in range(20)))
    assert all(isinstance(d, Granted) for d in decided)
    assert not [name for name in ("workers", "claims", "requests", "journal") if cost[name][0]]
    assert cost["workers"][1] <= 12 * 20


@pytest.mark.parametrize("wait_s", [0, 30])
def test_a_refusal_or_a_wait_reads_no_worker(world: World, wait_s: int) -> None:
    """Of a profile without workers, among twenty thousand of another."""
    world.profile("big")
    (answer,), cost = served(world, asking("org-new", profile="big", wait_s=wait_s))
    assert isinstance(answer, Pending if wait_s else RefusedAnswer)
    assert cost["workers"] == (0, 0)
