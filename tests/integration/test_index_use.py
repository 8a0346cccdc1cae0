"""No statement of a verb or a pass reads a whole growing table. Statements are collected as they
run, in a pool whose history is many times as large as its live rows, and explained by the planner
with all its options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, text

from bench.fleets import GrownPool
from bench.populating import FleetSize, populated_with
from pool.core.contract import Acquire, Granted, Pending, Release, Renew
from pool.core.ids import ClaimId, OrgId, ProfileName, WorkerId
from pool.core.profiles import revision
from pool.core.records import ReplyTo
from pool.core.states import CLAIMED, ClaimEnd, Condition, MoveReason, State
from pool.lifecycle import claiming
from pool.passes import PASSES, collect_garbage
from pool.passes.running import Run, carry_out
from pool.store import Store, Tx, claims, connect, requests, row_scans, rules, workers
from tests.support.open_store import OpenStore
from tests.support.postgres_server import PostgresServer

# Live rows are a twentieth of all rows, and few of many orgs have limits: with these sizes the
# planner chooses as at a hundred times the size.
FLEET = FleetSize(idle=600, busy=300, parked=100, past=20_000)
ORGS, LIMITED = 4_000, 10
GROWING = {"workers", "claims", "requests", "journal", "deeds", "orgs"}
PER_RUN = 8
# Without any other index, another one over live rows would be used: it reads more, but not all.
NEEDED = (
    "decided_unreplied", "deeds_by_age", "ended_by_age", "ended_claims_by_age", "ended_claims_by_worker", "journal_by_age",
    "misses_unconsumed",
    "orgs_that_count_parking", "orgs_with_a_cap", "requests_by_age",
)  # fmt: skip
# The same for the reads of the rules.
NEEDED_BY_RULES = ("one_live_worker_a_claim",)

Statements = dict[str, Any]


@pytest.fixture(scope="module")
def url(postgres: PostgresServer) -> str:
    """A database of a pool with a long history."""
    made = populated_with(postgres, "index_use", FLEET)
    store = connect(made)
    with store.write() as tx:
        # Limits that take effect now: the live claims of these orgs are not counted yet.
        many = (
            "INSERT INTO orgs (id, cap, weight, hot_idle_floor, hot_idle_cap, values, created_at) SELECT 'org-' || n,"
            " CASE WHEN n < :limited THEN 50 ELSE 0 END, 1, 0, CASE WHEN n < :limited THEN 1 ELSE 0 END, '{}', now()"
            " FROM generate_series(0, :orgs) n"
        )
        tx.execute(text(many), {"orgs": ORGS, "limited": LIMITED})
        deeds = "INSERT INTO deeds (at, who, what, subject, why) SELECT now(), 'a', 'b', 'w-' || n, 'c' FROM generate_series(1, 20000) n"
        tx.execute(text(deeds))
    with store.read() as tx:
        tx.execute(text("VACUUM (ANALYZE)"))
    store.close()
    return made


@pytest.fixture
def grown(url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GrownPool]:
    """That pool, as a copy for one test."""
    copy = postgres.create_database("index_use_copy", template="index_use")
    pool = GrownPool(connect(copy))
    with pool.store.read() as tx:
        tx.execute(text("ANALYZE"))
    pool.configure(pass_limit=PER_RUN)
    monkeypatch.setattr(collect_garbage, "SECONDS_PER_RUN", 0.1)
    yield pool
    pool.store.close()
    postgres.drop_database("index_use_copy")


@contextmanager
def collected(store: Store) -> Iterator[Statements]:
    """Collect every statement of the block once, with the parameters of its first execution."""
    found: Statements = {}

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        # The reads of a rule are planned inside of it: see the test of the rules.
        if f"SELECT {rules.schema()}." not in statement:
            found.setdefault(statement, parameters[0] if many else parameters)

    event.listen(store.engine, "before_cursor_execute", note)
    yield found
    event.remove(store.engine, "before_cursor_execute", note)


def whole_reads(store: Store, statements: Statements, *, without: str = "") -> list[str]:
    """Return the statements that would read a growing table as a whole without that index. They are
    planned for their parameters and once for all parameters, as Postgres does with frequent
    statements.
    """
    found = []
    with store.engine.connect() as tx:
        tx.execute(text("SET LOCAL plan_cache_mode = force_generic_plan"))
        if without:
            tx.execute(text(f"DROP INDEX {without}"))
        for statement, parameters in statements.items():
            for plan in plans(tx, statement, parameters):
                found += [f"{table}: {' '.join(statement.split())}" for table in read_whole(plan)]
        tx.rollback()
    return found


def plans(tx: Tx, statement: str, parameters: Any) -> Iterator[dict[str, Any]]:
    yield tx.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()[0]["Plan"]
    names = list(dict.fromkeys(_PARAMETER.findall(statement)))
    numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", statement).replace("%", "%%")
    tx.exec_driver_sql(f"PREPARE it AS {numbered}")
    given = f"({', '.join(['NULL'] * len(names))})" if names else ""
    yield tx.exec_driver_sql(f"EXPLAIN (FORMAT JSON) EXECUTE it{given}").scalar_one()[0]["Plan"]
    tx.exec_driver_sql("DEALLOCATE it")


_PARAMETER = re.compile(r"%\((\w+)\)s")


def read_whole(plan: dict[str, Any]) -> Iterator[str]:
    """Return the growing tables that a plan reads as a whole."""
    if plan["Node Type"] == "Seq Scan" and plan["Relation Name"] in GROWING:
        yield plan["Relation Name"]
    for part in plan.get("Plans", ()):
        yield from read_whole(part)


def run_passes(pool: GrownPool) -> dict[str, int]:
    """Run all of them once; return what they did."""
    did: dict[str, int] = {}
    for name, what in PASSES.items():
        report = carry_out(pool.deps, what, Run(deps=pool.deps, name=name))
        assert report["outcome"] == "ok", report
        did |= report["actions"]
    return did


def use(pool: GrownPool) -> None:
    """Run the actions of services and of the pool's own workers."""
    deps, warm = pool.deps, []
    for number in range(3):
        asked = Acquire.parse({"org": f"asker-{number}"}, task_id=f"t-{number}")
        reply = ReplyTo(task_id=f"t-{number}")
        answer = claiming.acquire(deps, asked, reply)
        assert isinstance(answer, Granted)
        warm.append(ClaimId(answer.claim_id))
        claiming.acquire(deps, asked, reply)
    claiming.renew(deps, Renew(claim_ids=(*warm, ClaimId("c-none"))))
    for claim, condition in zip(warm, (Condition.CLEAN, Condition.CLEAN, Condition.TAINTED), strict=True):
        claiming.release(deps, Release(claim_id=claim, condition=condition))
    pool.granted("asker-0")
    pool.refused("asker-1", profile="other-0")
    pool.waits("asker-2", profile="other-0")
    pool.waits("asker-3", profile="other-1", request_id="given-up")
    pool.cancel("asker-3", "given-up")
    pool.granted("org-3")
    pool.deliver()


def disturb(pool: GrownPool) -> None:
    """Create work for every pass."""
    known = dict(pool.deps.settings.profiles)
    known["other-0"] = replace(known["other-0"], warm_target=3)
    known["default"] = replace(
        known["default"], warm_target=known["default"].warm_target - 20, probe_path="/health"
    )
    pool.configure(profiles=known, surplus_ttl_s=60, max_age_s=600, terminal_keep_s=3600, journal_keep_s=7200)
    with pool.store.read() as tx:
        rows = list(row_scans.live(tx))
    busy = [r for r in rows if r.state in CLAIMED]
    idle = [r for r in rows if r.state == State.IDLE]
    for gone in (*busy[:3], *idle[:3]):
        pool.driver.lose(gone.id)
    for bare in (*busy[5:8], *idle[5:8]):
        pool.driver.strip(bare.id)
    pool.driver.stray("w-stray-0", "w-stray-1")
    # Leases, parking and waits reach their ends; canaries continue.
    pool.pass_time(2 * 86_400)
    for _ in range(6):
        pool.canary()
        pool.pass_time(8)
    pool.canary()


def test_verbs_and_passes_read_no_growing_table_as_a_whole(grown: GrownPool) -> None:
    with collected(grown.store) as statements:
        run_passes(grown)
        use(grown)
        disturb(grown)
        did = run_passes(grown)
        for name, times in run_passes(grown).items():
            did[name] = did.get(name, 0) + times
        grown.settle()
    print(f"{len(statements)} statements; {did}")
    # All of these, or something was not tried.
    wanted = {
        "worker_drained", "claim_expired", "waiter_timed_out", "row_lost", "orphan_deleted", "stamped",
        "slots_made", "org_recounted",
        "workers_dropped", "claims_dropped", "requests_dropped", "journal_dropped",
    }  # fmt: skip
    assert wanted <= did.keys(), wanted - did.keys()
    assert whole_reads(grown.store, statements) == []


def test_a_missing_index_is_detected(grown: GrownPool) -> None:
    """The check above can fail: only each of these prevents some statement from reading all rows."""
    with collected(grown.store) as statements:
        run_passes(grown)
        use(grown)
    unmissed = [i for i in NEEDED if not whole_reads(grown.store, statements, without=i)]
    assert unmissed == []


def use_rules(pool: GrownPool) -> None:
    """Run every rule once, for the existing rows."""
    use(pool)
    deps = pool.deps
    with deps.store.write() as tx:
        profile = deps.settings.profiles["other-0"]
        workers.insert_slots(tx, profile, revision(profile), [WorkerId("w-slot")], deps.by(MoveReason.DEMAND))
        pod = {"uid": "u", "endpoint": "http://x", "node": "n"}
        ready = rules.call(
            rules.Within(tx), "ready", deps.rule_argument(worker_id="w-slot", pod=pod, patient=True)
        )
        assert ready is not None
        assert ready["events"][0]["outcome"] == "granted"
        lost = deps.by(MoveReason.POD_GONE)
        assert claims.end(
            tx, deps.rule_argument(), ready["events"][0]["claim_id"], ClaimEnd.WORKER_LOST, lost
        )
    waits = pool.acquire("asker-2", profile="other-0", wait_s=30)
    assert isinstance(waits, Pending)
    assert not claiming.time_out(deps, waits.request_pk)
    claiming.match(deps, ProfileName("other-0"))
    pool.configure(protect_before_grant=True)
    pool.acquire("asker-1", request_id="bound")
    with deps.store.read() as tx:
        bound = requests.find_unlocked(tx, OrgId("asker-1"), "bound")
    assert bound is not None
    assert rules.call(deps.store, "confirm", deps.rule_argument(claim_id=bound.claim_id, patient=True))


def scanned(pool: GrownPool, *, without: str = "") -> set[str]:
    """Return the growing tables that are read as a whole when the rules run in one transaction,
    which is rolled back, without that index.
    """
    sound = pool.deps
    with pool.store.engine.connect() as tx:
        if without:
            tx.execute(text(f"DROP INDEX {without}"))
        pool.deps = replace(sound, store=OpenStore(tx))  # type: ignore[arg-type]
        before = _scans(tx)
        use_rules(pool)
        found = {name for name, scans in _scans(tx).items() if scans > before.get(name, 0)}
        tx.rollback()
    pool.deps = sound
    return found & GROWING


def _scans(tx: Tx) -> dict[str, int]:
    """Return how often each table was read as a whole, from the session's own statistics, which may
    include earlier work.
    """
    counted = text("SELECT relname, seq_scan FROM pg_stat_xact_user_tables")
    return {row.relname: row.seq_scan for row in tx.execute(counted)}


def test_rules_read_no_growing_table_as_a_whole(grown: GrownPool) -> None:
    assert scanned(grown) == set()


@pytest.mark.parametrize("index", NEEDED_BY_RULES)
def test_a_missing_index_of_a_rule_is_detected(grown: GrownPool, index: str) -> None:
    assert scanned(grown, without=index)
