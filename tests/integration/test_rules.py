"""The rules in the database, each where no other test would fail without it.
`tests/mutants/rules.py` removes them one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from pool.core.contract import Granted, Renew
from pool.core.errors import BrokenPromise
from pool.core.ids import ClaimId
from pool.core.states import ClaimEnd, MoveReason, State
from pool.lifecycle import claiming
from pool.lifecycle.deps import Deps
from pool.store import Tx, claims, rules, schema
from tests.support.open_store import OpenStore
from tests.support.racing import aside, is_blocked
from tests.support.world import World


def _execute(world: World, statement: str) -> None:
    with world.store.write() as tx:
        tx.execute(text(statement))


def test_the_worker_that_was_parked_last_is_granted_first(world: World) -> None:
    world.warm(3)
    held = [world.granted("acme") for _ in range(3)]
    for one in (held[1], held[2], held[0]):
        world.pass_time(1)
        world.release(one.claim_id)
    found = [world.granted("acme").worker_id for _ in range(3)]
    assert found == [held[0].worker_id, held[2].worker_id, held[1].worker_id]


def test_the_worker_that_was_ready_first_is_granted_first(world: World) -> None:
    first, second, third = world.warm(3)
    _execute(world, f"UPDATE workers SET ready_at = ready_at + interval '9 s' WHERE id = '{first}'")
    assert [world.granted("acme").worker_id for _ in range(3)] == [second, third, first]


def test_of_orgs_with_equal_use_the_one_that_waits_longest_is_served_first(world: World) -> None:
    world.profile(warm_target=0)
    for org in ("cord", "acme", "bolt"):
        world.waits(org, request_id=org)
        world.pass_time(1)
    world.warm(2)
    states = {r.request_id: r.state for r in world.rows("requests")}
    assert states == {"cord": "granted", "acme": "granted", "bolt": "waiting"}


def test_a_waiter_past_its_deadline_blocks_no_other_waiter(world: World) -> None:
    world.waits("acme", wait_s=5)
    world.pass_time(6)
    (worker,) = world.warm(1)
    assert world.granted("bolt").worker_id == worker


def test_a_miss_that_created_a_slot_is_not_counted_again(world: World) -> None:
    world.profile(warm_target=0)
    world.refused("acme", request_id="r")
    world.refill()
    assert len(world.workers(State.SPAWNING)) == 1
    (before,) = world.rows("requests")
    world.pass_time(5)
    world.refused("acme", request_id="r")
    (after,) = world.rows("requests")
    assert after.missed_at == before.missed_at
    assert after.decided_at > before.decided_at


def test_a_match_checks_the_cap_again_under_the_orgs_lock(world: World) -> None:
    """Another transaction takes the org's last place while the matcher waits for the org's row."""
    world.profile(warm_target=0)
    world.profile("big", warm_target=0)
    world.org("acme", cap=1)
    world.warm(1)
    other = world.granted("bolt")
    world.waits("acme", request_id="waiter")
    world.warm(1, "big")
    _idle_unseen(world, "w-idle")
    with world.store.write() as tx:
        deps, world.deps = world.deps, _inside(world, tx)
        world.granted("acme", profile="big")
        world.deps = deps
        release = aside(lambda: world.release(other.claim_id))
        is_blocked(world.store, release)
    assert release.result(10) == "released"
    assert [r.state for r in world.rows("requests") if r.request_id == "waiter"] == ["waiting"]
    assert {o.id: o.in_use for o in world.rows("orgs")}["acme"] == 1


def test_a_slot_becomes_ready_once(world: World) -> None:
    (worker,) = world.warm(1)
    granted = world.granted("acme")
    pod = {"uid": "u", "endpoint": "http://x", "node": "n"}
    asked = world.deps.rule_argument(worker_id=worker, pod=pod, patient=True)
    assert rules.call(world.store, "ready", asked) is None
    assert world.state_of(granted.worker_id) is State.HOT


def test_a_worker_that_must_leave_is_not_parked(world: World) -> None:
    (worker,) = world.warm(1)
    granted = world.granted("acme")
    _execute(
        world, f"UPDATE workers SET leaving_since = now(), leaving_reason = 'disrupted' WHERE id = '{worker}'"
    )
    assert world.release(granted.claim_id) == "released"
    assert world.state_of(worker) is State.DRAINING


def test_the_end_of_a_lost_worker_frees_its_place_in_the_pool(world: World) -> None:
    world.warm(2)
    granted = world.granted("acme")
    assert _end(world, granted, ClaimEnd.WORKER_LOST)
    assert world.state_of(granted.worker_id) is State.LOST
    assert [p.live for p in world.rows("pool")] == [1]


def test_a_claim_that_contradicts_its_workers_row_does_not_end(world: World) -> None:
    """Contradicting rows are a broken promise that is reported to operators, and nothing is derived
    from them.
    """
    world.warm(1)
    granted = world.granted("acme")
    _execute(world, "UPDATE workers SET state = 'draining', claim_id = NULL, epoch = epoch + 1")
    with pytest.raises(BrokenPromise, match="one live worker a claim"):
        _end(world, granted, ClaimEnd.WORKER_LOST)
    assert [c.ended_at for c in world.rows("claims")] == [None]


@pytest.mark.parametrize("lane", ["open", "just open"])
def test_a_claim_expires_only_when_the_lane_was_open_for_a_whole_lease(world: World, lane: str) -> None:
    world.warm(1)
    granted = world.granted("acme", lease_s=30)
    world.pass_time(40)
    if lane == "just open":
        _execute(world, rules.qualified("UPDATE pool SET lane_open_since = warmpool_now()"))
    assert bool(_end(world, granted, ClaimEnd.EXPIRED)) == (lane == "open")


def test_a_short_lease_outlives_an_outage_that_no_canary_shows(world: World) -> None:
    """The lane was closed for just less than two periods of reap. The holder renewed a third of its
    lease before that, and renews a third of its lease after it.
    """
    world.warm(2)
    short, default = world.granted("acme", lease_s=6), world.granted("acme", lease_s=30)
    world.pass_time(2 + 10 + 2 - 0.5)
    with world.store.read() as tx:
        assert claims.expired(tx, limit=9) == []
    assert _end(world, short, ClaimEnd.EXPIRED) is None
    world.pass_time(1)
    with world.store.read() as tx:
        assert [c.id for c in claims.expired(tx, limit=9)] == [short.claim_id]
    assert _end(world, short, ClaimEnd.EXPIRED)
    # The default lease is longer than such an outage and gets no more time.
    world.pass_time(30 - 2 - 10 - 2)
    with world.store.read() as tx:
        assert [c.id for c in claims.expired(tx, limit=9)] == [default.claim_id]


def test_a_silent_activation_that_was_resumed_is_not_ended(world: World) -> None:
    world.profile(activation_path="/configure")
    world.warm(1)
    world.acquire("acme", request_id="r")
    (worker,) = world.workers(State.RESERVED)
    why = {
        "claim_id": worker.claim_id,
        "why": "activation_failed",
        "reason": "activation_failed",
        "detail": "",
        "silent_s": 15,
    }
    assert rules.call(world.store, "end_claim", world.deps.rule_argument(**why)) is None
    world.pass_time(16)
    assert rules.call(world.store, "end_claim", world.deps.rule_argument(**why))


def test_a_binding_is_tried_on_the_allowed_number_of_workers_and_then_refused(world: World) -> None:
    world.configure(activation_tries=2)
    world.profile(activation_path="/configure", warm_target=0)
    world.warm(3)
    world.acquire("acme", request_id="r")
    for _ in range(2):
        (worker,) = world.workers(State.RESERVED)
        ending = {
            "claim_id": worker.claim_id,
            "why": "activation_failed",
            "reason": "activation_failed",
            "detail": "it failed",
        }
        assert rules.call(world.store, "end_claim", world.deps.rule_argument(**ending))
    (request,) = world.rows("requests")
    assert (request.state, request.reason) == ("refused", "activation_failed")
    assert len(world.workers(State.IDLE)) == 1


def test_renewals_lock_claims_in_the_order_of_their_ids(world: World) -> None:
    """Two callers that renew the same claims never deadlock."""
    world.org("acme")
    _execute(
        world,
        "INSERT INTO claims (id, worker_id, org, profile, request_pk, epoch, source, lease_s, created_at, hot_at, lease_expires_at, counted)"
        " SELECT 'c-' || n, 'w-' || n, 'acme', 'default', 'r-' || n, 1, 'warm', 30, now(), now(), now(), false FROM generate_series(1, 8) n",
    )
    asked = Renew(claim_ids=tuple(ClaimId(f"c-{n}") for n in (5, 8, 2, 7, 1, 3, 6, 4)))
    C = schema.claims
    with world.store.write() as tx:
        tx.execute(select(C).where(C.c.id == "c-1").with_for_update())
        renewal = aside(lambda: claiming.renew(world.deps, asked))
        is_blocked(world.store, renewal)
        try:
            tx.execute(select(C).where(C.c.id != "c-1").with_for_update(nowait=True))
        except DBAPIError as exc:
            pytest.fail(f"it has locked a later one: {exc}")
    assert len(renewal.result(10)["renewed"]) == 8
    _execute(world, "DELETE FROM claims")


def _end(world: World, granted: Granted, why: ClaimEnd) -> dict[str, Any] | None:
    with world.store.write() as tx:
        by = world.deps.by(MoveReason.LEASE_EXPIRED)
        return claims.end(tx, world.deps.rule_argument(), ClaimId(granted.claim_id), why, by)


def _idle_unseen(world: World, worker_id: str) -> None:
    """Create an idle worker that was not offered to any waiter."""
    slot = (
        "INSERT INTO workers (id, profile, image, revision, cpu_millicores, memory_mib, grace_s, state, created_at, state_since, moved_by,"
        f" moved_reason) VALUES ('{worker_id}', 'default', 'i', 'r', 1, 1, 1, 'spawning', now(), now(), 'test', 'demand')"
    )
    ready = "UPDATE workers SET state = 'idle', ready_at = now(), pod_uid = 'u', endpoint = 'http://x' WHERE state = 'spawning'"
    for statement in (slot, ready, "UPDATE pool SET live = live + 1"):
        _execute(world, statement)


def _inside(world: World, tx: Tx) -> Deps:
    return replace(world.deps, store=OpenStore(tx))  # type: ignore[arg-type]
