"""The simulation: cases that can be computed by hand, and properties of any trace."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.settings import OrgDefaults, PoolSettings, Profile, Settings
from pool.ops.cli import app as cli
from pool.ops.simulating import Assumptions, Trace, simulate
from pool.ops.simulating import traces as demand
from pool.ops.simulating.traces import Crowd, TraceInvalid
from pool.ops.simulating.variants import TryInvalid, changed


def settings(
    *, orgs: dict[str, OrgDefaults] | None = None, profile: dict[str, Any] | None = None, **pool: Any
) -> Settings:
    """Workers of one vCPU and one GiB, so that one hour counts as one of each."""
    size = {"cpu_millicores": 1000, "memory_mib": 1024, "warm_target": 2, **(profile or {})}
    return Settings(pool=PoolSettings(**pool), profiles={"default": Profile(**size)}, orgs=orgs or {})


def asks(*rows: tuple[float, str, float]) -> Trace:
    return Trace.of((at, org, "default", hold) for at, org, hold in rows)


def test_requests_up_to_the_warm_supply_are_hits_and_the_rest_are_misses() -> None:
    seen = simulate(asks((1, "a", 100), (1, "b", 100), (1, "c", 100)), settings(), Assumptions(wait_s=0))
    assert (seen.hits, seen.refused, seen.sources) == (2, {"no_warm_worker": 1}, {"warm": 2})
    assert seen.hit_rate == pytest.approx(2 / 3)


def test_a_waiter_waits_exactly_until_its_pod_is_ready() -> None:
    # Nothing is warm. The request comes at 1; the next reconcile is at 5 and creates its slot,
    # which is ready ten seconds later.
    seen = simulate(
        asks((1, "a", 10)), settings(profile={"warm_target": 0}), Assumptions(wait_s=60, spawn_s=10)
    )
    assert (seen.hits, seen.waited) == (0, 1)
    assert seen.wait_s["p50"] == pytest.approx(14)


def test_a_refill_follows_a_warm_claim_at_once() -> None:
    # Target 1. The claim at 1 triggers a refill, which is created at 1.1 and ready at 11.1: at 12
    # there is one again.
    one = settings(profile={"warm_target": 1, "hot_idle_ttl_s": 0})
    seen = simulate(asks((1, "a", 50), (11, "b", 50), (12, "c", 50)), one, Assumptions(wait_s=0, spawn_s=10))
    assert (seen.hits, seen.refused) == (2, {"no_warm_worker": 1})


def test_an_org_gets_only_its_own_parked_worker_within_its_ttl() -> None:
    few = settings(profile={"warm_target": 0, "hot_idle_ttl_s": 60})
    seen = simulate(asks((1, "a", 10), (50, "a", 10), (51, "b", 10)), few, Assumptions(wait_s=200, spawn_s=5))
    # a waits for its first worker (request at 1, slot at 5, ready at 10) and gets its parked one at
    # 50; b must wait for its own.
    assert seen.sources == {"warm": 2, "hot_idle": 1}
    assert (seen.hits, seen.waited) == (1, 2)


def test_a_parked_worker_is_gone_after_its_ttl() -> None:
    few = settings(profile={"warm_target": 0, "hot_idle_ttl_s": 20})
    seen = simulate(asks((1, "a", 10), (60, "a", 10)), few, Assumptions(wait_s=100, spawn_s=5))
    assert seen.sources == {"warm": 2}
    assert seen.pods == 2


def test_idle_cost_matches_a_computation_by_hand() -> None:
    # One warm worker without a request for an hour, then a claim at the end.
    one = settings(profile={"warm_target": 1})
    seen = simulate(asks((3600, "a", 1)), one, Assumptions(wait_s=0))
    assert seen.idle_vcpu_h["warm"] == pytest.approx(1.0)
    assert seen.idle_gib_h["warm"] == pytest.approx(1.0)
    assert seen.busy_vcpu_h == pytest.approx(0)


def test_parked_and_overdue_seconds_are_counted_separately() -> None:
    # Held from 0.5 to 1.5, parked with a TTL of 10 until 11.5; the reap comes at 12.5.
    one = settings(profile={"warm_target": 1, "hot_idle_ttl_s": 10})
    seen = simulate(asks((0.5, "a", 1), (100, "b", 1)), one, Assumptions(wait_s=0))
    assert seen.idle_vcpu_h["parked"] * 3600 == pytest.approx(10)
    assert seen.idle_vcpu_h["overdue"] * 3600 == pytest.approx(1)


def test_a_claim_of_an_idle_worker_waits_for_activation_and_of_a_parked_one_does_not() -> None:
    seen = simulate(asks((1, "a", 5), (20, "a", 5)), settings(), Assumptions(wait_s=0, activation_s=3))
    assert seen.sources == {"warm": 1, "hot_idle": 1}
    assert sorted(seen.wait_s.values()) == [3.0, 3.0, 3.0]
    assert seen.hits == 2


def test_an_org_at_its_cap_is_refused_as_such_and_makes_no_demand() -> None:
    capped = settings(orgs={"a": OrgDefaults(cap=1)})
    seen = simulate(asks((1, "a", 100), (2, "a", 100), (60, "b", 1)), capped, Assumptions(wait_s=0))
    assert seen.refused == {"org_cap": 1}
    assert seen.pods == 3  # two for the target, one refill


def test_a_waiter_at_its_orgs_cap_is_served_by_its_own_release() -> None:
    capped = settings(orgs={"a": OrgDefaults(cap=1)})
    seen = simulate(asks((1, "a", 10), (2, "a", 10)), capped, Assumptions(wait_s=60))
    assert (seen.hits, seen.waited, seen.refused) == (1, 1, {})
    assert seen.wait_s["p99"] == pytest.approx(9)


def test_the_pools_cap_is_never_exceeded_and_parked_workers_are_drained_for_waiters() -> None:
    full = settings(max_workers=2, profile={"warm_target": 0, "hot_idle_ttl_s": 3600})
    seen = simulate(
        asks((1, "a", 5), (2, "a", 5), (30, "b", 5)), full, Assumptions(wait_s=100, spawn_s=5, delete_s=0.5)
    )
    assert seen.peak_pods == 2
    assert seen.refused == {}
    assert seen.pods == 3


def test_at_the_pools_cap_without_waiting_the_reason_is_pool_cap() -> None:
    full = settings(max_workers=1, profile={"warm_target": 1})
    seen = simulate(asks((1, "a", 50), (2, "b", 50)), full, Assumptions(wait_s=0))
    assert seen.refused == {"pool_cap": 1}


def test_the_org_with_the_least_use_for_its_weight_is_served_first() -> None:
    # One worker at a time. a holds none at its second request; b came later and holds none either,
    # and a's first is served before.
    one = settings(max_workers=1, profile={"warm_target": 1, "hot_idle_ttl_s": 0})
    seen = simulate(asks((1, "a", 10), (2, "a", 10), (3, "b", 10)), one, Assumptions(wait_s=200, spawn_s=1))
    assert (seen.hits, seen.waited) == (1, 2)


def test_idle_workers_above_the_target_drain_after_their_time() -> None:
    # Two misses create two slots above the target of 0; they stay for surplus_ttl_s and drain.
    bare = settings(surplus_ttl_s=30, profile={"warm_target": 0})
    seen = simulate(asks((1, "a", 1), (1, "b", 1), (200, "c", 1)), bare, Assumptions(wait_s=0, spawn_s=4))
    # Slots at 5, ready at 9, idle for 30 at 39, reaped at 42.5.
    assert seen.idle_vcpu_h["warm"] * 3600 == pytest.approx(2 * (42.5 - 9))
    assert seen.refused == {"no_warm_worker": 3}


def test_a_floor_keeps_parked_workers_past_their_ttl() -> None:
    kept = settings(
        orgs={"a": OrgDefaults(hot_idle_floor=1)}, profile={"warm_target": 1, "hot_idle_ttl_s": 10}
    )
    seen = simulate(asks((1, "a", 1), (500, "a", 1)), kept, Assumptions(wait_s=0))
    assert seen.sources == {"warm": 1, "hot_idle": 1}


def test_a_profile_that_is_not_configured_is_refused() -> None:
    seen = simulate(Trace.of([(1, "a", "gpu", 1)]), settings(), Assumptions())
    assert seen.refused == {"unknown_profile": 1}


rows = st.lists(
    st.tuples(
        st.floats(min_value=0, max_value=600), st.sampled_from("abc"), st.floats(min_value=0, max_value=60)
    ),
    max_size=40,
)


@given(rows, st.integers(0, 5), st.integers(0, 8), st.sampled_from([0, 20]), st.sampled_from([0, 15, 400]))
def test_every_request_ends_once_and_the_totals_match(
    some: list[tuple[float, str, float]], target: int, cap: int, wait_s: float, ttl_s: int
) -> None:
    trace = asks(*some)
    chosen = settings(
        max_workers=cap,
        profile={"warm_target": target, "hot_idle_ttl_s": ttl_s},
        orgs={"a": OrgDefaults(cap=2)},
    )
    seen = simulate(trace, chosen, Assumptions(wait_s=wait_s))
    assert seen.requests == len(trace)
    assert seen.hits + seen.waited + sum(seen.refused.values()) == len(trace)
    assert sum(seen.sources.values()) == seen.hits + seen.waited
    assert not cap or seen.peak_pods <= cap
    assert all(v >= -1e-9 for v in seen.idle_vcpu_h.values())
    assert wait_s or not seen.waited
    # Every second of every worker is either used or not: none is counted twice, and only deletions
    # are left out.
    lived = seen.busy_vcpu_h + sum(seen.idle_vcpu_h.values())
    assert lived * 3600 <= seen.pods * seen.span_s + 1e-6


# Traces.


def test_a_trace_is_read_with_its_times_in_seconds_or_as_instants() -> None:
    text = "time,org,profile,hold_s\n2026-11-16T03:00:10Z,b,gpu,5\n2026-11-16T03:00:00Z,a,,2.5\n"
    trace = demand.read(text.splitlines())
    assert list(trace.at_s) == [0.0, 10.0]
    assert (list(trace.org), list(trace.profile), list(trace.hold_s)) == (
        ["a", "b"],
        ["default", "gpu"],
        [2.5, 5.0],
    )
    assert list(demand.read(["time,hold_s", "3,1", "1,1"]).at_s) == [1.0, 3.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "at,org\n1,a\n",
            "line 1: the header lacks time, hold_s; it must have the columns time, org, profile, hold_s",
        ),
        ("time,hold_s\n1,x\n", "line 2: hold_s is 'x'"),
        ("time,hold_s\nnoon,1\n", "line 2: time is 'noon'"),
        ("time,hold_s\n1,-4\n", "line 2: time is 1.0 and hold_s is -4.0; both must be finite"),
        ("time,hold_s\n1,nan\n", "line 2: time is 1.0 and hold_s is nan; both must be finite"),
    ],
)
def test_an_invalid_line_of_a_trace_is_named(text: str, said: str) -> None:
    with pytest.raises(TraceInvalid, match=said):
        demand.read(text.splitlines())


def test_generated_demand_has_the_requested_size_and_is_reproducible() -> None:
    crowd = Crowd(orgs=3, hold_s=10, seed=4)
    steady = demand.poisson(crowd, per_s=1.0, span_s=20_000)
    assert len(steady) == pytest.approx(20_000, rel=0.05)
    assert demand.poisson(crowd, per_s=1.0, span_s=20_000) == steady
    assert sum(steady.hold_s) / len(steady) == pytest.approx(10, rel=0.1)
    assert steady.org.count("org-1") > steady.org.count("org-3")
    assert len(demand.bursts(crowd, size=50, every_s=600, span_s=3600)) == 300
    day = demand.diurnal(crowd, peak_per_s=0.5, span_s=86_400)
    night = sum(1 for at in day.at_s if at < 3600)
    noon = sum(1 for at in day.at_s if 41_400 < at < 45_000)
    assert noon > 5 * night


# Changes, and the command.


def test_changes_apply_to_all_profiles_or_to_one_and_invalid_ones_are_named() -> None:
    two = Settings(profiles={"default": Profile(), "gpu": Profile(name="gpu")})
    tried = changed(two, "warm_target=7, gpu.warm_target=1,max_workers=9")
    assert [tried.profiles[n].warm_target for n in ("default", "gpu")] == [7, 1]
    assert tried.pool.max_workers == 9
    for text in ("warm_target", "warm_target=many", "nonsense=1", "tpu.warm_target=1", "pass_limit=0"):
        with pytest.raises(TryInvalid):
            changed(two, text)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["simulate", *words])
    return int(ended.value.code or 0)


def test_the_command_compares_and_advises(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--burst", "5", "--hours", "0.5", "--try", "warm_target=6") == 0
    out = capsys.readouterr().out
    assert "15 requests over" in out
    assert "as configured" in out
    assert "cheapest setting with a hit rate of at least 99%: warm_target=6" in out


def test_the_command_without_demand_explains_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "give exactly one demand" in capsys.readouterr().err
    assert run("--poisson", "1", "--burst", "3") == 2
