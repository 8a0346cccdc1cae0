"""The exporter returns the table's state at the time of the scrape, and costs the same after every
restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from sqlalchemy import text

from pool.broker.locks import RedisLocks
from pool.broker.queues import Queues
from pool.core.clock import SystemClock
from pool.core.errors import Forbidden, Transient
from pool.core.ids import ProfileName, RandomIds
from pool.core.periods import PERIODS_S
from pool.core.states import LIVE, State
from pool.drivers.port import NOTE_DO_NOT_DISRUPT, NOTE_EPOCH, NOTE_ORG
from pool.metrics.catalog import CATALOG, MetricKind, Origin
from pool.ops import exporting, operating, reporting
from pool.ops.exporting import Exporter
from pool.ops.operating import Operator
from pool.ops.reading import TOP_ORGS
from pool.passes import PASSES
from pool.passes.running import run_once
from pool.store import Store, targets
from pool.store.idle_cost import IdleReason
from tests.support.redis_server import RedisServer
from tests.support.world import World


class ScrapedPage:
    """A page as its reader sees it."""

    def __init__(self, page: bytes) -> None:
        self.families = {f.name: f for f in text_string_to_metric_families(page.decode())}
        self.samples = {
            (s.name, frozenset(s.labels.items())): s.value for f in self.families.values() for s in f.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples[f"warmpool_{name}", frozenset(labels.items())]

    def has(self, name: str) -> bool:
        return any(n == f"warmpool_{name}" for n, _ in self.samples)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "FRESH_S", 0.0)
    monkeypatch.setattr(exporting, "_KEPT_TIMES", 0)


def one_waits() -> dict[str, int]:
    return {"acquire": 1}


def page_of(world: World) -> ScrapedPage:
    """From an exporter that has just started."""
    made = Exporter(world.store, world.deps.settings, clock=SystemClock(), look=one_waits)
    return ScrapedPage(made.render())


def own_page(world: World) -> ScrapedPage:
    from prometheus_client import generate_latest

    return ScrapedPage(generate_latest(world.deps.metrics.registry))


def test_every_declared_metric_exists_from_the_start_with_zeros_for_every_state(world: World) -> None:
    page = page_of(world)
    told = {m.name for m in CATALOG.values() if m.origin is Origin.TABLE}
    may_be_absent = {"pass_holder", "org_in_use", "org_cap"}
    assert {n for n in told if page.has(n) or page.has(f"{n}_total")} == told - may_be_absent
    assert {s: page.value("workers", profile="default", state=s) for s in LIVE} == dict.fromkeys(LIVE, 0)
    assert {n: page.value("pass_ever_succeeded", **{"pass": n}) for n in PERIODS_S} == dict.fromkeys(
        PERIODS_S, 0
    )


def test_only_declared_metrics_are_exported(world: World) -> None:
    world.warm(1)
    world.granted()
    for page in (page_of(world), own_page(world)):
        ours = {n for n, _ in page.samples if n.startswith("warmpool_") and not n.endswith("_created")}
        assert ours <= {series for m in CATALOG.values() for series in m.series}


def test_workers_are_counted_by_state_as_in_the_table(world: World) -> None:
    world.warm(3)
    world.granted("acme")
    given = world.granted("bolt")
    world.release(given.claim_id)
    page = page_of(world)
    counted = {s: page.value("workers", profile="default", state=s) for s in LIVE}
    assert counted == {s: {State.IDLE: 1, State.HOT: 1, State.HOT_IDLE: 1}.get(s, 0) for s in LIVE}
    assert page.value("live_workers") == 3
    assert page.value("warm_target", profile="default") == 3
    with world.store.write() as tx:
        targets.set_target(tx, ProfileName("default"), 7, who="test")
    assert page_of(world).value("warm_target", profile="default") == 7
    assert page.value("org_in_use", org="acme") == 1


def test_waiters_and_their_longest_wait_are_exported(world: World) -> None:
    world.waits(wait_s=300)
    world.pass_time(40)
    world.waits(wait_s=300)
    page = page_of(world)
    assert page.value("waiting_requests", profile="default") == 2
    assert page.value("waiting_oldest_seconds", profile="default") == pytest.approx(40, abs=5)
    world.refused(profile="default")
    world.warm(2)
    world.run_pass("reconcile_warm")
    page = page_of(world)
    assert page.value("waiting_requests", profile="default") == 0, "who was answered waits no more"
    assert page.value("waiting_oldest_seconds", profile="default") == 0


# A worker of two vCPUs and 512 MiB: twice its seconds in one unit, half of them in the other.
SIZE: dict[str, Any] = {"cpu_millicores": 2000, "memory_mib": 512}


def spent(page: ScrapedPage, reason: str) -> tuple[float, float]:
    labels = {"profile": "default", "reason": reason}
    return page.value("idle_vcpu_seconds_total", **labels), page.value("idle_gib_seconds_total", **labels)


def test_idle_seconds_are_exact_and_labelled_with_their_reason(world: World) -> None:
    world.profile(**SIZE, hot_idle_ttl_s=100)
    world.warm(1)
    world.pass_time(1000)
    vcpu_s, gib_s = spent(page_of(world), "warm")
    assert (vcpu_s, gib_s) == pytest.approx((2000, 500), abs=20)
    assert vcpu_s / gib_s == pytest.approx(4.0)

    given = world.granted()
    world.pass_time(50_000)  # in use: costs nothing
    assert spent(page_of(world), "warm") == pytest.approx((2000, 500), abs=20)

    world.release(given.claim_id)
    world.pass_time(300)  # a hundred of them as configured, two hundred longer than that
    page = page_of(world)
    assert spent(page, "parked") == pytest.approx((200, 50), abs=20)
    assert spent(page, "overdue") == pytest.approx((400, 100), abs=20)

    world.run_pass("reap")
    world.pass_time(20)
    assert spent(page_of(world), "leaving") == pytest.approx((40, 10), abs=20)
    world.settle()
    assert not [w for w in world.workers() if w.state in LIVE]
    page = page_of(world)
    assert spent(page, "warm") == pytest.approx((2000, 500), abs=20)
    assert spent(page, "parked") == pytest.approx((200, 50), abs=20)
    assert spent(page, "overdue") == pytest.approx((400, 100), abs=20)
    assert spent(page, "leaving") == pytest.approx((40, 10), abs=20)


def test_idle_seconds_never_decrease(world: World) -> None:
    world.profile(**SIZE, hot_idle_ttl_s=30)
    before = dict.fromkeys(IdleReason, 0.0)

    def grew() -> None:
        page = page_of(world)
        for spell in IdleReason:
            now = spent(page, spell)[0]
            assert now >= before[spell] - 1e-6, spell
            before[spell] = now

    world.warm(2)
    for step in range(4):
        given = world.granted()
        grew()
        world.pass_time(7)
        world.release(given.claim_id, "tainted" if step % 2 else "clean")
        grew()
        world.pass_time(40 if step == 2 else 3)
        grew()
        world.settle()
        grew()
        world.warm(1)
        grew()
    world.run_pass("reap")
    world.settle()
    grew()
    world.pass_time(200_000)
    world.run_pass("collect_garbage")
    grew()


def test_a_parked_worker_past_its_ttl_is_overdue_unless_a_floor_keeps_it(world: World) -> None:
    world.profile(hot_idle_ttl_s=10)
    world.org("keeper", hot_idle_floor=2)
    world.warm(4)
    for org in ("keeper", "keeper", "acme", "acme"):
        given = world.granted(org, ttl_s=10)
        world.release(given.claim_id) if org == "acme" else None
    assert page_of(world).value("idle_overdue", profile="default", kind="parked") == 0
    for claim in world.rows("claims"):
        if claim.org == "keeper":
            world.release(claim.id)
    world.pass_time(11)
    assert page_of(world).value("idle_overdue", profile="default", kind="parked") == 0, (
        "the reap has a period"
    )
    world.pass_time(19)
    parked = len(world.workers(State.HOT_IDLE))
    assert page_of(world).value("idle_overdue", profile="default", kind="parked") == parked - 2
    world.run_pass("reap")
    assert page_of(world).value("idle_overdue", profile="default", kind="parked") == 0
    assert len(world.workers(State.HOT_IDLE)) == 2


def test_idle_workers_above_the_target_for_too_long_are_overdue(world: World) -> None:
    world.profile(warm_target=1)
    world.warm(3)
    world.pass_time(world.deps.settings.pool.surplus_ttl_s - 20)
    assert page_of(world).value("idle_overdue", profile="default", kind="surplus") == 0
    world.pass_time(40)
    assert page_of(world).value("idle_overdue", profile="default", kind="surplus") == 2


def test_a_pass_shows_its_age_and_that_it_has_never_succeeded(world: World) -> None:
    run_once(world.deps, PASSES["reap"])
    world.pass_time(30)
    page = page_of(world)
    assert page.value("pass_last_success_age_seconds", **{"pass": "reap"}) == pytest.approx(30, abs=5)
    assert page.value("pass_last_attempt_age_seconds", **{"pass": "reap"}) == pytest.approx(30, abs=5)
    assert page.value("pass_ever_succeeded", **{"pass": "reap"}) == 1
    assert page.value("pass_ever_succeeded", **{"pass": "sweep_stuck"}) == 0
    assert page.value("pass_last_success_age_seconds", **{"pass": "sweep_stuck"}) >= 29
    assert page.value("pass_holder", **{"pass": "reap", "holder": "test"}) == 1
    assert page.value("pass_paused", **{"pass": "reap"}) == 0
    operating.set_pass_paused(
        world.store, "reap", paused=True, operator=Operator(name="a", way="cli", why="")
    )
    assert page_of(world).value("pass_paused", **{"pass": "reap"}) == 1


def test_mismatches_that_the_guard_cannot_repair_are_exported(world: World) -> None:
    world.warm(2)
    busy = world.granted()
    world.broker.sent.clear()  # the stamp of the claim's own event got lost
    idle = next(w.id for w in world.workers(State.IDLE))
    world.driver.change(idle, annotations={NOTE_DO_NOT_DISRUPT: "true", NOTE_ORG: "bolt", NOTE_EPOCH: "0"})
    world.run_pass("guard_disruption")
    page = page_of(world)
    assert page.value("busy_unprotected") == 1
    assert page.value("stale_protected") == 1
    world.run_pass("guard_disruption")
    page = page_of(world)
    assert (page.value("busy_unprotected"), page.value("stale_protected")) == (0, 0)
    assert world.driver.pods[busy.worker_id].protected


def test_mismatches_seen_by_a_failed_guard_are_exported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.warm(1)
    world.granted()
    world.broker.sent.clear()

    def may_not(*_: Any) -> Any:
        raise Forbidden("forbidden", detail="patch pods")

    monkeypatch.setattr(world.driver, "stamp", may_not)
    with pytest.raises(Forbidden):
        run_once(world.deps, PASSES["guard_disruption"])
    page = page_of(world)
    assert page.value("busy_unprotected") == 1
    assert page.value("pass_failures_in_a_row", **{"pass": "guard_disruption"}) == 1


def test_orphans_and_rows_without_pods_are_exported(world: World) -> None:
    lost, _ = world.warm(2)
    world.driver.take_away(lost)
    world.driver.drain_events()
    kept = next(iter(world.driver.pods))
    world.driver.change(kept, age_s=500.0)
    world.run_pass("sweep_orphans")
    assert page_of(world).value("rows_without_pod") == 1
    assert page_of(world).value("orphans") == 0
    with world.store.write() as tx:
        tx.execute(text("UPDATE workers SET state='lost' WHERE id = :id"), {"id": kept})
        tx.execute(text("UPDATE pool SET live = live - 1"))
    world.run_pass("sweep_orphans")
    assert page_of(world).value("orphans") == 1


def test_the_orgs_closest_to_their_caps_become_labels(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pool.ops.reading.TOP_ORGS", 2)
    world.org("tight", cap=2)
    world.org("roomy", cap=100)
    world.warm(7)
    for org in ("tight", *["roomy"] * 3, *["free"] * 2):
        world.granted(org)
    page = page_of(world)
    assert (page.value("org_in_use", org="tight"), page.value("org_cap", org="tight")) == (1, 2)
    assert page.value("org_in_use", org="roomy") == 3
    assert ("warmpool_org_in_use", frozenset({("org", "free")})) not in page.samples


def test_an_open_breaker_is_exported(world: World) -> None:
    world.driver.refuses_to_create = "quota"
    for _ in range(3):
        world.run_pass("reconcile_warm")
        world.settle()
    page = page_of(world)
    assert page.value("breaker_open", profile="default") == 1
    assert page.value("breaker_failures", profile="default") >= 3
    assert own_page(world).value("spawn_failures_total", profile="default", reason="create_failed") >= 3


def test_only_a_few_orgs_become_labels(world: World) -> None:
    world.warm(TOP_ORGS + 5)
    for n in range(TOP_ORGS + 4):
        world.granted(f"org-{n:02d}")
    world.org("full", cap=1)
    world.granted("full")
    page = page_of(world)
    named = {dict(labels)["org"] for name, labels in page.samples if name == "warmpool_org_in_use"}
    assert len(named) == TOP_ORGS
    assert "full" in named  # the closest to its cap, although it holds no more than others
    assert page.value("orgs") == TOP_ORGS + 5


def test_an_unreadable_database_leaves_no_old_values(
    world: World, monkeypatch: pytest.MonkeyPatch, no_memory: None
) -> None:
    made = Exporter(world.store, world.deps.settings, clock=SystemClock(), look=one_waits)
    assert ScrapedPage(made.render()).value("database_up") == 1

    def away(*_: Any) -> Iterator[Any]:
        raise Transient("the database is away")

    monkeypatch.setattr("pool.ops.exporting.read", away)
    page = ScrapedPage(made.render())
    assert page.value("database_up") == 0
    assert not page.has("workers")
    assert page.value("queue_length", queue="acquire") == 1


def test_an_unreachable_broker_leaves_no_old_values(world: World) -> None:
    def away() -> dict[str, int]:
        raise Transient("redis is away")

    page = ScrapedPage(Exporter(world.store, world.deps.settings, clock=SystemClock(), look=away).render())
    assert page.value("broker_up") == 0
    assert not page.has("queue_length")
    assert page.has("workers")


def test_queue_lengths_are_those_of_redis() -> None:
    with RedisServer() as server, Redis.from_url(server.url) as redis:
        redis.rpush("fleet", "a", "b")
        queues = Queues(redis)
        assert queues.look() == {"acquire": 0, "fleet": 2, "bind": 0, "passes": 0}
        redis.rpush("acquire.acme.", "c")
        redis.rpush("acquire", "d", "e")
        assert queues.look()["acquire"] == 2
        assert Queues(redis, lambda: ["acquire.acme.", "acquire.bolt."]).look()["acquire"] == 3


def test_an_emptied_broker_is_counted_and_its_first_use_is_not(world: World) -> None:
    with RedisServer() as server, Redis.from_url(server.url) as redis:
        locks = RedisLocks(redis, clock=SystemClock(), ids=RandomIds(), who="test")
        world.deps = replace(world.deps, locks=locks)
        assert [after_a_run(world) for _ in range(2)] == [(0, False)] * 2
        redis.flushall()
        assert [after_a_run(world) for _ in range(2)] == [(1, True)] * 2
        redis.flushall()
        assert after_a_run(world) == (2, True)
        world.pass_time(310)
        assert after_a_run(world) == (2, False)


def after_a_run(world: World) -> tuple[float, bool]:
    """Return how often Redis was found empty, as exported, and whether `status` reports it now."""
    world.pass_time(10)
    assert run_once(world.deps, PASSES["reap"])["outcome"] == "ok"
    worries = {w["id"] for w in reporting.status(world.store, world.deps.settings)["worries"]}
    return page_of(world).value("broker_emptied_total"), "broker_emptied" in worries


def test_a_page_that_was_slow_to_build_is_cached_for_longer(world: World) -> None:
    class Hand(SystemClock):
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock, looks = Hand(), []

    def slow() -> dict[str, int]:
        looks.append(clock.now)
        clock.now += 2.0
        return {"acquire": 0}

    exporter = Exporter(world.store, world.deps.settings, clock=clock, look=slow)
    for seconds in (0.0, 1.0, 8.0, 2.0):
        clock.now += seconds
        exporter.render()
    assert looks == [0.0, 13.0]


def test_concurrent_scrapes_read_the_table_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    def read(*_: object) -> list[Any]:
        reads.append(1)
        return []

    monkeypatch.setattr("pool.ops.exporting.read", read)
    monkeypatch.setattr(exporting, "FRESH_S", 1000.0)
    made = Exporter(world.store, world.deps.settings, clock=SystemClock(), look=one_waits)
    assert len({made.render() for _ in range(5)}) == 1
    assert len(reads) == 1


def test_ended_rows_are_never_read(store: Store) -> None:
    """The few live workers are found by their indexes among many ended ones."""
    columns = "id, profile, image, revision, cpu_millicores, memory_mib, grace_s, moved_by, moved_reason, created_at, state_since"
    with store.write() as tx:
        tx.execute(text("SET LOCAL session_replication_role = replica"))
        tx.execute(
            text(
                f"INSERT INTO workers ({columns}, state) SELECT 'w-' || n, 'default', 'i', 'r', 1, 1, 0, 'b', 'demand', now(), now(), "
                "CASE WHEN n % 1000 = 0 THEN 'spawning' ELSE 'retired' END FROM generate_series(1, 20000) n"
            )
        )
    statements: list[tuple[str, Any]] = []
    from sqlalchemy import event

    def heard(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    with store.read() as tx:
        tx.exec_driver_sql("ANALYZE workers")
    event.listen(store.engine, "before_cursor_execute", heard)
    try:
        page = page_of(World(store))
    finally:
        event.remove(store.engine, "before_cursor_execute", heard)
    assert page.value("workers", profile="default", state="spawning") == 20
    about_workers = [(s, p) for s, p in statements if re.search(r"FROM workers|JOIN workers", s)]
    assert about_workers
    for statement, parameters in about_workers:
        with store.read() as tx:
            plan = "\n".join(r[0] for r in tx.exec_driver_sql(f"EXPLAIN {statement}", parameters))
        assert "Seq Scan on workers" not in plan, plan


# Metrics that a process counts itself.


def test_an_acquire_is_counted_once_by_its_outcome(world: World) -> None:
    world.warm(1)
    given = world.granted()
    world.refused()
    page = own_page(world)
    assert page.value("acquires_total", profile="default", outcome="granted", reason="") == 1
    assert page.value("acquires_total", profile="default", outcome="refused", reason="no_warm_worker") == 1
    assert page.value("misses_total", profile="default", reason="no_warm_worker") == 1
    assert page.value("acquire_seconds_count", outcome="granted", source="warm") == 1
    assert page.value("moves_total", **{"from": "idle", "to": "hot", "reason": "claimed"}) == 1
    world.release(given.claim_id)
    world.granted()
    page = own_page(world)
    assert page.value("acquire_seconds_count", outcome="granted", source="hot_idle") == 1
    assert page.value("claims_ended_total", why="released") == 1


def test_a_waiting_acquire_is_a_miss_and_its_whole_time_is_observed(world: World) -> None:
    world.waits(wait_s=600)
    world.pass_time(100)
    world.warm(1)
    world.settle()
    page = own_page(world)
    assert page.value("misses_total", profile="default", reason="waited") == 1
    assert page.value("acquires_total", profile="default", outcome="granted", reason="") == 1
    assert page.value("acquire_seconds_sum", outcome="granted", source="warm") == pytest.approx(100, abs=5)
    assert page.value("acquire_phase_seconds_sum", phase="wait") == pytest.approx(100, abs=5)
    assert page.value("spawn_seconds_count", profile="default") == 1


def test_an_unknown_profile_becomes_no_label(world: World) -> None:
    from dataclasses import replace

    from pool.metrics import Metrics

    world.deps = replace(world.deps, metrics=Metrics(profiles=["default"]))
    world.refused(profile="x" * 30)
    assert (
        own_page(world).value(
            "acquires_total", profile="unknown", outcome="refused", reason="unknown_profile"
        )
        == 1
    )


def test_moves_by_passes_and_releases_are_counted_by_reason(world: World) -> None:
    world.profile(warm_target=1, hot_idle_ttl_s=5)
    world.warm(3)
    given = [world.granted("acme"), world.granted("bolt")]
    world.release(given[0].claim_id)
    world.release(given[1].claim_id, "tainted")
    world.pass_time(20)
    world.run_pass("reap")
    world.settle()
    world.driver.change(next(w.id for w in world.workers(State.IDLE)), ready=False)
    world.observe()
    page = own_page(world)
    reasons = {dict(labels)["reason"] for name, labels in page.samples if name == "warmpool_moves_total"}
    assert reasons == {"ready", "claimed", "released", "tainted", "hot_idle_ttl", "pod_deleted", "unhealthy"}


def test_metric_names_have_no_generated_suffix_and_histograms_have_buckets() -> None:
    assert {m.name for m in CATALOG.values() if m.name.endswith(("_total", "_count", "_sum"))} == set()
    assert all(m.buckets for m in CATALOG.values() if m.kind is MetricKind.HISTOGRAM)
