"""What a claim costs does not grow with the pool: its picks walk their own index from its end and stop at the first row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event, text

from pool.contract import Acquire
from pool.ids import ClaimId, OrgId, ProfileName, RequestPk
from pool.records import ReplyTo
from pool.settings import OrgDefaults
from pool.store import Store, Tx, connect, fastpath, orgs, workers
from tests.support.open_store import OpenStore
from tests.support.postgres_server import PostgresServer

ROWS = 10_000
DEFAULT = ProfileName("default")


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
            " endpoint, pod_uid, created_at, state_since, ready_at, hot_idle_since, hot_idle_until, moved_by, moved_why)"
            " SELECT '{prefix}-' || n, 'default', 'i', 'r', 1, 1, 1, '{state}', {org}, 0, 'http://x', 'u' || n, now(), now(),"
            " now() - make_interval(secs => n), {parked}, {parked}, 'a', 'b' FROM generate_series(1, {rows}) n"
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


def plan_of(store: Store, pick: Callable[[Tx], Any]) -> str:
    """The plan of the one statement that this sends, parameters and all."""
    sent: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        sent.append((statement, parameters))

    with store.engine.connect() as tx:
        event.listen(tx, "before_cursor_execute", note)
        assert pick(tx) is not None
        ((statement, parameters),) = sent
        event.remove(tx, "before_cursor_execute", note)
        lines = tx.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS OFF, TIMING OFF) {statement}", parameters
        ).scalars()
        return "\n".join(lines)


@pytest.mark.parametrize(
    ("pick", "index"),
    [
        (lambda tx: workers.pick_idle(tx, DEFAULT), "idle_in_claim_order"),
        (lambda tx: workers.pick_parked(tx, OrgId("org-3"), DEFAULT), "parked_in_claim_order"),
    ],
    ids=["idle", "parked"],
)
def test_a_pick_reads_one_row_from_its_index_and_sorts_nothing(
    full: Store, pick: Callable[[Tx], Any], index: str
) -> None:
    plan = plan_of(full, pick)
    assert f"using {index} on workers" in plan, plan
    assert "Sort" not in plan, plan
    assert "Seq Scan" not in plan, plan
    assert "rows=1.00 loops=1" in plan or "rows=1 loops=1" in plan, plan


@pytest.mark.parametrize(("org", "source"), [("org-3", "hot_idle"), ("org-new", "warm")])
def test_a_whole_claim_on_the_fast_path_reads_a_handful_of_rows(full: Store, org: str, source: str) -> None:
    """By the statistics of its own transaction: the table is never scanned, and few rows are fetched."""
    asked = Acquire.parse({"org": org}, task_id="t", ttl_max_s=60)
    fresh = fastpath.Fresh(
        asked=asked, reply=ReplyTo(task_id="t"), pk=RequestPk("r-1"), claim_id=ClaimId("c-1"), activates=False
    )
    batch = fastpath.Batch(who="a", keeping=fastpath.Keeping(ttls_s={}, most_s=60), acquires=[fresh])
    with full.engine.connect() as tx:
        served = fastpath.serve(OpenStore(tx), batch)
        assert served.acquires[0].source == source
        cost = tx.execute(
            text("SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'workers'")
        ).one()
    assert cost.seq_scan == 0
    assert 1 <= cost.idx_tup_fetch <= 12


def test_a_batch_reads_rows_by_its_own_size_and_scans_nothing(full: Store) -> None:
    """Twenty claims at once, some of them of parked workers."""
    batch = fastpath.Batch(
        who="a",
        keeping=fastpath.Keeping(ttls_s={}, most_s=60),
        acquires=[
            fastpath.Fresh(
                asked=Acquire.parse({"org": ("org-3", "org-new")[n % 2]}, task_id=f"t-{n}", ttl_max_s=60),
                reply=ReplyTo(task_id=f"t-{n}"),
                pk=RequestPk(f"r-{n}"),
                claim_id=ClaimId(f"c-{n}"),
                activates=False,
            )
            for n in range(20)
        ],
    )
    with full.engine.connect() as tx:
        assert len(fastpath.serve(OpenStore(tx), batch).acquires) == 20
        scans = tx.execute(
            text("SELECT relname, seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables")
        ).all()
    cost = {name: (scanned, fetched) for name, scanned, fetched in scans}
    assert not [name for name in ("workers", "claims", "requests", "journal") if cost[name][0]]
    assert cost["workers"][1] <= 12 * 20
