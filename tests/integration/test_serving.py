"""Many calls in one statement have the results of serial calls, and no row lock of another
transaction delays them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from sqlalchemy import select, text

from pool.core.contract import Acquire, Cancel, Granted, Pending, RefusedAnswer, Release, Renew
from pool.core.errors import BrokenPromise
from pool.core.ids import ClaimId, OrgId
from pool.core.records import ReplyTo
from pool.core.states import Condition, Reason, State
from pool.lifecycle import claiming, effects
from pool.lifecycle.claiming import AcquireCall, Call, Decided
from pool.store import Store, schema
from tests.support.altered_rules import altered
from tests.support.postgres_server import empty
from tests.support.statements import statements
from tests.support.world import World


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def asking(org: str, request_id: str, *, task_id: str = "", **arguments: object) -> AcquireCall:
    asked = Acquire.parse({"org": org, **arguments}, task_id=request_id)
    return AcquireCall(asked=asked, reply=ReplyTo(task_id=task_id or request_id))


def serve(world: World, *calls: Call) -> list[Decided]:
    decided, after = claiming.serve(world.deps, calls)
    effects.finish(world.deps, after)
    world.check()
    return decided


def granted(decided: list[Decided]) -> list[Granted]:
    return [d for d in decided if isinstance(d, Granted)]


def reasons(decided: list[Decided]) -> list[Reason | None]:
    """Return why each was refused; None for the others."""
    return [d.reason if isinstance(d, RefusedAnswer) else None for d in decided]


def releases(*grants: Granted, condition: Condition = Condition.CLEAN) -> list[Release]:
    return [Release(claim_id=ClaimId(g.claim_id), condition=condition) for g in grants]


def cancelling(org: str, request_id: str) -> Cancel:
    return Cancel(org=OrgId(org), request_id=request_id)


def test_a_batch_grants_each_call_its_own_worker_in_the_order_of_arrival(world: World) -> None:
    warm = world.warm(4)
    for org in ("acme", "bolt", "cord"):
        world.org(org)
    decided = serve(world, *(asking(org, f"r-{org}") for org in ("cord", "acme", "bolt")))
    assert [g.worker_id for g in granted(decided)] == warm[:3]
    assert world.state_of(warm[3]) is State.IDLE
    rows = world.rows("requests")
    assert {r.state for r in rows} == {"granted"}
    assert len({r.claim_id for r in rows}) == 3


def test_when_workers_run_out_the_rest_of_a_batch_is_refused_or_waits(world: World) -> None:
    world.warm(2)
    world.org("acme")
    decided = serve(world, *(asking("acme", f"r-{n}", wait_s=30 * (n % 2)) for n in range(5)))
    assert [type(d) for d in decided] == [Granted, Granted, RefusedAnswer, Pending, RefusedAnswer]
    assert set(reasons(decided)) == {None, Reason.NO_WARM_WORKER}
    rows = {r.request_id: (r.state, r.missed_at is not None) for r in world.rows("requests")}
    assert rows == {
        "r-0": ("granted", False), "r-1": ("granted", False), "r-2": ("refused", True),
        "r-3": ("waiting", False), "r-4": ("refused", True),
    }  # fmt: skip


def test_a_batch_grants_up_to_the_cap(world: World) -> None:
    world.warm(5)
    world.org("acme", cap=2)
    world.org("free")
    calls = [asking("acme", f"a-{n}") for n in range(4)]
    decided = serve(world, *calls, asking("free", "f"))
    assert reasons(decided) == [None, None, Reason.ORG_CAP, Reason.ORG_CAP, None]
    assert {r.id: r.in_use for r in world.rows("orgs")} == {"acme": 2, "free": 0}


def test_a_cap_holds_over_all_profiles_of_a_batch(world: World) -> None:
    world.profile("big")
    world.warm(2)
    world.warm(2, "big")
    world.org("acme", cap=3)
    calls = [asking("acme", f"{shape}-{n}", profile=shape) for n in range(2) for shape in ("default", "big")]
    assert reasons(serve(world, *calls)) == [None, None, None, Reason.ORG_CAP]
    assert {r.id: r.in_use for r in world.rows("orgs")} == {"acme": 3}


def test_batch_grants_no_request_a_worker_of_another_profile(world: World) -> None:
    """The first call is served by its org's parked worker, so no call of the batch needs the warm
    one.
    """
    world.profile("scarce")
    world.org("acme")
    world.warm(2)
    world.release(world.granted("acme").claim_id)
    parked, scarce = serve(world, asking("acme", "a"), asking("acme", "b", profile="scarce"))
    assert isinstance(parked, Granted)
    assert reasons([scarce]) == [Reason.NO_WARM_WORKER]
    assert [w.profile for w in world.workers(State.IDLE)] == ["default"]


def test_worker_of_another_profile_is_refused_by_the_rule_itself(world: World) -> None:
    world.profile("scarce")
    world.org("acme")
    world.warm(1)
    with (
        altered(world.store, {"w.state = 'idle' AND w.profile = p_profile": "w.state = 'idle'"}),
        pytest.raises(BrokenPromise, match="claim has its workers profile"),
    ):
        serve(world, asking("acme", "b", profile="scarce"))
    assert world.rows("claims") == []


def test_one_request_twice_in_a_batch_is_one_claim(world: World) -> None:
    world.warm(3)
    world.org("acme")
    first, second = serve(world, asking("acme", "r"), asking("acme", "r"))
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.as_dict() == first.as_dict()
    assert len(world.rows("claims")) == 1


@pytest.mark.parametrize("calls", [1, 2])
def test_a_parked_worker_of_another_org_is_never_tried(world: World, calls: int) -> None:
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
    """Neither a warm worker nor the org's own parked one."""
    world.profile("big")
    world.org("acme")
    world.warm(4)
    (held,) = granted(serve(world, asking("acme", "first")))
    serve(world, *releases(held))
    asked = [asking("acme", f"r-{n}", profile="big") for n in range(calls)]
    assert reasons(serve(world, *asked)) == [Reason.NO_WARM_WORKER] * calls
    (big,) = world.warm(1, "big")
    found = granted(serve(world, *asked))
    assert [each.worker_id for each in found] == [big]


@pytest.mark.parametrize("calls", [1, 2])
def test_a_paused_pool_grants_nothing_in_a_batch(world: World, calls: int) -> None:
    world.org("acme")
    world.warm(2)
    with world.store.write() as tx:
        tx.execute(schema.pool.update().values(paused=True))
    decided = serve(world, *(asking("acme", f"r-{n}") for n in range(calls)))
    assert reasons(decided) == [Reason.PAUSED] * calls
    assert not world.rows("requests")


def test_a_batch_decides_every_kind_of_call_in_one_statement_and_keeps_the_order_of_answers(
    world: World,
) -> None:
    world.profile(warm_target=0)
    for org, cap in (("acme", 0), ("bolt", 1), ("cord", 0)):
        world.org(org, cap=cap)
    world.warm(3)
    mine, theirs, other = granted(
        serve(world, asking("acme", "a-1"), asking("bolt", "b-1"), asking("cord", "c-1"))
    )
    assert isinstance(serve(world, asking("acme", "waiter", wait_s=30, task_id="first"))[0], Pending)
    assert isinstance(serve(world, asking("cord", "leaves", wait_s=30))[0], Pending)
    with statements(world.store) as made:
        decided, after = claiming.serve(
            world.deps,
            [
                asking("acme", "waiter", wait_s=30, task_id="second"),
                cancelling("cord", "leaves"),
                *releases(mine),
                asking("bolt", "b-2"),
                Renew(claim_ids=(ClaimId(other.claim_id), ClaimId("c-never"))),
                asking("cord", "c-2", wait_s=30),
                asking("acme", "a-2"),
                asking("acme", "a-1"),
                asking("bolt", "b-1"),
                Release(claim_id=ClaimId("c-never"), condition=Condition.CLEAN),
                asking("acme", "waiter", wait_s=31),
                asking("acme", "a-3", profile="unheard-of"),
                cancelling("cord", "never"),
            ],
        )
    assert len(made) == 1, made
    effects.finish(world.deps, after)
    world.check()
    handed, left, released, capped, renewed, waits, missed, spent, same, unknown, changed, unheard, never = (
        decided
    )
    # The worker went to the waiter first, so that its repeated delivery finds the grant.
    assert isinstance(handed, Granted)
    assert (handed.worker_id, handed.source) == (mine.worker_id, "hot_idle")
    assert world.broker.answers_for("first") == [handed.as_dict()]
    assert left == {"outcome": "cancelled"}
    assert [a["reason"] for a in world.broker.answers_for("leaves")] == ["cancelled"]
    assert released == {"outcome": "released"}
    assert isinstance(renewed, dict)
    assert (set(renewed["renewed"]), renewed["gone"]) == ({other.claim_id}, {"c-never": "unknown_claim"})
    assert isinstance(waits, Pending)
    assert reasons([capped, missed, spent, changed, unheard]) == [
        Reason.ORG_CAP, Reason.NO_WARM_WORKER, Reason.REQUEST_SPENT, Reason.INVALID, Reason.UNKNOWN_PROFILE,
    ]  # fmt: skip
    assert isinstance(same, Granted)
    assert same.as_dict() == theirs.as_dict()
    assert (unknown, never) == ({"outcome": "unknown_claim"}, {"outcome": "unknown_request"})
    states = {r.request_id: r.state for r in world.rows("requests")}
    assert states == {
        "a-1": "spent", "b-1": "granted", "c-1": "granted", "waiter": "granted", "leaves": "refused",
        "b-2": "refused", "c-2": "waiting",
        "a-2": "refused",
    }  # fmt: skip


def test_the_first_waiting_call_costs_a_batch_one_more_statement(world: World) -> None:
    world.org("acme")
    world.warm(1)
    with statements(world.store) as made:
        decided, _ = claiming.serve(
            world.deps, [asking("acme", "a"), asking("acme", "b", wait_s=30), asking("acme", "c", wait_s=30)]
        )
    assert [type(d) for d in decided] == [Granted, Pending, Pending]
    assert len(made) == 2, made


def test_a_batch_serves_a_waiter_before_later_calls(world: World) -> None:
    """A worker that was not matched to a waiter goes to the waiter, and not to a call of the batch
    that finds both.
    """
    world.org("acme")
    world.org("bolt")
    world.warm(1)
    with world.store.write() as tx:
        tx.execute(
            schema.requests.insert().values(
                pk="r-x", org="acme", request_id="x", profile="default", lease_s=30, wait_s=60,
                state="waiting",
                created_at=text("now()"), deadline_at=text("now() + interval '1 minute'"),
                replies=[["t", ""]],
            )
        )  # fmt: skip
    assert reasons(serve(world, asking("bolt", "later"))) == [Reason.NO_WARM_WORKER]
    assert [a["outcome"] for a in world.broker.answers_for("t")] == ["granted"]


def test_the_first_request_of_an_org_in_a_batch_gets_the_worker_released_in_it(world: World) -> None:
    world.profile(warm_target=0)
    world.org("acme")
    world.warm(1)
    (held,) = granted(serve(world, asking("acme", "a")))
    decided = serve(world, asking("acme", "b", wait_s=30), asking("acme", "c", wait_s=30), *releases(held))
    assert [type(d) for d in decided] == [Granted, Pending, dict]


Prepare = Callable[[World], Call]


def _warm(world: World) -> Call:
    world.warm(1)
    return asking("acme", "now", lease_s=77, ttl_s=52, wait_s=33)


def _parked(world: World) -> Call:
    world.warm(1)
    world.release(world.granted("acme", request_id="before", ttl_s=600).claim_id)
    return asking("acme", "now", lease_s=77, ttl_s=52, wait_s=33)


def _to_be_activated(world: World) -> Call:
    world.profile(activation_path="/activate")
    return _warm(world)


def _counted(world: World) -> Call:
    world.org("acme", cap=3, hot_idle_floor=2)
    return _parked(world)


def _waits(world: World) -> Call:
    return asking("acme", "now", lease_s=77, ttl_s=52, wait_s=33)


def _missed(world: World) -> Call:
    return asking("acme", "now", lease_s=77)


def _at_its_cap(world: World) -> Call:
    world.org("acme", cap=1)
    world.warm(2)
    world.granted("acme", request_id="before")
    return asking("acme", "now")


def _asked_again(world: World) -> Call:
    world.refused("acme", request_id="now", lease_s=77)
    world.warm(1)
    return asking("acme", "now", lease_s=77)


def _repeated(world: World) -> Call:
    world.acquire("acme", request_id="now", task_id="first", wait_s=33)
    return asking("acme", "now", wait_s=33)


def _held(world: World, **given: object) -> Granted:
    world.profile(warm_target=0)
    world.warm(1)
    return world.granted("acme", request_id="before", **given)


def _released(world: World) -> Call:
    world.org("acme", cap=3, hot_idle_floor=2)
    return releases(_held(world, ttl_s=77))[0]


def _tainted(world: World) -> Call:
    return releases(_held(world), condition=Condition.TAINTED)[0]


def _handed_over(world: World) -> Call:
    held = _held(world)
    world.acquire("acme", request_id="waiter", task_id="waiter", wait_s=33)
    return releases(held)[0]


def _room_elsewhere(world: World) -> Call:
    world.profile("big", warm_target=0)
    world.org("acme", cap=1)
    held = _held(world)
    world.warm(1, "big")
    world.acquire("acme", request_id="waiter", task_id="waiter", wait_s=33, profile="big")
    return releases(held)[0]


def _renewed(world: World) -> Call:
    held = _held(world, lease_s=33)
    world.pass_time(21)
    return Renew(claim_ids=(ClaimId(held.claim_id),))


def _cancelled(world: World) -> Call:
    world.acquire("acme", request_id="now", task_id="now", wait_s=33)
    return cancelling("acme", "now")


def _cancelled_while_bound(world: World) -> Call:
    world.profile(activation_path="/activate")
    world.warm(1)
    world.acquire("acme", request_id="now", task_id="now", wait_s=33)
    return cancelling("acme", "now")


@pytest.mark.parametrize(
    "prepare",
    [
        _warm, _parked, _to_be_activated, _counted, _waits, _missed, _at_its_cap, _asked_again, _repeated,
        _released, _tainted, _handed_over,
        _room_elsewhere, _renewed, _cancelled, _cancelled_while_bound,
    ],
    ids=lambda prepare: prepare.__name__.strip("_"),
)  # fmt: skip
def test_a_call_writes_the_same_rows_alone_in_a_batch_and_on_the_slow_path(
    store: Store, prepare: Prepare
) -> None:
    def written(ask: Callable[[World, Call], object]) -> dict[str, list[dict[str, object]]]:
        empty(store)
        world = World(store)
        world.org("acme")
        call = prepare(world)
        world.configure(orgs_auto_create=False)
        before = _likened(world)
        ask(world, call)
        world.check()
        assert _likened(world) != before
        return _likened(world)

    def beside_others(world: World, call: Call) -> None:
        nothing = Release(claim_id=ClaimId("c-never"), condition=Condition.CLEAN)
        serve(
            world, cancelling("unknown", "x"), asking("unknown", "x"), call, nothing, asking("unknown", "y")
        )

    alone = written(serve)
    together = written(beside_others)
    patiently = written(lambda world, call: claiming.serve_one(world.deps, call))
    assert alone == together
    assert alone == patiently


_NAMES = {"id", "pk", "claim_id", "request_pk", "pod_uid", "endpoint"}


def _likened(world: World) -> dict[str, list[dict[str, object]]]:
    """Return all rows without what differs between runs: random ids, and instants except their
    distance from now.
    """
    now = world.store.now()

    def likened(name: str, value: object) -> object:
        if isinstance(value, datetime):
            value = (value - now).total_seconds()
        if isinstance(value, float):
            return round(value, -1) + 0.0
        return value is not None if name in _NAMES else value

    tables = {name: world.rows(name) for name in ("workers", "claims", "requests", "orgs", "journal")}
    return {
        table: sorted(({k: likened(k, v) for k, v in row._mapping.items()} for row in rows), key=repr)
        for table, rows in tables.items()
    }


def test_a_release_and_the_orgs_next_acquire_in_one_batch_use_the_same_worker(world: World) -> None:
    world.warm(2)
    world.org("acme")
    (held,) = granted(serve(world, asking("acme", "one")))
    ended, again = serve(world, *releases(held), asking("acme", "two"))
    assert ended == {"outcome": "released"}
    assert isinstance(again, Granted)
    assert (again.worker_id, again.source, again.epoch) == (held.worker_id, "hot_idle", held.epoch + 2)


def test_releases_in_a_batch_park_or_drain_each_by_its_own_rules_and_are_counted(world: World) -> None:
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


def test_of_releases_of_one_claim_in_a_batch_the_first_of_its_own_org_counts(world: World) -> None:
    """Neither another org's condition nor a second release of the claim, with or without its org,
    has an effect.
    """
    world.warm(2)
    world.org("acme", cap=3)
    held, _ = granted(serve(world, asking("acme", "a"), asking("acme", "b")))

    def release(org: OrgId | None, condition: Condition = Condition.TAINTED) -> Release:
        return Release(claim_id=ClaimId(held.claim_id), condition=condition, org=org)

    own = release(OrgId("acme"), Condition.CLEAN)
    decided = serve(world, release(OrgId("aaaa")), own, release(OrgId("bolt")), release(None))
    assert [d["outcome"] for d in decided if isinstance(d, dict)] == [
        "unknown_claim", "released", "unknown_claim", "already_released",
    ]  # fmt: skip
    assert world.state_of(held.worker_id) is State.HOT_IDLE
    assert {r.id: r.in_use for r in world.rows("orgs")} == {"acme": 1}


def test_a_batch_waits_for_no_row_that_another_transaction_has_locked(world: World) -> None:
    """A call that needs such a row is left undecided with nothing written; the others are served."""
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
    world.profile("big")
    serve(world, asking("bolt", "waiter", wait_s=30, profile="big"))
    with world.store.write() as tx:
        tx.execute(select(C).where(C.c.id == one.claim_id).with_for_update())
        tx.execute(select(R).where(R.c.claim_id == three.claim_id).with_for_update())
        tx.execute(select(R).where(R.c.request_id == "waiter").with_for_update())
        decided = serve(
            world, *releases(one, three), Renew(claim_ids=(ClaimId(one.claim_id),)),
            cancelling("bolt", "waiter"),
            asking("capped", "c"), asking("bolt", "waiter", wait_s=30, profile="big"),
        )  # fmt: skip
    assert decided == [None] * 6
    assert {r.state for r in world.rows("requests") if r.request_id in {"a", "c"}} == {"granted"}
    assert claiming.release(world.deps, releases(one)[0]) == {"outcome": "released"}


def test_renewals_of_many_holders_are_one_statement_and_each_gets_its_own_answer(world: World) -> None:
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
    assert claiming.is_large(asked)
    with statements(world.store) as made:
        assert len(claiming.renew(world.deps, asked)["renewed"]) == 1000
    assert len(made) == 1, made


def test_all_calls_of_a_new_org_in_a_batch_are_served(world: World) -> None:
    world.warm(2)
    decided = serve(world, asking("newcomer", "r-1"), asking("newcomer", "r-2"))
    assert len(granted(decided)) == 2


def test_warm_workers_go_to_the_calls_of_a_batch_in_the_order_of_their_arrival(world: World) -> None:
    world.warm(2)
    world.org("acme")
    world.org("bolt")
    first, second, third = serve(world, asking("acme", "1"), asking("bolt", "2"), asking("acme", "3"))
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert isinstance(third, RefusedAnswer)
