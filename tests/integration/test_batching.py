"""Many calls in one statement come to what they would have come to one after the other, and nobody's lock holds them up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import select, text

from pool import batching, claiming
from pool.batching import Asking, Decided
from pool.contract import Acquire, Granted, Release, Renew
from pool.ids import ClaimId, OrgId
from pool.records import ReplyTo
from pool.states import Condition, State
from pool.store import Store, lock_profile, schema
from tests.support.statements import statements
from tests.support.world import World


@pytest.fixture
def world(postgres_store: Store) -> World:
    return World(postgres_store)


def asking(org: str, request_id: str, **arguments: object) -> Asking:
    asked = Acquire.parse({"org": org, **arguments}, task_id=request_id, ttl_max_s=3600)
    return Asking(asked=asked, reply=ReplyTo(task_id=request_id))


def serve(world: World, *calls: batching.Call) -> list[Decided]:
    decided, after = batching.serve(world.deps, calls)
    after.send(world.deps)
    world.check()
    return decided


def granted(decided: list[Decided]) -> list[Granted]:
    return [d for d in decided if isinstance(d, Granted)]


def releases(*grants: Granted, condition: Condition = Condition.CLEAN) -> list[Release]:
    return [Release(claim_id=ClaimId(g.claim_id), condition=condition) for g in grants]


def test_a_batch_gives_each_its_own_worker_in_the_order_of_asking(world: World) -> None:
    warm = world.warm(4)
    for org in ("acme", "bolt", "cord"):
        world.org(org)
    decided = serve(world, *(asking(org, f"r-{org}") for org in ("cord", "acme", "bolt")))
    assert [g.worker_id for g in granted(decided)] == warm[:3]
    assert world.state_of(warm[3]) is State.IDLE
    rows = world.rows("requests")
    assert {r.state for r in rows} == {"granted"}
    assert len({r.claim_id for r in rows}) == 3


def test_when_workers_run_out_the_rest_is_left_and_nothing_of_it_is_written(world: World) -> None:
    world.warm(2)
    world.org("acme")
    decided = serve(world, *(asking("acme", f"r-{n}") for n in range(4)))
    assert [isinstance(d, Granted) for d in decided] == [True, True, False, False]
    assert {r.request_id for r in world.rows("requests")} == {"r-0", "r-1"}


def test_a_batch_goes_up_to_the_cap_and_not_beyond(world: World) -> None:
    world.warm(5)
    world.org("acme", cap=2)
    world.org("free")
    calls = [asking("acme", f"a-{n}") for n in range(4)]
    decided = serve(world, *calls, asking("free", "f"))
    assert [isinstance(d, Granted) for d in decided] == [True, True, False, False, True]
    assert {r.id: r.in_use for r in world.rows("orgs")} == {"acme": 2, "free": 0}


def test_one_request_twice_in_a_batch_is_one_claim(world: World) -> None:
    world.warm(3)
    world.org("acme")
    first, second = serve(world, asking("acme", "r"), asking("acme", "r"))
    assert isinstance(first, Granted)
    assert second is None
    again = claiming.acquire_at_length(world.deps, asking("acme", "r").asked, ReplyTo(task_id="t"))
    assert isinstance(again, Granted)
    assert again.claim_id == first.claim_id
    assert len(world.rows("claims")) == 1


def test_nobody_is_served_past_somebody_who_waits(world: World) -> None:
    world.warm(1)
    world.org("acme")
    world.org("bolt")
    with world.store.write() as tx:
        tx.execute(
            schema.requests.insert().values(
                pk="r-x", org="acme", request_id="x", profile="default", lease_s=30, wait_s=60, state="waiting",
                created_at=text("now()"), deadline_at=text("now() + interval '1 minute'"), replies=[["t", ""]],
            )
        )  # fmt: skip
    assert serve(world, asking("bolt", "later")) == [None]
    assert [r.request_id for r in world.rows("requests")] == ["x"]


@pytest.mark.parametrize("calls", [1, 2])
def test_anothers_parked_worker_is_not_even_tried(world: World, calls: int) -> None:
    """The trigger would refuse it, and the whole batch with it."""
    world.org("acme")
    world.org("bolt")
    world.warm(1 + calls)
    (parked,) = granted(serve(world, asking("acme", "first")))
    serve(world, *releases(parked))
    found = granted(serve(world, *(asking("bolt", f"r-{n}") for n in range(calls))))
    assert len(found) == calls
    assert parked.worker_id not in {each.worker_id for each in found}


@pytest.mark.parametrize("calls", [1, 2])
def test_a_profile_is_never_matched_by_another_in_a_batch(world: World, calls: int) -> None:
    """Neither a warm one nor the org's own parked one."""
    world.profile("big")
    world.org("acme")
    world.warm(4)
    (held,) = granted(serve(world, asking("acme", "first")))
    serve(world, *releases(held))
    asked = [asking("acme", f"r-{n}", profile="big") for n in range(calls)]
    assert serve(world, *asked) == [None] * calls
    (big,) = world.warm(1, "big")
    found = granted([d for d in serve(world, *asked) if d is not None])
    assert [each.worker_id for each in found] == [big]


@pytest.mark.parametrize("calls", [1, 2])
def test_a_paused_pool_gives_nothing_in_a_batch(world: World, calls: int) -> None:
    world.org("acme")
    world.warm(2)
    with world.store.write() as tx:
        tx.execute(schema.pool.update().values(paused=True))
    assert serve(world, *(asking("acme", f"r-{n}") for n in range(calls))) == [None] * calls


@pytest.mark.parametrize("beginning", ["warm", "parked", "to be activated"])
def test_alone_in_a_batch_and_at_length_an_acquire_writes_the_same(world: World, beginning: str) -> None:
    if beginning == "to be activated":
        world.profile(activation_path="/activate")

    def written(org: str, acquire: Callable[[Asking], object]) -> list[dict[str, object]]:
        world.org(org)
        world.warm(1)
        if beginning == "parked":
            (first,) = granted(serve(world, asking(org, f"{org}-before", ttl_s=600)))
            serve(world, *releases(first))
        acquire(asking(org, f"{org}-now", lease_s=77, ttl_s=55, wait_s=33))
        claim = next(c for c in world.rows("claims") if c.org == org and c.ended_at is None)
        worker = next(w for w in world.rows("workers") if w.id == claim.worker_id)
        request = next(r for r in world.rows("requests") if r.pk == claim.request_pk)
        assert (claim.epoch, worker.claim_id, request.claim_id) == (worker.epoch, claim.id, claim.id)
        return [
            {k: _likened(k, v, row, org) for k, v in row._mapping.items()} for row in (claim, worker, request)
        ]

    alone = written("a-org", lambda asked: serve(world, asked))
    # An org that nobody knows is left out, and makes it a batch.
    together = written("b-org", lambda asked: serve(world, asked, asking("nobody", "x")))
    at_length = written("c-org", lambda a: claiming.acquire_at_length(world.deps, a.asked, a.reply))
    assert alone == together == at_length


def _likened(name: str, value: object, row: Any, org: str) -> object:
    """A value without what differs from call to call: names, and instants but for how far they are from the beginning."""
    if isinstance(value, datetime):
        return round(
            (
                value - (row.heartbeat_at if "heartbeat_at" in row._mapping else row.created_at)
            ).total_seconds(),
            -1,
        )
    if name in {"id", "pk", "worker_id", "claim_id", "request_pk", "endpoint", "pod_uid", "moved_by"}:
        return value is not None
    if isinstance(value, float):
        return round(value, -1)
    return str(value).replace(org, "org") if isinstance(value, str | list) else value


def test_a_release_and_the_orgs_next_acquire_in_one_batch_use_the_same_worker(world: World) -> None:
    world.warm(2)
    world.org("acme")
    (held,) = granted(serve(world, asking("acme", "one")))
    ended, again = serve(world, *releases(held), asking("acme", "two"))
    assert ended == {"outcome": "released"}
    assert isinstance(again, Granted)
    assert (again.worker_id, again.source, again.epoch) == (held.worker_id, "hot_idle", held.epoch + 2)


def test_releases_park_or_drain_each_by_its_own_rules_and_are_counted(world: World) -> None:
    world.warm(4)
    world.org("floor", cap=3, hot_idle_floor=1)
    world.org("plain")
    kept, tainted = granted(serve(world, asking("floor", "a"), asking("floor", "b")))
    short, other = granted(serve(world, asking("plain", "c", ttl_s=0), asking("plain", "d", ttl_s=30)))
    world.broker.sent.clear()
    decided = serve(
        world,
        *releases(kept, short, other),
        *releases(tainted, condition=Condition.TAINTED),
        Release(claim_id=ClaimId("c-never"), condition=Condition.CLEAN),
        *releases(kept),
    )
    assert [d["outcome"] for d in decided if isinstance(d, dict)] == [
        *["released"] * 4, "unknown_claim", "already_released",
    ]  # fmt: skip
    states = [world.state_of(g.worker_id) for g in (kept, short, other, tainted)]
    assert states == [State.HOT_IDLE, State.DRAINING, State.HOT_IDLE, State.DRAINING]
    floor = next(r for r in world.rows("orgs") if r.id == "floor")
    assert (floor.in_use, floor.parked) == (0, 1)
    sent = sorted((task, given["worker_id"]) for task, given in world.broker.sent)
    assert sent == sorted(
        [("pool.stamp", kept.worker_id), ("pool.stamp", other.worker_id),
         ("pool.retire", short.worker_id), ("pool.retire", tainted.worker_id)]
    )  # fmt: skip
    assert {r.state for r in world.rows("requests")} == {"spent"}


def test_a_batch_waits_for_nobodys_lock(world: World) -> None:
    """Each of these is held by another transaction; whoever needs it is left out, the others are served, and nobody waits."""
    world.warm(4)
    world.org("capped", cap=9)
    for org in ("acme", "bolt", "cord"):
        world.org(org)
    one, two, three = granted(serve(world, asking("acme", "a"), asking("bolt", "b"), asking("capped", "c")))
    W, C, R = schema.workers, schema.claims, schema.requests
    with world.store.write() as tx:
        tx.execute(text("SET LOCAL lock_timeout = '5s'"))
        tx.execute(select(schema.orgs).where(schema.orgs.c.id == "capped").with_for_update())
        tx.execute(select(W).where(W.c.id == one.worker_id).with_for_update())
        decided = serve(
            world, *releases(one, two, three), asking("capped", "d"), asking("cord", "e"),
            Renew(claim_ids=(ClaimId(one.claim_id), ClaimId(three.claim_id))),
        )  # fmt: skip
    assert [d is not None for d in decided] == [False, True, False, False, True, True]
    with world.store.write() as tx:
        tx.execute(select(C).where(C.c.id == one.claim_id).with_for_update())
        tx.execute(select(R).where(R.c.claim_id == three.claim_id).with_for_update())
        decided = serve(world, *releases(one, three), Renew(claim_ids=(ClaimId(one.claim_id),)))
    assert decided == [None, None, None]
    assert claiming.release(world.deps, releases(one)[0]) == {"outcome": "released"}


def test_a_release_leaves_the_worker_to_whoever_is_about_to_wait(world: World) -> None:
    """He has the profile's lock and has seen no worker; a release that did not wait for him would not see him either."""
    world.warm(1)
    world.org("acme")
    (held,) = granted(serve(world, asking("acme", "a")))
    with world.store.write() as tx:
        lock_profile(tx, "default")
        assert serve(world, *releases(held)) == [None]
    assert world.state_of(held.worker_id) is State.HOT


def test_renewals_of_many_holders_are_one_statement_and_each_is_told_its_own(world: World) -> None:
    world.warm(3)
    world.org("acme")
    one, two, three = granted(serve(world, *(asking("acme", f"r-{n}") for n in range(3))))
    world.pass_time(10)
    claiming.release(world.deps, releases(three)[0])
    mine = Renew(claim_ids=(ClaimId(one.claim_id), ClaimId("c-none")))
    theirs = Renew(claim_ids=(ClaimId(two.claim_id), ClaimId(three.claim_id)))
    first, second = serve(world, mine, theirs)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert set(first["renewed"]) == {one.claim_id}
    assert first["gone"] == {"c-none": "unknown_claim"}
    assert set(second["renewed"]) == {two.claim_id}
    assert second["gone"] == {three.claim_id: "released"}
    assert first["renewed"][one.claim_id] > one.as_dict()["lease_expires_at"]


def test_a_thousand_claims_are_renewed_by_one_message_and_one_statement(world: World) -> None:
    world.org("acme")
    with world.store.write() as tx:
        tx.execute(
            text(
                "INSERT INTO claims (id, worker_id, org, profile, request_pk, epoch, source, lease_s, created_at, hot_at,"
                " lease_expires_at, counted) SELECT 'c-' || n, 'w-' || n, 'acme', 'default', 'r-' || n, 1, 'warm', 30, now(), now(),"
                " now(), false FROM generate_series(1, 1000) n"
            )
        )
    asked = Renew(claim_ids=tuple(ClaimId(f"c-{n}") for n in range(1, 1001)))
    # Too many to hold up a batch for: the lane serves it alone.
    assert batching.holds_up(asked)
    with statements(world.store) as made:
        assert len(claiming.renew(world.deps, asked)["renewed"]) == 1000
    assert len(made) == 1, made


def test_sqlite_leaves_everything_to_the_general_path(sqlite_store: Store) -> None:
    world = World(sqlite_store)
    world.warm(1)
    world.org("acme")
    assert serve(world, asking("acme", "r")) == [None]
    assert OrgId("acme") in {r.id for r in world.rows("orgs")}
    assert world.rows("requests") == []
