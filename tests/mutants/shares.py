"""Fair shares at the pool's cap: each condition of the rule, taken away."""

from __future__ import annotations

from tests.mutants.mutant import RULES, Edit, Mutant, broken

FAIRNESS = "tests/integration/test_fairness.py"
SHARE = f"{RULES}08_share.sql"

MUTANTS: tuple[Mutant, ...] = (
    broken(
        39,
        "a released worker stays with its org however far the org is ahead",
        f"{RULES}05_end.sql",
        "IF e.goes = 'hot_idle' AND c.anyone_waits AND",
        "IF false AND c.anyone_waits AND",
        f"{FAIRNESS}::test_org_that_holds_the_whole_pool_gives_way_to_one_that_waits",
    ),
    broken(
        39,
        "a parked worker is handed to an org that is ahead",
        f"{RULES}04_hand_over.sql",
        "\n        OR warmpool_gives_way(c, l.org, 0, 0, 0));",
        ");",
        f"{FAIRNESS}::test_parked_worker_is_not_handed_to_an_org_that_is_ahead",
    ),
    broken(
        39,
        "a tie does not stay with the holder",
        SHARE,
        "AND r.rank < own GROUP BY",
        "AND r.rank <= own GROUP BY",
        f"{FAIRNESS}::test_org_that_holds_the_whole_pool_gives_way_to_one_that_waits",
    ),
    broken(
        39,
        "room that is being freed does not count",
        SHARE,
        "> warmpool_going(c) + p_given\n",
        "> 0\n",
        f"{FAIRNESS}::test_one_waiter_takes_one_worker_however_many_are_released",
    ),
    broken(
        39,
        "workers that gave way earlier in a batch do not count",
        f"{RULES}05_end.sql",
        "      given := given + 1;\n",
        "",
        f"{FAIRNESS}::test_one_waiter_takes_one_worker_of_a_batch",
    ),
    broken(
        39,
        "slots that are being started do not count",
        SHARE,
        "d.waiters - warmpool_coming(c, d.profile)",
        "d.waiters",
        f"{FAIRNESS}::test_slot_being_started_serves_the_waiter_and_no_other_worker_gives_way",
    ),
    broken(
        39,
        "an org that holds no worker is passed over for ever",
        SHARE,
        "SET passed = q.passed + 1",
        "SET passed = q.passed",
        f"{FAIRNESS}::test_org_whose_share_is_less_than_one_worker_gets_its_turns",
    ),
    broken(
        39,
        "workers of a floor give way to other orgs",
        SHARE,
        "IF o.hot_idle_floor > 0 AND",
        "IF false AND",
        f"{FAIRNESS}::test_workers_of_a_floor_stay_with_their_org",
    ),
    broken(
        39,
        "workers give way to a profile that cannot get new ones",
        SHARE,
        "AND b.open_until > c.at)",
        "AND false)",
        f"{FAIRNESS}::test_nothing_gives_way_to_a_profile_whose_workers_fail_to_start",
    ),
    broken(
        39,
        "workers give way below the pool's cap",
        SHARE,
        "CASE WHEN g.live >= most THEN",
        "CASE WHEN true THEN",
        f"{FAIRNESS}::test_below_the_pools_cap_a_released_worker_stays_with_its_org",
    ),
    Mutant(
        39,
        "an org at its own cap counts as waiting",
        (
            Edit(file=SHARE, was=") o ON o.room > 0", becomes=") o ON true"),
            Edit(file=SHARE, was="LIMIT least(p_most, o.room)) w", becomes="LIMIT p_most) w"),
        ),
        (f"{FAIRNESS}::test_org_at_its_own_cap_does_not_count_as_waiting",),
    ),
    broken(
        39,
        "a profile takes room that a waiter of another profile has first claim to",
        "pool/passes/reconcile_warm.py",
        "min(wanted, room.places, run.limit)",
        "min(wanted, run.limit)",
        f"{FAIRNESS}::test_room_goes_to_an_org_that_waits_for_another_profile",
    ),
    broken(
        39,
        "each run retires one more worker while a pod is being deleted",
        "pool/passes/reconcile_warm.py",
        " - room.going\n",
        "\n",
        f"{FAIRNESS}::test_pass_retires_no_second_worker_while_the_first_is_being_deleted",
    ),
    broken(
        39,
        "only the profile of the retired worker is refilled",
        "pool/lifecycle/retiring.py",
        "                after.refill.update(requests.waited_for(tx, deps.settings.profiles))\n",
        "                pass\n",
        f"{FAIRNESS}::test_room_goes_to_an_org_that_waits_for_another_profile",
    ),
)
