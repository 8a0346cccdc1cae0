"""At the pool's cap orgs share its workers by their weights: a released worker stays with its org only while
the org is not ahead of its fair share."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from pool.core.contract import Release
from pool.core.ids import ProfileName
from pool.core.states import MoveReason, Reason, State
from pool.lifecycle import claiming
from pool.store import breakers
from tests.support.examples import examples
from tests.support.snapshots import Kept, keep, restore
from tests.support.steady_load import SteadyLoad
from tests.support.world import World


@pytest.fixture
def empty(world: World) -> Kept:
    return keep(world)


def _full(world: World, workers: int) -> None:
    """A pool at its cap whose workers are all idle, of a profile without a warm target."""
    world.configure(max_workers=workers)
    world.profile(warm_target=0)
    world.warm(workers)


def _gave_way(world: World) -> list[str]:
    return [e.worker_id for e in world.rows("journal") if e.reason == MoveReason.GAVE_WAY]


def _a_holds_all(world: World, workers: int = 3, **b: str) -> SteadyLoad:
    """Org `a` holds every worker of a full pool and has waiters; org `b` begins to wait."""
    _full(world, workers)
    load = SteadyLoad(world=world, orgs=("a",), depth=3, profiles=b)
    load.top_up()
    assert [g.org for g in load.held] == ["a"] * workers
    load.orgs = ("a", "b")
    load.top_up()
    load.rest()
    return load


def test_org_that_holds_the_whole_pool_gives_way_to_one_that_waits(world: World) -> None:
    load = _a_holds_all(world)
    first = load.held[0].worker_id
    for _ in range(40):
        load.step()
    assert load.served[3].org == "b"
    assert world.state_of(first) is State.RETIRED
    # Three workers of two equal orgs: two and one, and a tie stays with the holder.
    assert 1 / 3 <= load.shares(30)["b"] <= 2 / 3
    assert len(_gave_way(world)) == 1
    world.check()


def test_room_goes_to_an_org_that_waits_for_another_profile(world: World) -> None:
    world.profile("big", warm_target=0)
    load = _a_holds_all(world, b="big")
    for _ in range(12):
        load.step()
    assert load.served[3].org == "b"
    assert 1 / 3 <= load.shares(9)["b"] <= 2 / 3
    assert len(_gave_way(world)) == 1


def test_warm_target_takes_no_room_that_a_waiter_needs(world: World) -> None:
    world.profile("big", warm_target=0)
    load = _a_holds_all(world, b="big")
    world.profile(warm_target=2)
    for _ in range(6):
        load.step()
    assert "b" in {g.org for g in load.served[3:]}


def test_below_the_pools_cap_a_released_worker_stays_with_its_org(world: World) -> None:
    load = _a_holds_all(world)
    world.configure(max_workers=10)
    stays = load.held[0].worker_id
    load.step()
    assert world.worker(stays).org == "a"
    assert world.state_of(stays) is State.HOT
    assert _gave_way(world) == []


def test_org_at_its_own_cap_does_not_count_as_waiting(world: World) -> None:
    world.org("b", cap=1)
    _full(world, 4)
    world.granted("b")
    held = [world.granted("a") for _ in range(3)]
    world.waits("a")
    world.waits("b")
    world.release(held[0].claim_id)
    assert world.state_of(held[0].worker_id) is State.HOT
    assert _gave_way(world) == []


def test_one_waiter_takes_one_worker_however_many_are_released(world: World) -> None:
    """Until the room of the first is a worker, the others stay with their org."""
    _full(world, 4)
    held = [world.granted("a") for _ in range(4)]
    for _ in range(4):
        world.waits("a")
    world.waits("b")
    for each in held:
        world.release(each.claim_id)
    assert _gave_way(world) == [held[0].worker_id]
    assert len(world.workers(State.HOT)) == 3
    world.check()


def test_one_waiter_takes_one_worker_of_a_batch(world: World) -> None:
    _full(world, 4)
    held = [world.granted("a") for _ in range(4)]
    world.waits("b")
    claiming.serve(world.deps, [Release.parse(each.claim_id, "clean") for each in held])
    assert len(_gave_way(world)) == 1
    assert len(world.workers(State.HOT_IDLE)) == 3
    world.check()


def test_slot_being_started_serves_the_waiter_and_no_other_worker_gives_way(world: World) -> None:
    load = _a_holds_all(world)
    world.release(load.held.popleft().claim_id)
    world.deliver("pool.retire")
    world.refill()
    assert len(world.workers(State.SPAWNING)) == 1
    # Each org has three waiters: with the slot they hold one each, and the next worker is a tie.
    world.release(load.held.popleft().claim_id)
    assert len(_gave_way(world)) == 1


def test_pass_retires_no_second_worker_while_the_first_is_being_deleted(world: World) -> None:
    _full(world, 2)
    for each in [world.granted("a"), world.granted("a")]:
        world.release(each.claim_id)
    world.waits("b")
    world.run_pass("reconcile_warm")
    world.run_pass("reconcile_warm")
    assert len(_gave_way(world)) == 1


def test_worker_gives_way_though_its_own_org_has_no_waiter(world: World) -> None:
    """Otherwise the org could take it back before the next pass, again and again."""
    _full(world, 2)
    held = [world.granted("a"), world.granted("a")]
    world.waits("b")
    world.release(held[0].claim_id)
    assert _gave_way(world) == [held[0].worker_id]
    assert world.refused("a").reason is Reason.POOL_CAP


def test_workers_of_a_floor_stay_with_their_org(world: World) -> None:
    world.org("a", hot_idle_floor=1)
    _full(world, 2)
    held = [world.granted("a"), world.granted("a")]
    task = world.waits("a")
    world.waits("b")
    world.release(held[0].claim_id)
    assert world.broker.answers_for(task)[0]["worker_id"] == held[0].worker_id
    assert _gave_way(world) == []


def test_nothing_gives_way_to_a_profile_whose_workers_fail_to_start(world: World) -> None:
    world.profile("big", warm_target=0)
    _full(world, 2)
    held = [world.granted("a"), world.granted("a")]
    world.waits("a")
    world.waits("b", profile="big")
    with world.store.write() as tx:
        for _ in range(5):
            breakers.failed(tx, ProfileName("big"), "no such image")
    world.release(held[0].claim_id)
    assert world.state_of(held[0].worker_id) is State.HOT
    assert _gave_way(world) == []


def test_parked_worker_is_not_handed_to_an_org_that_is_ahead(world: World) -> None:
    """Neither by a match nor by the pass, which retires it for the org that is behind."""
    world.org("a", cap=2)
    _full(world, 3)
    world.granted("c")
    parked, _kept = world.granted("a"), world.granted("a")
    world.release(parked.claim_id)
    world.org("a", cap=1)
    task = world.waits("a")
    ahead = world.waits("b")
    world.org("a", cap=2)
    claiming.match(world.deps, ProfileName("default"))
    assert world.broker.answers_for(task) == []
    assert world.state_of(parked.worker_id) is State.HOT_IDLE
    world.run_pass("reconcile_warm")
    assert _gave_way(world) == [parked.worker_id]
    load = SteadyLoad(world=world, orgs=())
    load.waiting = {task: ("a", 0), ahead: ("b", 0)}
    load.rest()
    assert [g.org for g in load.served] == ["b"]
    world.check()


def test_org_whose_share_is_less_than_one_worker_gets_its_turns(world: World) -> None:
    """Nine to one of three workers: the light org gets about a tenth of the grants."""
    world.org("a", weight=9)
    load = _a_holds_all(world)
    for _ in range(66):
        load.step()
    assert 0.05 <= load.shares(60)["b"] <= 0.15, load.shares(60)


# Settled after this number of grants, then measured for as many more.
SETTLED, MEASURED = 20, 40


@st.composite
def _weights(draw: st.DrawFn) -> tuple[int, tuple[int, ...]]:
    """The pool's cap, and the weights of two to four orgs."""
    return draw(st.integers(1, 4)), tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))


@settings(
    max_examples=examples(6),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(given=_weights())
@example(given=(3, (1, 1)))
@example(given=(1, (4, 1)))
@example(given=(2, (1, 1, 1, 1)))
def test_grants_are_shared_by_weight_and_no_waiter_is_forgotten(
    world: World, empty: Kept, given: tuple[int, tuple[int, ...]]
) -> None:
    """With steady waiters each org gets its part of the grants, to within one worker of the pool, and each
    waiter is passed over a bounded number of times."""
    cap, weights = given
    restore(world, empty)
    orgs = {f"o{n}": weight for n, weight in enumerate(weights)}
    for org, weight in orgs.items():
        world.org(org, weight=weight)
    _full(world, cap)
    load = SteadyLoad(world=world, orgs=tuple(orgs)[:1], depth=1)
    load.top_up()
    load.orgs = tuple(orgs)
    load.top_up()
    while len(load.served) < SETTLED + MEASURED:
        load.step()
    total = sum(weights)
    shares = load.shares(MEASURED)
    event(f"churn {len(_gave_way(world)) / len(load.served):.1f}")
    for org, weight in orgs.items():
        assert abs(shares[org] - weight / total) <= min(1 / cap, 0.2), (org, shares)
        most = max((g.passed_by for g in load.served if g.org == org), default=MEASURED)
        assert most <= 2 * (cap + len(orgs) + total / weight), (org, most)


@pytest.mark.parametrize("weights", [(1, 1), (1, 9), (3, 2, 1)])
def test_below_the_pools_cap_every_waiter_is_served_at_once(world: World, weights: tuple[int, ...]) -> None:
    for n, weight in enumerate(weights):
        world.org(f"o{n}", weight=weight)
    world.profile(warm_target=0)
    load = SteadyLoad(world=world, orgs=tuple(f"o{n}" for n in range(len(weights))), depth=1)
    load.top_up()
    for _ in range(6):
        world.run_pass("reconcile_warm")
        load.step()
    assert len(load.served) >= 6 * len(weights)
    assert max(g.passed_by for g in load.served) <= len(weights)
    assert _gave_way(world) == []
