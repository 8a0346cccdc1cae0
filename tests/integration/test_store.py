"""The store's contract, over both backends."""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, text, update

from pool.contract import Acquire, RefusedAnswer
from pool.errors import Transient
from pool.ids import ClaimId, OrgId, ProfileName, RequestPk, WorkerId
from pool.records import By, Claim, Held, Org, ReplyTo, Request, Seen
from pool.settings import OrgDefaults, Profile
from pool.states import ClaimEnd, Condition, Outcome, Reason, RequestState, Source, State
from pool.store import (
    Store,
    Tx,
    breakers,
    claims,
    journal,
    lane,
    orgs,
    passes,
    requests,
    schema,
    suspects,
    workers,
)
from pool.store.errors import translated
from pool.store.sql import at as given_instant
from pool.store.workers import Fence, Holder, PodFacts

BY = By(who="tester", why="test")
ACME, BOLT = OrgId("acme"), OrgId("bolt")
DEFAULT = ProfileName("default")
MISS = RefusedAnswer(reason=Reason.NO_WARM_WORKER)

_numbers = itertools.count(1)


def close(span: timedelta, seconds: float) -> bool:
    """The same to the tenth: Postgres' clock moves on within a statement."""
    return abs(span.total_seconds() - seconds) < 0.1


# Builders: rows as the store itself makes them.


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


def a_slot(tx: Tx, profile: str = "default") -> Seen:
    worker_id = WorkerId(f"w-{next(_numbers):04d}")
    orgs.take_slots(tx, 1, 0)
    workers.insert_slots(tx, Profile(name=profile), "rev", [worker_id], BY)
    return seen(tx, worker_id)


def seen(tx: Tx, worker_id: WorkerId) -> Seen:
    found = workers.get(tx, worker_id)
    assert found is not None
    return found


def an_idle(tx: Tx, profile: str = "default") -> Seen:
    slot = a_slot(tx, profile)
    assert workers.ready(tx, slot, PodFacts(uid=f"u-{slot.id}", endpoint="http://x"), BY) is Outcome.MOVED
    return seen(tx, slot.id)


def a_claim(tx: Tx, org: str = "acme", *, counted: bool = False, lease_s: int = 30) -> Claim:
    """A hot worker with a leased claim."""
    idle = an_idle(tx)
    held = Held(worker_id=idle.id, claim_id=ClaimId(f"c-{idle.id}"), epoch=idle.epoch + 1)
    assert workers.take(tx, idle, State.HOT, Holder(org=OrgId(org), held=held), BY) is Outcome.MOVED
    return claims.begin(
        tx,
        leased=True,
        lease_s=lease_s,
        id=held.claim_id,
        worker_id=idle.id,
        org=org,
        profile="default",
        request_pk=f"r-{idle.id}",
        epoch=held.epoch,
        source=Source.WARM,
        counted=counted,
    )


def a_parked(tx: Tx, org: str = "acme", *, ttl_s: int = 60, counted: bool = False) -> Seen:
    claim = a_claim(tx, org)
    claims.end(tx, claim.id, ClaimEnd.RELEASED)
    assert workers.park(tx, seen(tx, claim.worker_id), ttl_s, BY, counted=counted) is Outcome.MOVED
    return seen(tx, claim.worker_id)


def asked(org: str = "acme", request_id: str = "", **given: Any) -> Acquire:
    arguments = {"org": org, "request_id": request_id or f"id-{next(_numbers)}", **given}
    return Acquire.parse(arguments, task_id="t", ttl_max_s=600)


def a_request(tx: Tx, org: str = "acme", **given: Any) -> Request:
    pk = RequestPk(f"r-{next(_numbers):04d}")
    assert requests.insert(tx, pk, asked(org, **given), ReplyTo(task_id=f"task-{pk}"))
    return a_row(tx, pk)


def a_waiter(tx: Tx, org: str = "acme", **given: Any) -> Request:
    return a_request(tx, org, **{"wait_s": 30, **given})


def a_row(tx: Tx, pk: RequestPk) -> Request:
    found = requests.get(tx, pk)
    assert found is not None
    return found


# The clock and the transaction.


def test_the_time_is_the_databases_and_can_be_shifted(store: Store) -> None:
    before = store.now()
    assert before.tzinfo is UTC
    pass_time(store, 3600)
    assert timedelta(seconds=3600) <= store.now() - before < timedelta(seconds=3660)
    pass_time(store, -3600.5)
    assert store.now() - before < timedelta(seconds=60)


def test_what_is_written_bears_the_shifted_time(store: Store) -> None:
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
def test_an_instant_comes_back_as_it_went(store: Store, instant: datetime) -> None:
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


def test_a_move_from_what_was_seen_succeeds_once(store: Store) -> None:
    with store.write() as tx:
        slot = a_slot(tx)
        pod = PodFacts(uid="u", endpoint="http://x", node="n")
        assert workers.ready(tx, slot, pod, BY) is Outcome.MOVED
        assert workers.ready(tx, slot, pod, BY) is Outcome.FENCED
        row = seen(tx, slot.id)
        assert (row.state, row.pod_uid, row.endpoint, row.node) == (State.IDLE, "u", "http://x", "n")
        assert len(journal.of(tx, slot.id)) == 2


def test_a_move_of_another_epoch_is_fenced(store: Store) -> None:
    with store.write() as tx:
        idle = an_idle(tx)
        for epoch in (idle.epoch - 1, idle.epoch + 1):
            fence = Fence(worker_id=idle.id, epoch=epoch, states=frozenset({State.IDLE}))
            assert workers.move(tx, fence, State.DRAINING, BY) is Outcome.FENCED
        assert seen(tx, idle.id) == idle


def test_a_move_of_nobody_is_gone(store: Store) -> None:
    with store.write() as tx:
        fence = Fence(worker_id=WorkerId("w-none"), epoch=0, states=frozenset({State.IDLE}))
        assert workers.move(tx, fence, State.DRAINING, BY) is Outcome.GONE


def test_a_stale_holder_moves_nothing(store: Store) -> None:
    with store.write() as tx:
        an_org(tx)
        claim = a_claim(tx)
        stale = seen(tx, claim.worker_id)
        claims.end(tx, claim.id, ClaimEnd.RELEASED)
        workers.park(tx, stale, 60, BY, counted=False)
        parked = seen(tx, claim.worker_id)
        held = Held(worker_id=parked.id, claim_id=ClaimId("c-2"), epoch=parked.epoch + 1)
        workers.take(tx, parked, State.HOT, Holder(org=ACME, held=held), BY)
        assert workers.leave(tx, stale, State.DRAINING, BY) is Outcome.FENCED
        assert workers.park(tx, stale, 60, BY, counted=False) is Outcome.FENCED
        assert workers.beat(tx, claim.held) is Outcome.FENCED
        assert workers.beat(tx, held) is Outcome.MOVED
        assert seen(tx, parked.id).claim_id == "c-2"


def test_every_change_of_holder_raises_the_epoch(store: Store) -> None:
    with store.write() as tx:
        an_org(tx)
        parked = a_parked(tx)
        assert parked.epoch == 2
        held = Held(worker_id=parked.id, claim_id=ClaimId("c-2"), epoch=parked.epoch + 1)
        workers.take(tx, parked, State.HOT, Holder(org=ACME, held=held), BY)
        workers.leave(tx, seen(tx, parked.id), State.DRAINING, BY)
        assert seen(tx, parked.id).epoch == 4
        assert seen(tx, parked.id).claim_id is None
        assert [e.epoch for e in journal.of(tx, parked.id)] == [0, 0, 1, 2, 3, 4]


def test_leaving_the_parking_clears_its_clock(store: Store) -> None:
    with store.write() as tx:
        parked = a_parked(tx, counted=True)
        assert parked.hot_idle_until is not None
        assert parked.hot_idle_since is not None
        assert close(parked.hot_idle_until - parked.hot_idle_since, 60)
        workers.leave(tx, parked, State.DRAINING, BY)
        row = seen(tx, parked.id)
        assert (row.hot_idle_since, row.hot_idle_until, row.parked_counted) == (None, None, False)


def test_a_busy_worker_is_marked_as_leaving_once_and_others_never(store: Store) -> None:
    with store.write() as tx:
        idle, claim = an_idle(tx), a_claim(tx)
        drain = By(who="guard", why="node drained")
        assert workers.mark_leaving(tx, idle.id, drain) is Outcome.FENCED
        assert workers.mark_leaving(tx, claim.worker_id, drain) is Outcome.MOVED
        assert workers.mark_leaving(tx, claim.worker_id, BY) is Outcome.FENCED
        assert workers.leaving_of(tx, [claim.id, ClaimId("c-none")]) == {claim.id: "node drained"}
        assert journal.of(tx, claim.worker_id)[-1].why == "leaving: node drained"


def test_silence_is_measured_from_the_last_beat(store: Store) -> None:
    with store.write() as tx:
        claim = a_claim(tx)
        assert not workers.is_silent(tx, claim.worker_id, for_s=15)
    pass_time(store, 16)
    with store.write() as tx:
        assert workers.is_silent(tx, claim.worker_id, for_s=15)
        workers.beat(tx, claim.held)
        assert not workers.is_silent(tx, claim.worker_id, for_s=15)


def test_notes_are_fenced_like_moves(store: Store) -> None:
    with store.write() as tx:
        slot = a_slot(tx)
        assert workers.has_pod(tx, slot, PodFacts(uid="u")) is Outcome.MOVED
        assert workers.sent_again(tx, slot) is Outcome.MOVED
        workers.leave(tx, slot, State.DRAINING, BY)
        assert workers.has_pod(tx, slot, PodFacts(uid="u")) is Outcome.FENCED
        assert workers.sent_again(tx, slot) is Outcome.FENCED


# Picking and listing.


def test_the_idle_worker_that_was_ready_first_is_picked(store: Store) -> None:
    with store.write() as tx:
        an_idle(tx, "big")
        later_slot, first = a_slot(tx), an_idle(tx)
    pass_time(store, 1)
    with store.write() as tx:
        workers.ready(tx, later_slot, PodFacts(uid="u", endpoint="http://x"), BY)
        picked = workers.pick_idle(tx, DEFAULT)
        assert picked is not None
        assert picked.id == first.id
        assert workers.pick_idle(tx, ProfileName("none")) is None


def test_the_worker_parked_last_is_picked_and_only_for_its_org(store: Store) -> None:
    with store.write() as tx:
        a_parked(tx)
    pass_time(store, 1)
    with store.write() as tx:
        last = a_parked(tx)
        a_parked(tx, "bolt")
        picked = workers.pick_parked(tx, ACME, DEFAULT)
        assert picked is not None
        assert picked.id == last.id
        assert workers.pick_parked(tx, OrgId("cats"), DEFAULT) is None
        assert workers.pick_parked(tx, ACME, ProfileName("big")) is None


def test_parked_workers_past_their_end_are_listed_by_how_long_they_are(store: Store) -> None:
    with store.write() as tx:
        long, short, middle = a_parked(tx, ttl_s=90), a_parked(tx, ttl_s=10), a_parked(tx, ttl_s=20)
    pass_time(store, 30)
    with store.read() as tx:
        assert [w.id for w in workers.parked_past_end(tx, limit=9)] == [short.id, middle.id]
        assert [w.id for w in workers.parked_past_end(tx, limit=1)] == [short.id]
        assert {w.id for w in workers.oldest_parked(tx, ACME, limit=9)} == {long.id, short.id, middle.id}


def test_lists_by_age_take_the_oldest_and_nothing_younger(store: Store) -> None:
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
        assert workers.young_slots(tx, DEFAULT, younger_than_s=50) == {young_slot.id}
        assert workers.young_slots(tx, DEFAULT, younger_than_s=150) == {old_slot.id, young_slot.id}
        assert workers.counts(tx) == {
            (DEFAULT, State.IDLE): 2,
            (DEFAULT, State.SPAWNING): 2,
            (DEFAULT, State.DRAINING): 1,
        }
        workers.has_pod(tx, old_slot, PodFacts(uid="u"))
        assert workers.unsent_slots(tx, older_than_s=50, limit=9) == []
        assert young_slot.id in workers.ids_in_state(tx, DEFAULT, State.SPAWNING)


# Counters.


@pytest.mark.parametrize(
    ("cap", "wanted", "granted"),
    [(0, 10_000, 10_000), (5, 3, 3), (5, 9, 5), (5, 0, 0), (5, -1, 0)],
)
def test_slots_are_taken_as_far_as_the_cap_allows(store: Store, cap: int, wanted: int, granted: int) -> None:
    with store.write() as tx:
        assert orgs.take_slots(tx, wanted, cap) == granted
        assert orgs.pool_row(tx).live == granted


def test_slots_beyond_a_cap_that_was_lowered_are_neither_given_nor_taken_away(store: Store) -> None:
    with store.write() as tx:
        orgs.take_slots(tx, 5, 0)
        assert orgs.take_slots(tx, 1, 3) == 0
        assert orgs.pool_row(tx).live == 5
        orgs.give_slot(tx)
        assert orgs.take_slots(tx, 3, 6) == 2


def test_claims_are_counted_up_to_the_cap(store: Store) -> None:
    with store.write() as tx:
        org = an_org(tx, cap=2)
        assert [orgs.take_claim(tx, org) for _ in range(3)] == [True, True, None]
        orgs.give_claim(tx, ACME)
        assert orgs.take_claim(tx, org) is True


def test_an_org_without_a_cap_is_not_counted(store: Store) -> None:
    with store.write() as tx:
        org = an_org(tx)
        assert [orgs.take_claim(tx, org) for _ in range(3)] == [False, False, False]
        found = orgs.get(tx, ACME)
        assert found is not None
        assert found.in_use == 0


def test_a_cap_that_went_while_we_looked_does_not_refuse(store: Store) -> None:
    with store.write() as tx:
        org = an_org(tx, cap=1)
        orgs.take_claim(tx, org)
        orgs.change(tx, ACME, {"cap": 0})
        assert orgs.take_claim(tx, org) is False


def test_a_cap_that_comes_counts_what_lives_already(store: Store) -> None:
    with store.write() as tx:
        an_org(tx)
        a_claim(tx)
        ended = a_claim(tx)
        claims.end(tx, ended.id, ClaimEnd.RELEASED)
        workers.leave(tx, seen(tx, ended.worker_id), State.DRAINING, BY)
        a_parked(tx)
        a_claim(tx, "bolt")
        orgs.change(tx, ACME, {"cap": 5, "hot_idle_floor": 1})
        org = orgs.get(tx, ACME)
        assert org is not None
        assert (org.in_use, org.parked) == (1, 1)
        assert orgs.count_uncounted(tx, ACME) == 0
        assert orgs.miscounted(tx) == []


def test_claims_granted_beside_a_change_are_found_and_counted(store: Store) -> None:
    with store.write() as tx:
        an_org(tx, cap=5, hot_idle_cap=2)
        an_org(tx, "bolt")
        a_claim(tx, counted=False)
        a_parked(tx, counted=False)
        a_claim(tx, "bolt", counted=False)
        assert orgs.uncounted(tx) == [ACME]
        assert orgs.count_uncounted(tx, ACME) == 2
        assert orgs.uncounted(tx) == []
        assert orgs.count_uncounted(tx, OrgId("nobody")) == 0


@pytest.mark.parametrize(
    ("floor", "cap", "parked", "given"),
    [
        (0, 3, 1, True),
        (2, 0, 2, False),
        (2, 0, 3, True),
        (3, 2, 3, True),  # the cap beats the floor
        (3, 2, 2, False),
        (3, 5, 3, False),
    ],
)
def test_a_parked_worker_goes_only_above_its_orgs_floor(
    store: Store, floor: int, cap: int, parked: int, given: bool
) -> None:
    with store.write() as tx:
        org = an_org(tx, hot_idle_floor=floor, hot_idle_cap=cap)
        assert all(orgs.take_park(tx, org) for _ in range(parked))
        assert orgs.give_park_above_floor(tx, ACME) is given
        found = orgs.get(tx, ACME)
        assert found is not None
        assert found.parked == parked - given
        assert [o.id for o in orgs.capped_parking(tx)] == ([ACME] if cap and found.parked > cap else [])


def test_parking_is_not_counted_without_a_floor_or_a_cap(store: Store) -> None:
    with store.write() as tx:
        assert orgs.take_park(tx, an_org(tx)) is False
        assert orgs.take_park(tx, an_org(tx, "bolt", hot_idle_floor=1)) is True
        orgs.give_park(tx, BOLT)
        assert [o.parked for o in orgs.every(tx)] == [0, 0]


def test_what_the_table_says_of_an_org_rules_over_the_seed(store: Store) -> None:
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
def test_a_counter_that_is_not_what_it_counts_is_told(store: Store, tampering: str, sentence: str) -> None:
    with store.write() as tx:
        org = an_org(tx, cap=5, hot_idle_floor=1)
        a_claim(tx, counted=bool(orgs.take_claim(tx, org)))
        a_parked(tx, counted=orgs.take_park(tx, org))
        assert orgs.miscounted(tx) == []
        tx.execute(text(tampering))
        assert orgs.miscounted(tx) == [sentence]


def test_the_pool_can_be_paused(store: Store) -> None:
    with store.write() as tx:
        assert not orgs.pool_row(tx).paused
        orgs.pause(tx, paused=True)
        assert orgs.pool_row(tx).paused


# Requests.


def test_a_request_is_inserted_once_for_an_org(store: Store) -> None:
    with store.write() as tx:
        reply = ReplyTo(task_id="t-1", address="list")
        assert requests.insert(tx, RequestPk("r-1"), asked(request_id="same"), reply)
        assert not requests.insert(tx, RequestPk("r-2"), asked(request_id="same"), reply)
        assert requests.insert(tx, RequestPk("r-3"), asked("bolt", request_id="same"), reply)
        found = requests.find(tx, ACME, "same")
        assert found is not None
        assert (found.pk, found.state, found.replies) == ("r-1", RequestState.WAITING, (reply,))
        assert requests.find_unlocked(tx, ACME, "other") is None


def test_a_refused_request_is_reopened_as_new(store: Store) -> None:
    with store.write() as tx:
        first = a_waiter(tx)
        assert requests.refuse(
            tx, first.pk, RefusedAnswer(reason=Reason.ORG_CAP, detail="full", retry_after_s=1.0)
        )
    pass_time(store, 100)
    with store.write() as tx:
        requests.reopen(tx, a_row(tx, first.pk), ReplyTo(task_id="another"))
        again = a_row(tx, first.pk)
    assert again.state is RequestState.WAITING
    assert (again.reason, again.detail, again.retry_after_s, again.decided_at) == (None, None, None, None)
    assert again.created_at - first.created_at >= timedelta(seconds=100)
    assert close(again.deadline_at - again.created_at, 30)
    assert again.replies == (ReplyTo(task_id="another"),)


def test_a_request_is_decided_once(store: Store) -> None:
    with store.write() as tx:
        request = a_waiter(tx)
        assert requests.grant(tx, request.pk, ClaimId("c-1"))
        assert not requests.grant(tx, request.pk, ClaimId("c-2"))
        assert not requests.refuse(tx, request.pk, MISS)
        assert not requests.bind(tx, request.pk, ClaimId("c-2"))
        assert a_row(tx, request.pk).claim_id == "c-1"
        requests.spend(tx, request.pk, ClaimId("c-other"))
        assert a_row(tx, request.pk).state is RequestState.GRANTED
        requests.spend(tx, request.pk, ClaimId("c-1"))
        assert a_row(tx, request.pk).state is RequestState.SPENT


def test_a_waiter_past_its_deadline_is_not_served_but_what_is_being_bound_is(store: Store) -> None:
    with store.write() as tx:
        an_org(tx)
        late, binding, immediate = a_waiter(tx), a_waiter(tx), a_request(tx)
        assert requests.bind(tx, binding.pk, ClaimId("c-1"))
    pass_time(store, 31)
    with store.write() as tx:
        assert not requests.bind(tx, late.pk, ClaimId("c-2"))
        assert not requests.grant(tx, late.pk, ClaimId("c-2"))
        assert requests.grant(tx, binding.pk, ClaimId("c-1"))
        assert requests.grant(tx, immediate.pk, ClaimId("c-3"))
        assert requests.overdue(tx, limit=9) == [late.pk]
        assert requests.is_overdue(tx, late.pk)
        assert not requests.is_overdue(tx, binding.pk)


def test_an_activation_that_failed_waits_again_and_is_counted(store: Store) -> None:
    with store.write() as tx:
        request = a_waiter(tx)
        assert not requests.wait_again(tx, request.pk)
        requests.bind(tx, request.pk, ClaimId("c-1"))
        assert requests.wait_again(tx, request.pk)
        row = a_row(tx, request.pk)
        assert (row.state, row.attempts, row.claim_id) == (RequestState.WAITING, 1, None)


def test_replies_are_added_once_each(store: Store) -> None:
    with store.write() as tx:
        request = a_waiter(tx)
        requests.add_reply(tx, request, ReplyTo(task_id="second"))
        requests.add_reply(tx, a_row(tx, request.pk), ReplyTo(task_id="second"))
        assert [r.task_id for r in a_row(tx, request.pk).replies] == [f"task-{request.pk}", "second"]


def test_what_was_decided_but_not_replied_is_listed_until_it_is(store: Store) -> None:
    with store.write() as tx:
        open_one, decided = a_waiter(tx), a_waiter(tx)
        requests.refuse(tx, decided.pk, MISS)
        assert requests.unreplied(tx, older_than_s=3, limit=9) == []
    pass_time(store, 4)
    with store.write() as tx:
        assert requests.unreplied(tx, older_than_s=3, limit=9) == [decided.pk]
        requests.mark_replied(tx, [decided.pk, open_one.pk])
        assert requests.unreplied(tx, older_than_s=3, limit=9) == []
        assert a_row(tx, open_one.pk).replied_at is None


def test_the_queue_serves_the_least_use_for_its_weight_first(store: Store) -> None:
    """acme uses 2 of weight 1, bolt 2 of weight 4, cats is capped and its counter says 1 of weight 1."""
    with store.write() as tx:
        an_org(tx)
        an_org(tx, "bolt", weight=4.0)
        an_org(tx, "cats", cap=3, in_use=1)
        for org in ("acme", "bolt"):
            a_claim(tx, org)
            a_claim(tx, org)
        for org in ("acme", "cats", "bolt"):
            a_waiter(tx, org)
        queue = requests.queue(tx, DEFAULT)
    assert [(q.org, q.usage) for q in queue] == [("bolt", 0.5), ("cats", 1.0), ("acme", 2.0)]


def test_the_queue_breaks_ties_by_the_oldest_wait_and_is_fifo_within_an_org(store: Store) -> None:
    order = []
    for org in ("bolt", "acme", "bolt", "acme"):
        with store.write() as tx:
            an_org(tx, org)
            order.append(a_waiter(tx, org).pk)
        pass_time(store, 1)
    with store.write() as tx:
        assert [q.org for q in requests.queue(tx, DEFAULT)] == ["bolt", "acme"]
        first = requests.next_of(tx, DEFAULT, BOLT)
        assert first is not None
        assert first.pk == order[0]
        requests.refuse(tx, first.pk, MISS)
        assert [q.org for q in requests.queue(tx, DEFAULT)] == ["acme", "bolt"]
        second = requests.next_of(tx, DEFAULT, BOLT)
        assert second is not None
        assert second.pk == order[2]


def test_only_eligible_waiters_are_seen(store: Store) -> None:
    """Not of another profile, not past the deadline, not of an org at its cap."""
    with store.write() as tx:
        an_org(tx)
        an_org(tx, "bolt", cap=1, in_use=1)
        an_org(tx, "cats")
        a_waiter(tx, "acme", wait_s=10)
        a_waiter(tx, "bolt")
        a_waiter(tx, "cats", profile="big")
        assert [q.org for q in requests.queue(tx, DEFAULT)] == [ACME]
        assert requests.count_waiting(tx, DEFAULT) == 1
        assert requests.anyone_waiting(tx, DEFAULT)
        assert requests.next_of(tx, DEFAULT, BOLT) is None
        assert requests.profiles_waited_for(tx, OrgId("cats")) == ["big"]
        assert [(w["org"], w["waiting"]) for w in requests.waiting(tx)] == [
            ("acme", 1),
            ("bolt", 1),
            ("cats", 1),
        ]
    pass_time(store, 11)
    with store.write() as tx:
        assert not requests.anyone_waiting(tx, DEFAULT)
        orgs.give_claim(tx, BOLT)
        assert [q.org for q in requests.queue(tx, DEFAULT)] == [BOLT]


def test_who_waits_before_a_request_is_an_earlier_one_of_its_org_and_profile(store: Store) -> None:
    with store.write() as tx:
        an_org(tx)
        an_org(tx, "bolt")
        first = a_waiter(tx, "acme", wait_s=10)
    pass_time(store, 1)
    with store.write() as tx:
        later = a_waiter(tx, "acme")
        others = [a_waiter(tx, "bolt"), a_waiter(tx, "acme", profile="big")]
        assert [r.pk for r in (first, later, *others) if requests.waits_before(tx, r)] == [later.pk]
    pass_time(store, 11)
    with store.write() as tx:
        assert not requests.waits_before(tx, later)


# Misses.


def test_a_miss_counts_once_per_request_however_often_it_is_refused(store: Store) -> None:
    with store.write() as tx:
        request = a_request(tx)
        for _ in range(3):
            requests.refuse(tx, request.pk, MISS)
            requests.reopen(tx, a_row(tx, request.pk), ReplyTo(task_id="t"))
        requests.refuse(tx, request.pk, MISS)
        assert requests.fresh_misses(tx, DEFAULT, fresh_s=60) == [request.pk]
        requests.consume_misses(tx, [request.pk])
        assert requests.fresh_misses(tx, DEFAULT, fresh_s=60) == []
        requests.reopen(tx, a_row(tx, request.pk), ReplyTo(task_id="t"))
        requests.refuse(tx, request.pk, MISS)
        assert requests.fresh_misses(tx, DEFAULT, fresh_s=60) == []


@pytest.mark.parametrize(
    ("reason", "counts"), [(r, r in {Reason.NO_WARM_WORKER, Reason.POOL_CAP}) for r in Reason]
)
def test_only_what_a_worker_would_have_helped_is_a_miss(store: Store, reason: Reason, counts: bool) -> None:
    with store.write() as tx:
        request = a_request(tx)
        requests.refuse(tx, request.pk, RefusedAnswer(reason=reason))
        assert bool(requests.fresh_misses(tx, DEFAULT, fresh_s=60)) is counts


def test_a_miss_goes_stale_and_a_new_refusal_makes_it_fresh(store: Store) -> None:
    with store.write() as tx:
        request = a_request(tx)
        requests.refuse(tx, request.pk, MISS)
    pass_time(store, 61)
    with store.write() as tx:
        assert requests.fresh_misses(tx, DEFAULT, fresh_s=60) == []
        requests.reopen(tx, a_row(tx, request.pk), ReplyTo(task_id="t"))
        requests.refuse(tx, request.pk, MISS)
        assert requests.fresh_misses(tx, DEFAULT, fresh_s=60) == [request.pk]
        assert requests.fresh_misses(tx, ProfileName("big"), fresh_s=60) == []


# Claims.


def test_live_claims_are_renewed_together_and_ended_ones_are_not(store: Store) -> None:
    with store.write() as tx:
        first, second, ended = a_claim(tx, lease_s=30), a_claim(tx, lease_s=60), a_claim(tx)
        claims.end(tx, ended.id, ClaimEnd.RELEASED)
    pass_time(store, 20)
    with store.write() as tx:
        at = store.now()
        renewed = claims.renew(tx, [second.id, first.id, ended.id, ClaimId("c-none")])
        assert renewed.keys() == {first.id, second.id}
        assert abs(renewed[first.id] - at - timedelta(seconds=30)) < timedelta(seconds=5)
        assert abs(renewed[second.id] - at - timedelta(seconds=60)) < timedelta(seconds=5)
        assert claims.renew(tx, []) == {}


def test_a_claim_that_is_not_hot_has_no_lease_to_renew(store: Store) -> None:
    with store.write() as tx:
        an_org(tx)
        idle = an_idle(tx)
        begun = claims.begin(
            tx,
            leased=False,
            lease_s=30,
            id="c-1",
            worker_id=idle.id,
            org="acme",
            profile="default",
            request_pk="r",
            epoch=1,
            source=Source.WARM,
            counted=False,
        )
        assert begun.lease_expires_at is None
        assert claims.renew(tx, [begun.id]) == {}
        started = claims.start_lease(tx, begun.id)
        assert started is not None
        assert started.lease_expires_at is not None
        assert claims.start_lease(tx, begun.id) is None
        assert claims.renew(tx, [begun.id]).keys() == {begun.id}


def test_a_claim_ends_once(store: Store) -> None:
    with store.write() as tx:
        claim = a_claim(tx)
        ended = claims.end(tx, claim.id, ClaimEnd.RELEASED)
        assert ended is not None
        assert ended.ended_why == ClaimEnd.RELEASED
        assert claims.end(tx, claim.id, ClaimEnd.EXPIRED) is None
        assert claims.end(tx, ClaimId("c-none"), ClaimEnd.EXPIRED) is None
        assert claims.live_of(tx, ACME) == []
        assert not claims.abandon(tx, claim.id, Condition.CLEAN)


def test_a_lease_runs_out_only_after_a_whole_lease_of_open_lane(store: Store) -> None:
    with store.write() as tx:
        claim = a_claim(tx, lease_s=30)
        lane.canary_answered(tx, gap_s=10)
    pass_time(store, 100)
    with store.write() as tx:
        assert not lane.lane_is_open(tx, gap_s=10)
        lane.canary_answered(tx, gap_s=10)  # after a gap: the lane opens anew
        assert lane.lane_is_open(tx, gap_s=10)
        assert claims.expired(tx, limit=9) == []
        assert claims.end(tx, claim.id, ClaimEnd.EXPIRED) is None
    for _ in range(4):
        pass_time(store, 8)
        with store.write() as tx:
            lane.canary_answered(tx, gap_s=10)
    with store.write() as tx:
        assert [c.id for c in claims.expired(tx, limit=9)] == [claim.id]
        claims.renew(tx, [claim.id])
        assert claims.expired(tx, limit=9) == []
        assert claims.end(tx, claim.id, ClaimEnd.EXPIRED) is None


def test_a_lane_without_gaps_stays_open_since_its_beginning(store: Store) -> None:
    with store.write() as tx:
        lane.canary_answered(tx, gap_s=10)
        began = orgs.pool_row(tx).lane_open_since
    for _ in range(3):
        pass_time(store, 9)
        with store.write() as tx:
            lane.canary_answered(tx, gap_s=10)
    with store.read() as tx:
        assert orgs.pool_row(tx).lane_open_since == began


def test_a_wish_to_release_is_kept_once_and_ends_with_the_claim(store: Store) -> None:
    with store.write() as tx:
        claim = a_claim(tx)
        assert claims.ask_release(tx, claim.id, "tainted")
        assert not claims.ask_release(tx, claim.id, "clean")
        (kept,) = claims.unfinished_releases(tx, limit=9)
        assert (kept.id, kept.release_condition) == (claim.id, "tainted")
        claims.end(tx, claim.id, ClaimEnd.TAINTED)
        assert claims.unfinished_releases(tx, limit=9) == []
        assert not claims.ask_release(tx, claim.id, "clean")


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


def test_a_paused_pass_is_neither_attempted_nor_called_silent(store: Store) -> None:
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


def test_failures_in_a_row_are_counted_and_a_success_ends_the_row(store: Store) -> None:
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
    pods, rows = suspects.Kind.STAMPED_POD, suspects.Kind.ROW_WITHOUT_POD
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
        suspects.note(tx, pods, "w-2", "held")
        suspects.forget(tx, pods, "w-1")
        assert suspects.every(tx, pods) == [("stamped_pod", "w-2", 1, "held")]


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
def test_a_journal_that_does_not_replay_to_the_table_is_told(
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


# Losing the database.


def test_a_lost_connection_is_transient_and_the_next_call_works(postgres_store: Store) -> None:
    store = postgres_store

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


def test_all_idle_connections_lost_cost_one_call_at_most(postgres_store: Store) -> None:
    store = postgres_store
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
    store.engine.dispose()  # a lost one that nobody has met yet is not left to the next test


def test_a_statement_that_takes_too_long_is_transient(postgres_store: Store) -> None:
    with postgres_store.engine.connect() as tx:
        tx.execute(text("SET statement_timeout = 200"))  # so long that a busy machine's ROLLBACK fits in
        with pytest.raises(Transient, match="statement timeout"), translated():
            tx.execute(text("SELECT pg_sleep(5)"))


def test_a_lock_that_is_not_given_up_is_transient(postgres_store: Store) -> None:
    with postgres_store.write() as tx:
        slot = a_slot(tx)
    with postgres_store.write() as holder, postgres_store.engine.connect() as tx:
        workers.get_for_update(holder, slot.id)
        tx.execute(text("SET lock_timeout = 50"))
        with pytest.raises(Transient, match="lock timeout"), translated():
            workers.get_for_update(tx, slot.id)


def test_a_deadlock_is_transient(postgres_store: Store) -> None:
    """Two transactions that wait for each other: Postgres ends one of them, and the other goes on."""
    store, together, ended = postgres_store, threading.Barrier(2), []
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


def test_a_locked_sqlite_is_transient(sqlite_store: Store) -> None:
    with sqlite_store.write(), sqlite_store.engine.execution_options(mode="single").connect() as other:
        other.exec_driver_sql("PRAGMA busy_timeout = 1")
        with pytest.raises(Transient, match="locked"), translated():
            other.exec_driver_sql("UPDATE pool SET live = live")
