"""Planning: properties for any demand and any supply."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pool.core.planning import (
    Builds,
    RolloutProgress,
    Supply,
    clamped_target,
    progress,
    replacement,
    slots_wanted,
    step_of,
    surplus,
    whose_turn,
)

amount = st.integers(min_value=0, max_value=10_000)
supplies = st.builds(Supply, target=amount, waiters=amount, misses=amount, warm=amount, spawning=amount)
idle = st.lists(st.integers(), unique=True, max_size=50)


@given(supplies)
def test_once_the_wanted_slots_are_created_no_more_are_wanted(supply: Supply) -> None:
    made = slots_wanted(supply)
    assert slots_wanted(replace(supply, spawning=supply.spawning + made)) == 0


@given(supplies)
def test_slots_meet_the_demand_and_never_more(supply: Supply) -> None:
    made, demand = slots_wanted(supply), supply.target + supply.waiters + supply.misses
    assert made >= 0
    assert supply.warm + supply.spawning + made >= demand
    assert made == 0 or supply.warm + supply.spawning + made == demand


@given(amount, amount)
def test_target_and_misses_of_an_empty_pool_give_exactly_their_sum(target: int, misses: int) -> None:
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
def test_surplus_takes_the_oldest_first(workers: list[int], target: int) -> None:
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


few = st.integers(min_value=0, max_value=30)
builds = st.builds(
    Builds,
    target=few,
    step=st.integers(min_value=1, max_value=30),
    old_idle=few,
    old_parked=few,
    old_busy=few,
    new_idle=few,
    new_fresh=few,
    new_spawning=few,
    proven=st.booleans(),
    failing=st.booleans(),
)


@given(builds)
def test_replacing_never_takes_the_warm_supply_below_its_target(seen: Builds) -> None:
    go = replacement(seen).idle_go
    assert 0 <= go <= seen.old_idle
    assert not go or seen.old_idle + seen.new_idle - go >= seen.target


@given(builds)
def test_no_more_is_replaced_at_a_time_than_a_step(seen: Builds) -> None:
    plan = replacement(seen)
    assert 0 <= plan.idle_go + plan.parked_go <= seen.step
    assert plan.parked_go <= seen.old_parked
    assert not plan.slots or seen.new_spawning + seen.new_fresh + plan.slots <= seen.step


@given(builds, st.sampled_from(["unproven", "failing"]))
def test_a_build_that_does_not_start_costs_one_slot_at_a_time_and_nothing_old(seen: Builds, how: str) -> None:
    plan = replacement(replace(seen, proven=how != "unproven", failing=how == "failing"))
    assert (plan.idle_go, plan.parked_go) == (0, 0)
    assert not plan.slots or plan.slots + seen.new_spawning + seen.new_fresh <= 1


@given(builds)
def test_without_old_workers_there_is_nothing_to_replace(seen: Builds) -> None:
    rolled = replace(seen, old_idle=0, old_parked=0, old_busy=0)
    assert progress(rolled) is RolloutProgress.DONE
    assert not any((replacement(rolled).slots, replacement(rolled).idle_go, replacement(rolled).parked_go))


@given(builds)
def test_a_build_that_starts_replaces_all_unclaimed_workers_and_then_nothing(seen: Builds) -> None:
    """From any start: in each round the slots become ready, and workers to drain drain."""
    # A ready worker of the wanted build proves that build before it is counted.
    seen = replace(seen, failing=False, old_busy=0, proven=seen.proven or seen.new_idle + seen.new_fresh > 0)
    least = min(seen.target, seen.old_idle + seen.new_idle)
    for _ in range(100):
        plan = replacement(seen)
        ready = seen.new_spawning + seen.new_fresh
        seen = replace(
            seen,
            old_idle=seen.old_idle - plan.idle_go,
            old_parked=seen.old_parked - plan.parked_go,
            new_idle=seen.new_idle + ready,
            new_fresh=0,
            new_spawning=plan.slots,
            proven=seen.proven or ready > 0,
        )
        assert seen.old_idle + seen.new_idle >= least
    assert progress(seen) is RolloutProgress.DONE
    assert seen.new_spawning == 0


@given(amount, st.integers(min_value=1, max_value=100))
def test_a_step_is_a_share_and_at_least_one(workers: int, percent: int) -> None:
    assert 1 <= step_of(workers, percent) <= max(1, workers)
    assert step_of(workers, percent) * 100 <= max(100, workers * percent)


@given(
    everyone=st.lists(st.integers(), unique=True, max_size=30),
    urgent=st.sets(st.integers(), max_size=5),
    most=st.integers(1, 10),
)
def test_every_item_has_a_turn_and_urgent_items_have_every_turn(
    everyone: list[int], urgent: set[int], most: int
) -> None:
    turns = [whose_turn(everyone, urgent, most=most, turn=t) for t in range(7, 7 + 3 * len(everyone) + 1)]
    assert all(len(turn) == len(set(turn)) == min(most, len(everyone)) for turn in turns)
    first = [each for each in everyone if each in urgent][:most]
    assert all(set(first) <= set(turn) for turn in turns)
    if len(first) < most:
        assert {each for turn in turns for each in turn} == set(everyone)
