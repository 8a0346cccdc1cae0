"""Planning: what holds for any demand and any supply."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pool.planning import Supply, clamped_target, slots_wanted, surplus

amount = st.integers(min_value=0, max_value=10_000)
supplies = st.builds(Supply, target=amount, waiters=amount, misses=amount, warm=amount, spawning=amount)
idle = st.lists(st.integers(), unique=True, max_size=50)


@given(supplies)
def test_once_the_wanted_slots_are_made_no_more_are_wanted(supply: Supply) -> None:
    made = slots_wanted(supply)
    assert slots_wanted(replace(supply, spawning=supply.spawning + made)) == 0


@given(supplies)
def test_slots_meet_the_demand_and_never_more(supply: Supply) -> None:
    made, demand = slots_wanted(supply), supply.target + supply.waiters + supply.misses
    assert made >= 0
    assert supply.warm + supply.spawning + made >= demand
    assert made == 0 or supply.warm + supply.spawning + made == demand


@given(amount, amount)
def test_target_and_misses_from_nothing_give_exactly_their_sum(target: int, misses: int) -> None:
    assert (
        slots_wanted(Supply(target=target, waiters=0, misses=misses, warm=0, spawning=0)) == target + misses
    )


@given(supplies)
def test_a_slot_that_becomes_warm_changes_nothing(supply: Supply) -> None:
    moved = min(1, supply.spawning)
    later = replace(supply, spawning=supply.spawning - moved, warm=supply.warm + moved)
    assert slots_wanted(later) == slots_wanted(supply)


@given(idle, st.integers(min_value=0, max_value=60))
def test_surplus_leaves_exactly_the_target_or_all_there_is(workers: list[int], target: int) -> None:
    assert len(workers) - len(surplus(workers, target)) == min(target, len(workers))


@given(idle, st.integers(min_value=0, max_value=60))
def test_surplus_takes_the_oldest_in_their_order(workers: list[int], target: int) -> None:
    taken = list(surplus(workers, target))
    assert taken == workers[: len(taken)]


@given(idle, st.integers(min_value=0, max_value=60))
def test_surplus_once_taken_leaves_no_surplus(workers: list[int], target: int) -> None:
    left = workers[len(surplus(workers, target)) :]
    assert not surplus(left, target)


@given(amount)
def test_no_cap_clamps_no_target(target: int) -> None:
    assert clamped_target(target, 0) == target


@given(amount, st.integers(min_value=1, max_value=10_000))
def test_a_cap_clamps_only_what_is_above_it(target: int, cap: int) -> None:
    clamped = clamped_target(target, cap)
    assert clamped <= cap
    assert clamped == target or (target > cap and clamped == cap)
