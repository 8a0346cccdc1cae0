"""The store's contract: rows, counters, and the rules that move them, one transaction at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, text, update

from pool.core.errors import PoolError, Transient
from pool.core.ids import ClaimId, OrgId, ProfileName, RequestPk, WorkerId
from pool.core.records import By, Claim, Org, ReplyTo, Request, SeenWorker
from pool.core.settings import OrgDefaults, Profile
from pool.core.states import ClaimEnd, MoveReason, Outcome, Reason, RequestState, State
from pool.store import (
    Store,
    Tx,
    breakers,
    canaries,
    claims,
    connect,
    journal,
    orgs,
    passes,
    ping,
    requests,
    rules,
    schema,
    supply,
    suspects,
    workers,
)
from pool.store.errors import translated
from pool.store.rule_connection import RuleConnection
from pool.store.sql import at as given_instant
from pool.store.workers import Fence, PodFacts
from tests.support.waiting import eventually

BY = By(who="tester", reason=MoveReason.DEMAND)
ACME, BOLT = OrgId("acme"), OrgId("bolt")
DEFAULT = ProfileName("default")
BIG, BOUND = ProfileName("big"), ProfileName("bound")
# The arguments of a process for the rules: three profiles, the last of which has an activation.
RULES: dict[str, Any] = {
    "ttls": {DEFAULT: 60, BIG: 60, BOUND: 60},
    "most_ttl_s": 600,
    "activates": [BOUND],
    "protect": False,
    "max_workers": 0,
    "tries": 2,
}
ASKING = {"who": "tester", "patient": True, "rules": RULES}

_numbers = itertools.count(1)


def counted(tx: Tx) -> supply.CountedSupply:
    ages = supply.SupplyAges(just_ready_s=50, young_s=50, node_wait_s=150)
    return supply.count(tx, DEFAULT, [DEFAULT, BOUND, BIG], ages)


def misses(tx: Tx, profile: ProfileName) -> list[RequestPk]:
    return supply.fresh_misses(tx, profile, [DEFAULT, BOUND, BIG], fresh_s=60, most=1000)


def close(span: timedelta, seconds: float) -> bool:
    """Equal to a tenth of a second: Postgres' clock moves on within a statement."""
    return abs(span.total_seconds() - seconds) < 0.1


# Builders: rows as the store itself creates them.


def pass_time(store: Store, seconds: float) -> None:
    with store.write() as tx:
        tx.execute(update(schema.clock).values(shift_s=schema.clock.c.shift_s + seconds))


def an_org(tx: Tx, name: str = "acme", **settings: Any) -> Org:
    orgs.seed(tx, OrgId(name), OrgDefaults())
    if settings:
        orgs.change(tx, OrgId(name), settings)
    found = orgs.get(tx, OrgId(name))
    assert found is not None
    return found


def a_slot(tx: Tx, profile: str = "default") -> SeenWorker:
    worker_id = WorkerId(f"w-{next(_numbers):04d}")
    orgs.reserve_slots(tx, 1, 0)
    workers.insert_slots(tx, Profile(name=profile), "rev", [worker_id], BY)
    return seen(tx, worker_id)


def seen(tx: Tx, worker_id: WorkerId) -> SeenWorker:
    found = workers.get(tx, worker_id)
    assert found is not None
    return found


def decided(tx: Tx, rule: str, **what: Any) -> dict[str, Any] | None:
    """Return the result of a rule, inside a transaction."""
    return rules.call(rules.Within(tx), rule, {**ASKING, **what})


def served(tx: Tx, **calls: Any) -> dict[str, Any]:
    found = decided(tx, "serve", alone=True, **calls)
    assert found is not None
    return found


def become_ready(tx: Tx, slot: SeenWorker) -> dict[str, Any] | None:
    """Make the slot ready if it is still a slot."""
    found = decided(tx, "ready", worker_id=slot.id, pod={"uid": f"u-{slot.id}", "endpoint": "http://x"})
    return None if found is None else dict(found["events"][0])


def an_idle(tx: Tx, profile: str = "default") -> SeenWorker:
    slot = a_slot(tx, profile)
    event = become_ready(tx, slot)
    assert event is not None
    assert event["to"] == State.IDLE
    return seen(tx, slot.id)


def acquired(tx: Tx, org: str = "acme", **given: Any) -> dict[str, Any]:
    """Return the result of one acquire."""
    request_id = f"id-{next(_numbers)}"
    defaults = {"profile": "default", "request_id": request_id, "lease_s": 30, "ttl_s": None, "wait_s": 0}
    asked = {"org": org, "reply": [f"task-{request_id}", ""], **defaults, **given}
    (found,) = served(tx, acquire=[asked])["acquire"]
    assert found is not None
    return dict(found)


def a_claim(tx: Tx, org: str = "acme", **given: Any) -> Claim:
    """A hot worker with a leased claim; the worker was warm."""
    orgs.seed(tx, OrgId(org), OrgDefaults())
    idle = an_idle(tx, given.get("profile", "default"))
    granted = acquired(tx, org, **given)
    assert granted["worker_id"] == idle.id, granted
    return the_claim(tx, granted)


def the_claim(tx: Tx, granted: dict[str, Any]) -> Claim:
    found = claims.get(tx, ClaimId(granted["claim_id"]))
    assert found is not None
    return found


def a_binding(tx: Tx, org: str = "acme", **given: Any) -> Claim:
    """A worker that is being activated for a claim."""
    claim = a_claim(tx, org, profile=BOUND, **given)
    fence = Fence(worker_id=claim.worker_id, epoch=claim.epoch, states=frozenset({State.RESERVED}))
    assert workers.move(tx, fence, State.ACTIVATING, BY) is Outcome.MOVED
    return claim


def released(tx: Tx, claim: Claim, condition: str = "clean") -> str:
    (outcome,) = served(tx, release=[[claim.id, None, condition]])["release"]
    return str(outcome)


def renewed(tx: Tx, *claim_ids: str, org: str | None = None) -> list[Any]:
    """Return for each claim the end of its lease and why its worker must leave; or None and why it
    has no lease.
    """
    return list(served(tx, renew=[[claim_id, org] for claim_id in claim_ids])["renew"])


def end(tx: Tx, claim: Claim, why: ClaimEnd) -> dict[str, Any] | None:
    return claims.end(tx, ASKING, claim.id, why, BY)


def some_parked(tx: Tx, org: str = "acme", *, ttls_s: Sequence[int] = (60,)) -> list[SeenWorker]:
    """Parked workers, one per TTL."""
    held = [a_claim(tx, org, ttl_s=ttl_s) for ttl_s in ttls_s]
    assert [released(tx, claim) for claim in held] == ["released"] * len(held)
    parked = [seen(tx, claim.worker_id) for claim in held]
    assert {w.state for w in parked} <= {State.HOT_IDLE}
    return parked


def a_parked(tx: Tx, org: str = "acme") -> SeenWorker:
    return some_parked(tx, org)[0]


def a_waiter(tx: Tx, org: str = "acme", **given: Any) -> Request:
    orgs.seed(tx, OrgId(org), OrgDefaults())
    found = acquired(tx, org, **{"wait_s": 30, **given})
    assert found["outcome"] == "waiting", found
    return a_row(tx, found["pk"])


def cancelled(tx: Tx, request: Request) -> str:
    (outcome,) = served(tx, cancel=[[request.org, request.request_id]])["cancel"]
    return str(outcome)


def timed_out(tx: Tx, *waiters: Request) -> list[str]:
    """Return which of these were refused because they are overdue."""
    found = decided(tx, "time_out", pks=[r.pk for r in waiters])
    assert found is not None
    return [event["pk"] for event in found["events"]]


def line(tx: Tx, profile: ProfileName = DEFAULT) -> list[tuple[str, float]]:
    """Return the orgs that are served next, and their use relative to their weight."""
    found = tx.execute(
        text(rules.qualified("SELECT org, usage FROM warmpool_line(:p, warmpool_now(), 0)")), {"p": profile}
    )
    return [(org, usage) for org, usage in found]


def a_row(tx: Tx, pk: str) -> Request:
    found = requests.get(tx, RequestPk(pk))
    assert found is not None
    return found


def an_existing(tx: Tx, name: OrgId) -> Org:
    found = orgs.get(tx, name)
    assert found is not None
    return found


def somebody_is_blocked(store: Store) -> bool:
    statement = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
    with store.read() as tx:
        return bool(tx.execute(text(statement)).scalar_one())


# The clock and the transaction.


def test_the_time_comes_from_the_database_and_can_be_shifted(store: Store) -> None:
    before = store.now()
    assert before.tzinfo is UTC
    pass_time(store, 3600)
    assert timedelta(seconds=3600) <= store.now() - before < timedelta(seconds=3660)
    pass_time(store, -3600.5)
    assert store.now() - before < timedelta(seconds=60)


def test_written_rows_have_the_shifted_time(store: Store) -> None:
    pass_time(store, 86_400)
    with store.write() as tx:
        slot = a_slot(tx)
        (entry,) = journal.of(tx, slot.id)
    assert abs(slot.created_at - store.now()) < timedelta(seconds=30)
    assert abs(entry.at - slot.created_at) < timedelta(seconds=1)


@pytest.mark.parametrize(
    "instant",
    [
        datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
        datetime(2030, 1, 2, tzinfo=UTC),
        datetime.fromisoformat("2030-01-01T00:30:00.001+02:00"),
    ],
)
def test_an_instant_is_read_as_it_was_written(store: Store, instant: datetime) -> None:
    with store.write() as tx:
        slot = a_slot(tx)
        tx.execute(update(schema.workers).values(ready_at=instant))
        assert seen(tx, slot.id).ready_at == instant
        assert tx.execute(
            select(schema.workers.c.id).where(schema.workers.c.ready_at == given_instant(instant))
        ).one()
        earlier = given_instant(instant - timedelta(milliseconds=1))
        assert tx.execute(select(schema.workers.c.id).where(schema.workers.c.ready_at > earlier)).one()


def test_nothing_remains_of_a_block_that_raises(store: Store) -> None:
    def block() -> None:
        with store.write() as tx:
            a_slot(tx)
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        block()
    with store.read() as tx:
        assert workers.live(tx) == []
        assert orgs.pool_row(tx).live == 0


def test_a_snapshot_sees_one_moment(store: Store) -> None:
    with store.snapshot() as tx:
        assert workers.live(tx) == []
        with store.write() as other:
            a_slot(other)
        assert workers.live(tx) == []
    with store.read() as tx:
        assert len(workers.live(tx)) == 1


def test_a_read_sees_what_was_committed_meanwhile(store: Store) -> None:
    with store.read() as tx:
        assert workers.live(tx) == []
        with store.write() as other:
            a_slot(other)
        assert len(workers.live(tx)) == 1


# Fenced moves.


def test_a_slot_becomes_ready_once(store: Store) -> None:
    with store.write() as tx:
        slot = a_slot(tx)
        pod = {"uid": "u", "endpoint": "http://x", "node": "n"}
        assert decided(tx, "ready", worker_id=slot.id, pod=pod) is not None
        assert decided(tx, "ready", worker_id=slot.id, pod=pod) is None
        assert decided(tx, "ready", worker_id="w-none", pod=pod) is None
        row = seen(tx, slot.id)
        assert (row.state, row.pod_uid, row.endpoint, row.node) == (State.IDLE, "u", "http://x", "n")
        assert len(journal.of(tx, slot.id)) == 2


def test_a_move_from_the_observed_state_succeeds_once(store: Store) -> None:
    with store.write() as tx:
        idle = an_idle(tx)
        assert workers.leave(tx, idle, State.DRAINING, BY) is Outcome.MOVED
        assert workers.leave(tx, idle, State.DRAINING, BY) is Outcome.FENCED
        assert seen(tx, idle.id).state is State.DRAINING


def test_a_move_of_another_epoch_is_fenced(store: Store) -> None:
    with store.write() as tx:
        idle = an_idle(tx)
        for epoch in (idle.epoch - 1, idle.epoch + 1):
            fence = Fence(worker_id=idle.id, epoch=epoch, states=frozenset({State.IDLE}))
            assert workers.move(tx, fence, State.DRAINING, BY) is Outcome.FENCED
        assert seen(tx, idle.id) == idle


def test_a_move_of_a_missing_row_is_gone(store: Store) -> None:
    with store.write() as tx:
        fence = Fence(worker_id=WorkerId("w-none"), epoch=0, states=frozenset({State.IDLE}))
        assert workers.move(tx, fence, State.DRAINING, BY) is Outcome.GONE


def test_a_stale_holder_moves_nothing(store: Store) -> None:
    with store.write() as tx:
        old = a_claim(tx)
        stale = seen(tx, old.worker_id)
        assert released(tx, old) == "released"
        new = the_claim(tx, acquired(tx))
        assert (new.worker_id, new.org) == (old.worker_id, old.org)
        holding = seen(tx, new.worker_id)
        assert workers.leave(tx, stale, State.DRAINING, BY) is Outcome.FENCED
        assert workers.record_heartbeat(tx, old.held) is Outcome.FENCED
        assert released(tx, old) == "already_released"
        assert [end(tx, old, why) for why in ClaimEnd] == [None] * len(ClaimEnd)
        assert decided(tx, "confirm", claim_id=old.id) is None
        assert seen(tx, new.worker_id) == holding
        assert workers.record_heartbeat(tx, new.held) is Outcome.MOVED
        assert seen(tx, new.worker_id).claim_id == new.id


def test_every_change_of_holder_raises_the_epoch(store: Store) -> None:
    with store.write() as tx:
        parked = a_parked(tx)
        assert parked.epoch == 2
        again = the_claim(tx, acquired(tx))
        assert (again.worker_id, again.epoch) == (parked.id, 3)
        assert released(tx, again, "tainted") == "released"
        left = seen(tx, parked.id)
        assert (left.state, left.epoch, left.claim_id) == (State.DRAINING, 4, None)
        assert [e.epoch for e in journal.of(tx, parked.id)] == [0, 0, 1, 2, 3, 4]


def test_leaving_hot_idle_clears_the_ttl(store: Store) -> None:
    with store.write() as tx:
        an_org(tx, hot_idle_floor=1)
        parked = a_parked(tx)
        assert parked.parked_counted
        assert parked.hot_idle_until is not None
        assert parked.hot_idle_since is not None
        assert close(parked.hot_idle_until - parked.hot_idle_since, 60)
        workers.leave(tx, parked, State.DRAINING, BY)
        row = seen(tx, parked.id)
        assert (row.hot_idle_since, row.hot_idle_until, row.parked_counted) == (None, None, False)


def test_a_busy_worker_is_marked_as_leaving_once_and_others_never(store: Store) -> None:
    with store.write() as tx:
        claim = a_claim(tx)
        idle = an_idle(tx)
        drain = By(who="guard", reason=MoveReason.DISRUPTED, detail="node drained")
        assert workers.mark_leaving(tx, idle.id, drain) is Outcome.FENCED
        assert workers.mark_leaving(tx, claim.worker_id, drain) is Outcome.MOVED
        assert workers.mark_leaving(tx, claim.worker_id, drain) is Outcome.FENCED
        assert [why for _, why, _ in renewed(tx, claim.id, "c-none")] == [
            "disrupted: node drained",
            "unknown_claim",
        ]
        mark = journal.of(tx, claim.worker_id)[-1]
        assert (mark.is_mark, mark.reason, mark.detail) == (True, MoveReason.DISRUPTED, "node drained")
        assert released(tx, claim) == "released"
        assert seen(tx, claim.worker_id).state is State.DRAINING
        end = journal.of(tx, claim.worker_id)[-1]
        assert (end.is_mark, end.reason, end.detail) == (False, MoveReason.DISRUPTED, "node drained")


def test_silence_is_measured_from_the_last_heartbeat(store: Store) -> None:
    with store.write() as tx:
        claim = a_claim(tx)
        assert not workers.is_silent(tx, claim.worker_id, for_s=15)
    pass_time(store, 16)
    with store.write() as tx:
        assert workers.is_silent(tx, claim.worker_id, for_s=15)
        workers.record_heartbeat(tx, claim.held)
        assert not workers.is_silent(tx, claim.worker_id, for_s=15)


def test_updates_of_a_row_are_fenced_like_moves(store: Store) -> None:
    with store.write() as tx:
        slot = a_slot(tx)
        assert workers.record_pod(tx, slot, PodFacts(uid="u")) is Outcome.MOVED
        assert workers.record_resend(tx, slot) is Outcome.MOVED
        workers.leave(tx, slot, State.DRAINING, BY)
        assert workers.record_pod(tx, slot, PodFacts(uid="u")) is Outcome.FENCED
        assert workers.record_resend(tx, slot) is Outcome.FENCED


# Picking and listing.


def test_the_idle_worker_that_was_ready_first_is_picked(store: Store) -> None:
    with store.write() as tx:
        an_org(tx)
        an_idle(tx, "big")
        later_slot, first = a_slot(tx), an_idle(tx)
    pass_time(store, 1)
    with store.write() as tx:
        become_ready(tx, later_slot)
        assert [acquired(tx)["worker_id"] for _ in range(2)] == [first.id, later_slot.id]
        assert acquired(tx)["reason"] == Reason.NO_WARM_WORKER


def test_the_worker_parked_last_is_picked_and_only_for_its_org(store: Store) -> None:
    with store.write() as tx:
        an_org(tx, "cats")
        first, last, another = a_claim(tx), a_claim(tx), a_claim(tx, "bolt")
        assert released(tx, first) == "released"
    pass_time(store, 1)
    with store.write() as tx:
        assert [released(tx, claim) for claim in (last, another)] == ["released"] * 2
        assert acquired(tx, "cats")["reason"] == Reason.NO_WARM_WORKER
        assert acquired(tx, profile="big")["reason"] == Reason.NO_WARM_WORKER
        an_idle(tx)  # workers parked for the org come before warm ones
        found = [acquired(tx) for _ in range(2)]
        assert [f["worker_id"] for f in found] == [last.worker_id, first.worker_id]
        assert {f["source"] for f in found} == {"hot_idle"}


def test_parked_workers_past_their_ttl_are_listed_longest_overdue_first(store: Store) -> None:
    with store.write() as tx:
        long, short, middle = some_parked(tx, ttls_s=(90, 10, 20))
    pass_time(store, 30)
    with store.read() as tx:
        assert [w.id for w in workers.parked_past_end(tx, limit=9)] == [short.id, middle.id]
        assert [w.id for w in workers.parked_past_end(tx, limit=1)] == [short.id]
        assert {w.id for w in workers.oldest_parked(tx, ACME, limit=9)} == {long.id, short.id, middle.id}


def test_lists_by_age_return_the_oldest_and_nothing_below_the_limit(store: Store) -> None:
    with store.write() as tx:
        old_idle, old_slot = an_idle(tx), a_slot(tx)
        draining = a_slot(tx)
        workers.leave(tx, draining, State.DRAINING, BY)
    pass_time(store, 100)
    with store.write() as tx:
        young_idle, young_slot = an_idle(tx), a_slot(tx)
        assert [w.id for w in workers.idle_since(tx, DEFAULT, older_than_s=50, limit=9)] == [old_idle.id]
        assert [w.id for w in workers.idle_since(tx, DEFAULT, older_than_s=0, limit=9)] == [
            old_idle.id,
            young_idle.id,
        ]
        assert [w.id for w in workers.older_than(tx, 50, limit=9)] == [old_idle.id]
        assert [w.id for w in workers.unsent_slots(tx, older_than_s=50, limit=9)] == [old_slot.id]
        assert [w.id for w in workers.undeleted(tx, older_than_s=50, limit=9)] == [draining.id]
        assert counted(tx).young == {young_slot.id}
        assert counted(tx).waiting_for_a_node == {old_slot.id, young_slot.id}
        assert set(counted(tx).idle) == {old_idle.id, young_idle.id}
        assert counted(tx).just_ready == {young_idle.id}
        assert workers.counts(tx) == {
            (DEFAULT, State.IDLE): 2,
            (DEFAULT, State.SPAWNING): 2,
            (DEFAULT, State.DRAINING): 1,
        }
        workers.record_pod(tx, old_slot, PodFacts(uid="u"))
        assert workers.unsent_slots(tx, older_than_s=50, limit=9) == []
        assert young_slot.id in workers.ids_in_state(tx, DEFAULT, State.SPAWNING)


# Counters.


@pytest.mark.parametrize(
    ("cap", "wanted", "granted"),
    [(0, 10_000, 10_000), (5, 3, 3), (5, 9, 5), (5, 0, 0), (5, -1, 0)],
)
def test_slots_are_taken_as_far_as_the_cap_allows(store: Store, cap: int, wanted: int, granted: int) -> None:
    with store.write() as tx:
        assert orgs.reserve_slots(tx, wanted, cap) == granted
        assert orgs.pool_row(tx).live == granted


def test_slots_above_a_lowered_cap_are_neither_granted_nor_removed(store: Store) -> None:
    with store.write() as tx:
        orgs.reserve_slots(tx, 5, 0)
        assert orgs.reserve_slots(tx, 1, 3) == 0
        assert orgs.pool_row(tx).live == 5
        orgs.decrement_live(tx)
        assert orgs.reserve_slots(tx, 3, 6) == 2


def test_claims_are_counted_up_to_the_cap(store: Store) -> None:
    with store.write() as tx:
        an_org(tx, cap=2)
        first, _ = a_claim(tx), a_claim(tx)
        an_idle(tx)
        assert acquired(tx)["reason"] == Reason.ORG_CAP
        assert an_existing(tx, ACME).in_use == 2
        assert released(tx, first) == "released"
        assert an_existing(tx, ACME).in_use == 1
        assert the_claim(tx, acquired(tx)).counted
        assert acquired(tx)["reason"] == Reason.ORG_CAP
        assert orgs.miscounted(tx) == []


def test_an_org_without_a_cap_is_not_counted(store: Store) -> None:
    with store.write() as tx:
        assert [a_claim(tx).counted for _ in range(3)] == [False, False, False]
        assert an_existing(tx, ACME).in_use == 0


@pytest.mark.parametrize(
    ("before", "after", "outcome"), [(1, 0, "granted"), (1, 2, "granted"), (2, 1, "refused")]
)
def test_the_cap_in_force_when_the_claim_begins_decides(
    store: Store, before: int, after: int, outcome: str
) -> None:
    """The cap is changed while an acquire reads it: the acquire waits for the change."""
    with store.write() as tx:
        an_org(tx, cap=before)
        a_claim(tx)
        an_idle(tx)
    found: list[dict[str, Any]] = []

    def acquire() -> None:
        with store.write() as tx:
            found.append(acquired(tx))

    asking = threading.Thread(target=acquire)
    with store.write() as changing:
        orgs.change(changing, ACME, {"cap": after})
        asking.start()
        eventually(lambda: somebody_is_blocked(store))
    asking.join(20)
    assert [f["outcome"] for f in found] == [outcome]
    with store.write() as tx:
        orgs.count_uncounted(tx, ACME)
        assert orgs.miscounted(tx) == []


def test_a_new_cap_counts_the_live_claims(store: Store) -> None:
    with store.write() as tx:
        a_claim(tx)
        ended = a_claim(tx)
        parked = a_claim(tx)
        released(tx, ended, "tainted")
        released(tx, parked)
        a_claim(tx, "bolt")
        orgs.change(tx, ACME, {"cap": 5, "hot_idle_floor": 1})
        org = an_existing(tx, ACME)
        assert (org.in_use, org.parked) == (1, 1)
        assert orgs.count_uncounted(tx, ACME) == 0
        assert orgs.miscounted(tx) == []


def test_claims_granted_during_a_change_of_the_cap_are_found_and_counted(store: Store) -> None:
    with store.write() as tx:
        an_org(tx)
        a_claim(tx, "bolt")
    with store.write() as granting:
        live, parked = a_claim(granting), a_claim(granting)
        released(granting, parked)
        with store.write() as changing:
            orgs.change(changing, ACME, {"cap": 5, "hot_idle_cap": 2})
    with store.write() as tx:
        assert not the_claim(tx, {"claim_id": live.id}).counted
        assert orgs.uncounted(tx) == [ACME]
        assert orgs.count_uncounted(tx, ACME) == 2
        assert orgs.uncounted(tx) == []
        assert orgs.miscounted(tx) == []
        assert orgs.count_uncounted(tx, OrgId("unknown")) == 0


@pytest.mark.parametrize(
    ("floor", "cap", "parked", "given"),
    [
        (0, 3, 1, True),
        (2, 0, 2, False),
        (2, 0, 3, True),
        (3, 2, 3, True),  # the cap takes precedence over the floor
        (3, 2, 2, False),
        (3, 5, 3, False),
    ],
)
def test_a_parked_worker_drains_only_above_its_orgs_floor(
    store: Store, floor: int, cap: int, parked: int, given: bool
) -> None:
    with store.write() as tx:
        an_org(tx, hot_idle_floor=floor, hot_idle_cap=cap)
        some_parked(tx, ttls_s=[60] * parked)
        assert orgs.decrement_parked_above_floor(tx, ACME) is given
        found = orgs.get(tx, ACME)
        assert found is not None
        assert found.parked == parked - given
        assert [o.id for o in orgs.capped_parking(tx)] == ([ACME] if cap and found.parked > cap else [])


def test_parking_is_not_counted_without_a_floor_or_a_cap(store: Store) -> None:
    with store.write() as tx:
        assert not a_parked(tx).parked_counted
        for name, limit in (("bolt", "hot_idle_floor"), ("cats", "hot_idle_cap")):
            an_org(tx, name, **{limit: 1})
            assert a_parked(tx, name).parked_counted
        assert [o.parked for o in orgs.every(tx)] == [0, 1, 1]
        assert acquired(tx, "bolt")["source"] == "hot_idle"
        orgs.decrement_parked(tx, OrgId("cats"))
        assert [o.parked for o in orgs.every(tx)] == [0, 0, 0]


def test_the_row_of_an_org_takes_precedence_over_the_configuration(store: Store) -> None:
    with store.write() as tx:
        an_org(tx, cap=7)
        orgs.seed(tx, ACME, OrgDefaults(cap=1, values={"a": "b"}))
        found = orgs.get(tx, ACME)
        assert found is not None
        assert (found.cap, found.values) == (7, {})


@pytest.mark.parametrize(
    ("tampering", "sentence"),
    [
        ("UPDATE pool SET live = live + 1", "pool: live is 3, its live rows are 2"),
        ("UPDATE orgs SET in_use = in_use + 1", "org acme: in_use is 2, its counted live claims are 1"),
        ("UPDATE orgs SET parked = parked + 1", "org acme: parked is 2, its counted parked workers are 1"),
        ("UPDATE claims SET counted = false WHERE ended_at IS NULL", "org acme: in_use is 1, its counted live claims are 0"),
    ],
)  # fmt: skip
def test_a_wrong_counter_is_reported(store: Store, tampering: str, sentence: str) -> None:
    with store.write() as tx:
        an_org(tx, cap=5, hot_idle_floor=1)
        a_claim(tx)
        a_parked(tx)
        assert orgs.miscounted(tx) == []
        tx.execute(text(tampering))
        assert orgs.miscounted(tx) == [sentence]


def test_the_pool_can_be_paused(store: Store) -> None:
    with store.write() as tx:
        assert not orgs.pool_row(tx).paused
        orgs.pause(tx, paused=True)
        assert orgs.pool_row(tx).paused


# Requests.


def test_a_request_is_created_once_per_org(store: Store) -> None:
    reply: dict[str, Any] = {"reply": ["t-1", "list"], "request_id": "same"}
    with store.write() as tx:
        first = a_waiter(tx, **reply)
        again = acquired(tx, wait_s=30, **reply)
        assert (again["outcome"], again["pk"]) == ("open", first.pk)
        assert a_waiter(tx, "bolt", **reply).pk != first.pk
        other = acquired(tx, wait_s=31, **reply)
        assert (other["outcome"], other["reason"]) == ("refused", Reason.INVALID)
        found = requests.find_unlocked(tx, ACME, "same")
        assert found is not None
        assert (found.pk, found.state, found.wait_s) == (first.pk, RequestState.WAITING, 30)
        assert found.replies == (ReplyTo(task_id="t-1", address="list"),)
        assert requests.find_unlocked(tx, ACME, "other") is None


def test_a_refused_request_is_evaluated_as_new(store: Store) -> None:
    with store.write() as tx:
        first = a_waiter(tx)
        assert cancelled(tx, first) == "cancelled"
        assert a_row(tx, first.pk).reason == Reason.CANCELLED
        requests.mark_replied(tx, [first.pk])
    pass_time(store, 100)
    with store.write() as tx:
        again = a_waiter(tx, request_id=first.request_id, reply=["another", ""])
    assert (again.pk, again.state) == (first.pk, RequestState.WAITING)
    assert (again.reason, again.detail, again.retry_after_s, again.decided_at) == (None, None, None, None)
    assert again.replied_at is None
    assert again.created_at - first.created_at >= timedelta(seconds=100)
    assert close(again.deadline_at - again.created_at, 30)
    assert again.replies == (ReplyTo(task_id="another"),)


def test_a_request_is_decided_once(store: Store) -> None:
    with store.write() as tx:
        request = a_waiter(tx)
        granted = become_ready(tx, a_slot(tx))
        assert granted is not None
        assert (granted["outcome"], granted["pk"]) == ("granted", request.pk)
        decided_so = a_row(tx, request.pk)
        an_idle(tx)
        assert served(tx, match=[DEFAULT])["events"] == []
        assert cancelled(tx, request) == "already_answered"
        again = acquired(tx, request_id=request.request_id, wait_s=30)
        assert (again["outcome"], again["claim_id"]) == ("granted_before", granted["claim_id"])
        assert a_row(tx, request.pk) == decided_so
    pass_time(store, 31)
    with store.write() as tx:
        assert timed_out(tx, request) == []
        assert released(tx, the_claim(tx, granted)) == "released"
        assert a_row(tx, request.pk).state is RequestState.SPENT
        spent = acquired(tx, request_id=request.request_id, wait_s=30)
        assert (spent["outcome"], spent["reason"]) == ("refused", Reason.REQUEST_SPENT)


def test_a_waiter_past_its_deadline_is_not_served_but_a_binding_one_is(store: Store) -> None:
    with store.write() as tx:
        late, binding = a_waiter(tx), a_binding(tx, wait_s=30)
    pass_time(store, 31)
    with store.write() as tx:
        bound = a_row(tx, binding.request_pk)
        assert bound.state is RequestState.BINDING
        event = become_ready(tx, a_slot(tx))
        assert event is not None
        assert event["to"] == State.IDLE
        assert served(tx, match=[DEFAULT])["events"] == []
        assert requests.overdue(tx, limit=9) == [late.pk]
        assert timed_out(tx, late, bound) == [late.pk]
        assert a_row(tx, late.pk).reason == Reason.WAIT_TIMEOUT
        confirmed = decided(tx, "confirm", claim_id=binding.id)
        assert confirmed is not None
        assert [e["outcome"] for e in confirmed["events"]] == ["moved", "granted"]
        assert a_row(tx, bound.pk).state is RequestState.GRANTED


def test_only_a_waiter_that_is_overdue_times_out(store: Store) -> None:
    with store.write() as tx:
        short, long = a_waiter(tx, wait_s=10), a_waiter(tx, wait_s=30)
        assert timed_out(tx, short, long) == []
    pass_time(store, 11)
    with store.write() as tx:
        event = become_ready(tx, a_slot(tx))
        assert event is not None
        assert event["pk"] == long.pk, "the older one of the org is past its deadline"
        assert timed_out(tx, short, long) == [short.pk]
        assert timed_out(tx, short, long) == []


def test_a_request_whose_activation_failed_waits_again_and_is_counted(store: Store) -> None:
    with store.write() as tx:
        failed = a_binding(tx, wait_s=30)
        assert end(tx, failed, ClaimEnd.ACTIVATION_FAILED) is not None
        row = a_row(tx, failed.request_pk)
        assert (row.state, row.attempts, row.claim_id) == (RequestState.WAITING, 1, None)
        assert seen(tx, failed.worker_id).state is State.DRAINING


def test_a_request_whose_activation_failed_gets_another_worker_a_bounded_number_of_times(
    store: Store,
) -> None:
    with store.write() as tx:
        failed = a_binding(tx)
        another = an_idle(tx, BOUND)
        assert end(tx, failed, ClaimEnd.ACTIVATION_FAILED) is not None
        row = a_row(tx, failed.request_pk)
        assert (row.state, row.attempts) == (RequestState.BINDING, 1)
        second = the_claim(tx, {"claim_id": row.claim_id})
        assert second.worker_id == another.id
        assert end(tx, failed, ClaimEnd.ACTIVATION_FAILED) is None
        assert a_row(tx, row.pk) == row
        an_idle(tx, BOUND)
        assert end(tx, second, ClaimEnd.ACTIVATION_FAILED) is not None
        row = a_row(tx, row.pk)
        assert (row.state, row.reason) == (RequestState.REFUSED, Reason.ACTIVATION_FAILED)


def test_replies_are_added_once_each(store: Store) -> None:
    with store.write() as tx:
        request = a_waiter(tx, reply=["first", ""])
        same: dict[str, Any] = {"request_id": request.request_id, "wait_s": 30}
        for _ in range(2):
            assert acquired(tx, reply=["second", ""], **same)["outcome"] == "open"
        assert [r.task_id for r in a_row(tx, request.pk).replies] == ["first", "second"]
        for n in range(requests.MAX_REPLIES):
            acquired(tx, reply=[f"later-{n}", ""], **same)
        newest = [f"later-{n}" for n in range(requests.MAX_REPLIES)]
        assert [r.task_id for r in a_row(tx, request.pk).replies] == newest


def test_decided_requests_are_listed_until_they_are_answered(store: Store) -> None:
    with store.write() as tx:
        open_one, answered = a_waiter(tx), a_waiter(tx)
        assert cancelled(tx, answered) == "cancelled"
        assert requests.unreplied(tx, older_than_s=3, limit=9) == []
    pass_time(store, 4)
    with store.write() as tx:
        assert requests.unreplied(tx, older_than_s=3, limit=9) == [answered.pk]
        requests.mark_replied(tx, [answered.pk, open_one.pk])
        assert requests.unreplied(tx, older_than_s=3, limit=9) == []
        assert a_row(tx, open_one.pk).replied_at is None


def test_the_queue_serves_the_least_use_for_its_weight_first(store: Store) -> None:
    """acme uses 2 of weight 1, bolt 2 of weight 4, cats is capped and its counter is 1 of weight 1."""
    with store.write() as tx:
        an_org(tx)
        an_org(tx, "bolt", weight=4.0)
        an_org(tx, "cats", cap=3, in_use=1)
        for org in ("acme", "bolt"):
            a_claim(tx, org)
            a_claim(tx, org)
        for org in ("acme", "cats", "bolt"):
            a_waiter(tx, org)
        assert line(tx) == [("bolt", 0.5), ("cats", 1.0), ("acme", 2.0)]
        served_first = become_ready(tx, a_slot(tx))
        assert served_first is not None
        assert served_first["org"] == "bolt"


def test_the_queue_breaks_ties_by_the_oldest_wait_and_is_fifo_within_an_org(store: Store) -> None:
    waiters = []
    for org in ("bolt", "acme", "bolt", "acme", "bolt"):
        with store.write() as tx:
            waiters.append(a_waiter(tx, org))
        pass_time(store, 1)
    with store.write() as tx:
        assert [org for org, _ in line(tx)] == ["bolt", "acme"]
        assert cancelled(tx, waiters[0]) == "cancelled"
        assert [org for org, _ in line(tx)] == ["acme", "bolt"]
        ready = [become_ready(tx, a_slot(tx)) for _ in range(2)]
        assert [event and event["pk"] for event in ready] == [waiters[1].pk, waiters[2].pk]
    with store.write() as holder, store.write() as tx:
        # While another transaction has them locked nothing is matched; then the remaining two are
        # served together.
        holder.execute(text("SELECT pk FROM requests WHERE state = 'waiting' FOR UPDATE"))
        assert [
            event and event["to"] for event in (become_ready(tx, a_slot(tx)), become_ready(tx, a_slot(tx)))
        ] == ["idle"] * 2
    with store.write() as tx:
        matched = served(tx, match=[DEFAULT])["events"]
        assert [event["pk"] for event in matched] == [waiters[3].pk, waiters[4].pk]


def test_only_eligible_waiters_are_seen(store: Store) -> None:
    """Not of another profile, not past the deadline, not of an org at its cap."""

    def anyone_waits(tx: Tx) -> bool:
        return bool(
            tx.execute(
                text(rules.qualified("SELECT warmpool_anyone_waits('default', warmpool_now())"))
            ).scalar_one()
        )

    with store.write() as tx:
        an_org(tx, "bolt", cap=1, in_use=1)
        a_waiter(tx, "acme", wait_s=10)
        a_waiter(tx, "bolt")
        a_waiter(tx, "cats", profile="big")
        assert [org for org, _ in line(tx)] == [ACME]
        assert counted(tx).waiters == 1
        assert anyone_waits(tx)
        assert requests.profiles_waited_for(tx, OrgId("cats")) == ["big"]
        assert [(w["org"], w["waiting"]) for w in requests.waiting(tx)] == [
            ("acme", 1),
            ("bolt", 1),
            ("cats", 1),
        ]
    pass_time(store, 11)
    with store.write() as tx:
        assert not anyone_waits(tx)
        assert counted(tx).waiters == 0
        idle = an_idle(tx)
        assert served(tx, match=[DEFAULT])["events"] == []
        orgs.change(tx, BOLT, {"in_use": 0})
        assert [org for org, _ in line(tx)] == [BOLT]
        (event,) = served(tx, match=[DEFAULT])["events"]
        assert (event["org"], event["worker_id"]) == (BOLT, idle.id)


def test_a_waiter_locked_by_another_transaction_is_matched_again(store: Store) -> None:
    """It may continue to wait, as after a repeated delivery, and would be matched only by the next
    pass.
    """
    with store.write() as tx:
        claim = a_claim(tx)
        a_waiter(tx)
    with store.write() as holder, store.write() as tx:
        holder.execute(text("SELECT pk FROM requests WHERE state = 'waiting' FOR UPDATE"))
        slot = a_slot(tx)
        ready = decided(tx, "ready", worker_id=slot.id, pod={"uid": "u", "endpoint": "http://x"})
        assert ready is not None
        assert (ready["events"][0]["to"], ready["again"]) == (State.IDLE, [DEFAULT])
        assert served(tx, match=[DEFAULT])["again"] == [DEFAULT]
        workers.leave(tx, seen(tx, slot.id), State.DRAINING, BY)
        found = served(tx, release=[[claim.id, None, "clean"]])
        assert (found["release"], found["again"]) == (["released"], [DEFAULT])


@pytest.mark.parametrize(
    ("waiter", "wait_s", "newcomer", "source"),
    [
        ("acme", 30, "acme", None),  # the parked worker goes to the waiter, which came first
        ("bolt", 30, "acme", "hot_idle"),  # only acme can have it
        ("bolt", 30, "cats", None),  # the warm worker goes to the waiter
        ("acme", 10, "acme", "hot_idle"),  # a waiter past its deadline blocks no other
        ("bolt", 10, "cats", "warm"),
    ],
)
def test_a_new_request_overtakes_no_waiter_that_could_use_the_worker(
    store: Store, waiter: str, wait_s: int, newcomer: str, source: str | None
) -> None:
    """Another transaction has locked the waiter's row, so it cannot be served before the new
    request.
    """
    with store.write() as tx:
        an_org(tx, newcomer)
        parked = a_claim(tx)
        waits = a_waiter(tx, waiter, wait_s=wait_s)
    pass_time(store, 11)
    with store.write() as holder, store.write() as tx:
        holder.execute(text("SELECT pk FROM requests WHERE pk = :pk FOR UPDATE"), {"pk": waits.pk})
        released(tx, parked)
        become_ready(tx, a_slot(tx))
        found = acquired(tx, newcomer)
        assert found.get("source") == source, found
        assert a_row(tx, waits.pk).state is RequestState.WAITING


# Misses.


def test_a_miss_counts_once_per_request_for_any_number_of_refusals(store: Store) -> None:
    with store.write() as tx:
        an_org(tx)
        missed = {acquired(tx, request_id="same")["pk"] for _ in range(4)}
        assert set(misses(tx, DEFAULT)) == missed
        assert len(missed) == 1
        requests.consume_misses(tx, list(missed))
        assert misses(tx, DEFAULT) == []
        assert acquired(tx, request_id="same")["reason"] == Reason.NO_WARM_WORKER
        assert misses(tx, DEFAULT) == []


def test_a_waiter_that_gets_nothing_is_no_miss(store: Store) -> None:
    """It was demand while it waited; the end of its wait is none."""
    with store.write() as tx:
        late, withdrawn, failed = a_waiter(tx, wait_s=10), a_waiter(tx), a_binding(tx)
        cancelled(tx, withdrawn)
        decided(
            tx,
            "end_claim",
            claim_id=failed.id,
            why=ClaimEnd.ACTIVATION_FAILED,
            reason=MoveReason.ACTIVATION_FAILED,
            detail="",
        )
        second = a_row(tx, failed.request_pk)
        assert second.reason == Reason.ACTIVATION_FAILED
    pass_time(store, 11)
    with store.write() as tx:
        assert timed_out(tx, late) == [late.pk]
        assert misses(tx, DEFAULT) == []
        assert misses(tx, BOUND) == []


def test_a_miss_goes_stale_and_a_new_refusal_makes_it_fresh(store: Store) -> None:
    with store.write() as tx:
        an_org(tx)
        missed = acquired(tx, request_id="same")
    pass_time(store, 61)
    with store.write() as tx:
        assert misses(tx, DEFAULT) == []
        assert acquired(tx, request_id="same")["pk"] == missed["pk"]
        assert misses(tx, DEFAULT) == [missed["pk"]]
        assert misses(tx, BIG) == []


def test_demand_of_a_capped_org_is_at_most_the_room_it_has_left_over_all_profiles(store: Store) -> None:
    with store.write() as tx:
        an_org(tx, "acme", cap=3, in_use=1)
        an_org(tx, "bolt")
        for n in range(4):
            a_waiter(tx, "acme", profile="big" if n == 0 else "default")
            a_waiter(tx, "bolt")
        # The oldest waits for another profile: of acme one more can be served here, and all of bolt.
        assert counted(tx).waiters == 1 + 4
        orgs.change(tx, ACME, {"in_use": 3})
        assert counted(tx).waiters == 4


def test_waiters_for_a_profile_that_cannot_grow_take_no_room_from_others(store: Store) -> None:
    """A profile that is not configured, or whose breaker is open."""
    with store.write() as tx:
        an_org(tx, "acme", cap=1)
        a_waiter(tx, "acme", profile="removed")
        a_waiter(tx, "acme", profile="big")
        a_waiter(tx, "acme")
        assert counted(tx).waiters == 0
        breakers.failed(tx, BIG, "no image")
        tx.execute(text("UPDATE breakers SET open_until = now() + interval '1 hour'"))
        assert counted(tx).waiters == 1


def test_misses_of_a_capped_org_count_up_to_its_room_and_not_again_once_consumed(store: Store) -> None:
    with store.write() as tx:
        an_org(tx, cap=2)
        pks = [acquired(tx, request_id=f"r{n}")["pk"] for n in range(5)]
        assert misses(tx, DEFAULT) == pks[:2]
        requests.consume_misses(tx, pks[:1])
        assert misses(tx, DEFAULT) == pks[1:2]
        a_waiter(tx, wait_s=300)
        assert misses(tx, DEFAULT) == []
    pass_time(store, 59)
    with store.write() as tx:
        assert misses(tx, DEFAULT) == []
    pass_time(store, 3)
    with store.write() as tx:
        # The slot of the consumed miss is no longer expected, and the one that waits has no claim yet.
        fresh = [acquired(tx, request_id=f"later{n}")["pk"] for n in range(3)]
        assert misses(tx, DEFAULT) == fresh[:1]


def test_at_most_as_many_misses_are_read_as_one_run_can_serve(store: Store) -> None:
    with store.write() as tx:
        an_org(tx)
        pks = [acquired(tx, request_id=f"r{n}")["pk"] for n in range(5)]
        assert supply.fresh_misses(tx, DEFAULT, [DEFAULT], fresh_s=60, most=3) == pks[:3]


def test_the_cause_of_a_miss_is_the_orgs_cap_then_the_pools(store: Store) -> None:
    """A refusal that a worker would have prevented is a miss; at its org's cap none would."""
    with store.write() as tx:
        an_org(tx, cap=1)
        an_org(tx, "bolt")
        a_claim(tx)
        asked = {"profile": "default", "lease_s": 30, "ttl_s": None, "wait_s": 0, "reply": ["t", ""]}
        missed = []
        for most in (1, 2):
            calls = [{"org": org, "request_id": f"at {most}", **asked} for org in ("acme", "bolt")]
            found = served(tx, acquire=calls, rules={**RULES, "max_workers": most})["acquire"]
            missed.append(found[1]["pk"])
            assert [f["reason"] for f in found] == ["org_cap", "pool_cap" if most == 1 else "no_warm_worker"]
        assert sorted(misses(tx, DEFAULT)) == sorted(missed)
        counted_as_missed = text("SELECT pk FROM requests WHERE missed_at IS NOT NULL")
        assert sorted(tx.execute(counted_as_missed).scalars()) == sorted(missed)


# Claims.


def test_live_claims_are_renewed_together_and_ended_ones_are_not(store: Store) -> None:
    with store.write() as tx:
        first, second, ended = a_claim(tx, lease_s=30), a_claim(tx, lease_s=60), a_claim(tx)
        released(tx, ended)
    pass_time(store, 20)
    with store.write() as tx:
        at = store.now()
        found = renewed(tx, second.id, first.id, ended.id, "c-none")
        assert found[2:] == [[None, "released", None], [None, "unknown_claim", None]]
        for (until, leaving, unhealthy), claim in zip(found[:2], (second, first), strict=True):
            assert leaving is None
            assert unhealthy is None
            assert abs(datetime.fromisoformat(until) - at - timedelta(seconds=claim.lease_s)) < timedelta(
                seconds=5
            )
            assert the_claim(tx, {"claim_id": claim.id}).lease_expires_at == datetime.fromisoformat(until)
        assert renewed(tx, first.id, org="bolt") == [[None, "unknown_claim", None]]


def test_a_claim_that_is_not_hot_has_no_lease_to_renew(store: Store) -> None:
    with store.write() as tx:
        begun = a_binding(tx)
        assert begun.lease_expires_at is None
        assert renewed(tx, begun.id) == [[None, "not_hot", None]]
        assert decided(tx, "confirm", claim_id=begun.id) is not None
        assert the_claim(tx, {"claim_id": begun.id}).lease_expires_at is not None
        assert decided(tx, "confirm", claim_id=begun.id) is None
        ((until, _, _),) = renewed(tx, begun.id)
        assert until is not None


def test_a_claim_ends_once(store: Store) -> None:
    with store.write() as tx:
        claim = a_claim(tx)
        ended = end(tx, claim, ClaimEnd.RETIRED)
        assert ended is not None
        assert [e["why"] for e in ended["events"]] == [ClaimEnd.RETIRED]
        left = seen(tx, claim.worker_id)
        assert end(tx, claim, ClaimEnd.WORKER_LOST) is None
        assert claims.end(tx, ASKING, ClaimId("c-none"), ClaimEnd.RETIRED, BY) is None
        assert released(tx, claim) == "already_released"
        assert the_claim(tx, {"claim_id": claim.id}).ended_why == ClaimEnd.RETIRED
        assert claims.live_of(tx, ACME) == []
        assert seen(tx, claim.worker_id) == left


def test_a_lease_runs_out_only_after_a_whole_lease_of_open_lane(store: Store) -> None:
    with store.write() as tx:
        claim = a_claim(tx, lease_s=30)
        canaries.canary_answered(tx, gap_s=10)
    pass_time(store, 100)
    with store.write() as tx:
        assert not canaries.lane_is_open(tx, gap_s=10)
        canaries.canary_answered(tx, gap_s=10)  # after a gap: the lane opens anew
        assert canaries.lane_is_open(tx, gap_s=10)
        assert claims.expired(tx, limit=9) == []
        assert end(tx, claim, ClaimEnd.EXPIRED) is None
    for _ in range(4):
        pass_time(store, 8)
        with store.write() as tx:
            canaries.canary_answered(tx, gap_s=10)
    with store.write() as tx:
        assert [c.id for c in claims.expired(tx, limit=9)] == [claim.id]
        renewed(tx, claim.id)
        assert claims.expired(tx, limit=9) == []
        assert end(tx, claim, ClaimEnd.EXPIRED) is None


def test_a_lane_without_gaps_stays_open_since_its_first_canary(store: Store) -> None:
    with store.write() as tx:
        canaries.canary_answered(tx, gap_s=10)
        began = orgs.pool_row(tx).lane_open_since
    for _ in range(3):
        pass_time(store, 9)
        with store.write() as tx:
            canaries.canary_answered(tx, gap_s=10)
    with store.read() as tx:
        assert orgs.pool_row(tx).lane_open_since == began


def test_a_pending_release_is_stored_once_and_ends_with_the_claim(store: Store) -> None:
    with store.write() as tx:
        claim = a_claim(tx)
        assert claims.request_release(tx, claim.id, "tainted")
        assert not claims.request_release(tx, claim.id, "clean")
        (kept,) = claims.unfinished_releases(tx, limit=9)
        assert (kept.id, kept.release_condition) == (claim.id, "tainted")
        end(tx, claim, ClaimEnd.TAINTED)
        assert claims.unfinished_releases(tx, limit=9) == []
        assert not claims.request_release(tx, claim.id, "clean")


# Passes and breakers.


def test_a_pass_is_not_attempted_twice_within_its_pause(store: Store) -> None:
    with store.write() as tx:
        assert passes.attempt(tx, "reap", "one", not_within_s=2.5)
        assert not passes.attempt(tx, "reap", "two", not_within_s=2.5)
        assert passes.attempt(tx, "sweep", "two", not_within_s=2.5)
        assert passes.get(tx, "reap").holder == "one"
    pass_time(store, 3)
    with store.write() as tx:
        assert passes.attempt(tx, "reap", "two", not_within_s=2.5)


def test_a_paused_pass_is_neither_attempted_nor_dark(store: Store) -> None:
    with store.write() as tx:
        passes.set_paused(tx, "reap", paused=True, by="operator")
        assert not passes.attempt(tx, "reap", "one", not_within_s=0)
        assert not passes.silent_for(tx, "reap", 15)
        assert passes.get(tx, "reap").paused_by == "operator"
        passes.set_paused(tx, "reap", paused=False, by="operator")
        assert passes.attempt(tx, "reap", "one", not_within_s=0)
        assert passes.get(tx, "reap").paused_by is None


def test_a_pass_is_silent_until_it_succeeds_and_again_when_it_stops(store: Store) -> None:
    with store.write() as tx:
        passes.attempt(tx, "reap", "one", not_within_s=0)
        assert passes.silent_for(tx, "reap", 15)
        passes.succeeded(tx, "reap", detail="", actions=0, duration_s=0.1)
        assert not passes.silent_for(tx, "reap", 15)
    pass_time(store, 16)
    with store.write() as tx:
        passes.attempt(tx, "reap", "one", not_within_s=0)
        assert passes.failed(tx, "reap", outcome="failed", detail="boom") == 1
        assert passes.silent_for(tx, "reap", 15)


def test_consecutive_failures_are_counted_until_a_success(store: Store) -> None:
    with store.write() as tx:
        passes.seed(tx, "reap")
        assert [passes.failed(tx, "reap", outcome="failed", detail="boom") for _ in range(3)] == [1, 2, 3]
        row = passes.get(tx, "reap")
        assert (row.last_outcome, row.last_detail, row.last_success_at) == ("failed", "boom", None)
        passes.succeeded(tx, "reap", detail="fine", actions=4, duration_s=0.5)
        row = passes.every(tx)["reap"]
        assert (row.failures, row.last_outcome, row.last_actions, row.last_duration_s) == (0, "ok", 4, 0.5)


def test_a_breaker_opens_after_its_free_failures_for_longer_each_time(store: Store) -> None:
    pauses = []
    with store.write() as tx:
        for _ in range(breakers.FREE_FAILURES):
            breakers.failed(tx, DEFAULT, "no such image")
            assert not breakers.is_open(tx, DEFAULT)
        for _ in range(3):
            breakers.failed(tx, DEFAULT, "no such image")
            until = breakers.every(tx)[DEFAULT].open_until
            assert until is not None
            pauses.append(round((until - store.now()).total_seconds()))
        assert breakers.is_open(tx, DEFAULT)
        assert not breakers.is_open(tx, ProfileName("big"))
        assert breakers.every(tx)[DEFAULT].why == "no such image"
    assert pauses == [5, 10, 20]
    pass_time(store, 21)
    with store.write() as tx:
        assert not breakers.is_open(tx, DEFAULT)
        breakers.failed(tx, DEFAULT, "again")
        assert breakers.is_open(tx, DEFAULT)
        breakers.succeeded(tx, DEFAULT)
        assert breakers.every(tx) == {}


# Suspicions.


def test_a_suspicion_grows_while_it_is_seen_and_is_forgotten_when_it_is_not(store: Store) -> None:
    pods, rows = suspects.SuspectKind.STAMPED_POD, suspects.SuspectKind.ROW_WITHOUT_POD
    with store.write() as tx:
        assert suspects.peek(tx, pods, "w-1").runs == 1
        assert suspects.see(tx, pods, "w-1").runs == 1
        suspects.see(tx, pods, "w-2")
        suspects.see(tx, rows, "w-2")
    pass_time(store, 30)
    with store.write() as tx:
        assert suspects.peek(tx, pods, "w-1").runs == 2
        again = suspects.see(tx, pods, "w-1", "no session")
        assert again.runs == 2
        assert 30 <= again.age_s < 60
        suspects.forget_others(tx, pods, ["w-1"])
        assert suspects.every(tx) == [
            ("row_without_pod", "w-2", 1, ""),
            ("stamped_pod", "w-1", 2, "no session"),
        ]
        assert suspects.see(tx, pods, "w-2").runs == 1
        suspects.forget(tx, pods, "w-1")
        assert suspects.every(tx, pods) == [("stamped_pod", "w-2", 1, "")]


# The journal.


@pytest.mark.parametrize(
    ("tampering", "part"),
    [
        ("DELETE FROM journal WHERE to_state = 'hot'", "leaves hot"),
        ("DELETE FROM journal WHERE to_state = 'hot_idle'", "table ('hot_idle', 2, None), journal ('hot', 1"),
        ("UPDATE journal SET epoch = 9 WHERE to_state = 'hot_idle'", "journal ('hot_idle', 9, None)"),
        ("DELETE FROM journal", "journal None"),
        ("UPDATE workers SET epoch = 5", None),
    ],
)
def test_a_journal_that_does_not_replay_to_the_table_is_reported(
    store: Store, tampering: str, part: str | None
) -> None:
    with store.write() as tx:
        a_parked(tx)
        assert journal.disagreements(tx) == []
        tx.execute(text(tampering))
        found = journal.disagreements(tx)
        assert (part in " ".join(found)) if part else found == []


def test_the_journal_is_read_in_order_from_either_end(store: Store) -> None:
    with store.write() as tx:
        parked = a_parked(tx)
        entries = journal.of(tx, parked.id)
        assert [e.to_state for e in entries] == ["spawning", "idle", "hot", "hot_idle"]
        assert journal.since(tx, entries[1].id) == entries[2:]
        assert journal.since(tx, limit=2) == entries[:2]
        assert journal.latest(tx, limit=2) == entries[2:]


# Loss of the database.


def test_a_lost_connection_is_transient_and_the_next_call_works(store: Store) -> None:

    def killed_midway() -> None:
        with store.read() as killer, store.write() as tx:
            a_slot(tx)
            pid = tx.execute(text("SELECT pg_backend_pid()")).scalar_one()
            assert killer.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid}).scalar_one()
            a_slot(tx)

    with pytest.raises(Transient, match="database: "):
        killed_midway()
    with store.write() as tx:
        assert workers.live(tx) == []
        a_slot(tx)


def test_all_idle_connections_lost_cost_one_call_at_most(store: Store) -> None:
    with store.read(), store.read(), store.read() as last:
        last.execute(
            text("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                 " AND datname = current_database()")
        )  # fmt: skip
    failures = 0
    for _ in range(4):
        try:
            with store.write() as tx:
                a_slot(tx)
        except Transient:
            failures += 1
    assert failures <= 1
    with store.read() as tx:
        assert len(workers.live(tx)) == 4 - failures
    store.engine.dispose()  # leaves no broken connection to the next test


def test_a_statement_that_takes_too_long_is_transient(store: Store) -> None:
    with store.engine.connect() as tx:
        tx.execute(text("SET statement_timeout = 200"))  # long enough for the ROLLBACK of a busy machine
        with pytest.raises(Transient, match="statement timeout"), translated():
            tx.execute(text("SELECT pg_sleep(5)"))


def test_a_lock_timeout_is_transient(store: Store) -> None:
    with store.write() as tx:
        slot = a_slot(tx)
    with store.write() as holder, store.engine.connect() as tx:
        workers.get_for_update(holder, slot.id)
        tx.execute(text("SET lock_timeout = 50"))
        with pytest.raises(Transient, match="lock timeout"), translated():
            workers.get_for_update(tx, slot.id)


def test_a_deadlock_is_transient(store: Store) -> None:
    """Two transactions that wait for each other: Postgres ends one of them, and the other
    continues.
    """
    together, ended = threading.Barrier(2), []
    with store.write() as tx:
        slots = [a_slot(tx).id, a_slot(tx).id]

    def locking(first: WorkerId, second: WorkerId) -> None:
        try:
            with store.write() as tx:
                tx.execute(text("SET deadlock_timeout = '10ms'"))
                workers.get_for_update(tx, first)
                together.wait(10)
                workers.get_for_update(tx, second)
            ended.append("fine")
        except Transient as exc:
            ended.append(str(exc))

    threads = [threading.Thread(target=locking, args=order) for order in (slots, slots[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(ended) == ["database: deadlock detected", "fine"]


def test_a_connection_whose_server_became_read_only_is_not_used_again(store: Store) -> None:
    """After a failover the old primary is a standby, and its connections may still be open."""
    again = connect(store.engine.url.render_as_string(hide_password=False), connections=2)
    rule = RuleConnection(again)
    statement = "UPDATE clock SET shift_s = shift_s + %s::float8 RETURNING 'written'"
    with again.read() as tx, again.read() as other:
        for each in (tx, other):
            each.exec_driver_sql("SET default_transaction_read_only = on")
    with pytest.raises(Transient, match="read-only"):
        rule.ask(statement, "0")
    assert rule.ask(statement, "0") == "written"
    with again.read() as tx, again.read() as other:
        for each in (tx, other):
            each.exec_driver_sql("SET default_transaction_read_only = on")
    with pytest.raises(Transient, match="read-only"):
        again.ask(statement, "0")
    with again.read() as tx, again.read() as other:
        for each in (tx, other):
            assert each.exec_driver_sql(statement, ("0",)).scalar_one() == "written"
    rule.close()
    again.close()


def test_behind_a_pooler_limits_apply_in_each_transaction_and_nothing_is_prepared(store: Store) -> None:
    again = connect(
        store.engine.url.render_as_string(hide_password=False), call_timeout_s=7, pooler=True, connections=1
    )
    with again.write() as tx:
        assert tx.execute(text("SHOW statement_timeout")).scalar_one() == "7s"
        assert tx.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one() == "3s"
    with again.read() as tx:
        assert tx.execute(text("SHOW statement_timeout")).scalar_one() == "0"
    for _ in range(10):
        with again.read() as tx:
            tx.execute(text("SELECT 1"))
    rule = RuleConnection(again)
    for _ in range(3):
        assert rule.ask("SELECT %s::text", "x") == "x"
    assert rule.ask("SELECT count(*)::text FROM pg_prepared_statements WHERE %s <> ''", "x") == "0"
    rule.close()
    again.close()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_of_a_postgres_url_reaches_the_database(store: Store, scheme: str) -> None:
    _, _, rest = store.engine.url.render_as_string(hide_password=False).partition("://")
    again = connect(f"{scheme}://{rest}")
    assert ping(again).startswith("Postgres ")
    again.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///pool.db", r"^database_url: must be postgresql://"),
        ("mysql+pymysql://u:secret@h/d", r"^database_url: must be postgresql://"),
        ("secret", r"^database_url: must be postgresql://"),
        ("postgresql://u:secret@h1:5432,h2:x/d", r"^database_url: must be postgresql://"),
        ("postgresql://u:secret@h1,,h2/d", r"^database_url: must be postgresql://"),
        ("postgresql://u:secret@h1:99999/d", r"^database_url: must be postgresql://"),
    ],
)
def test_a_url_that_is_not_postgres_is_refused_with_the_fields_name(url: str, said: str) -> None:
    with pytest.raises(PoolError, match=said) as refused:
        connect(url)
    assert "secret" not in str(refused.value)
