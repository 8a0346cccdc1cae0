"""When `status` reports dark, overdue and silent, at the exact second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from structlog.testing import capture_logs

from pool.core.periods import PERIODS_S
from pool.core.settings import UNBOUNDED, Settings
from pool.ops import operating, reporting
from pool.ops.cli.status import screen
from pool.ops.doctor import Finding, Level, ceiling, starting
from pool.ops.doctor.finding import unchecked
from pool.ops.operating import Operator
from pool.passes import PASSES
from pool.passes.running import run_once
from tests.support.world import World

ALICE = Operator(name="alice", way="cli", why="")
# What a busy machine may take between two lines of a test.
SLACK_S = 4.0


def seen(world: World) -> dict[str, Any]:
    return reporting.status(world.store, world.deps.settings)


def test_a_pool_without_a_cap_is_reported_as_unbounded_in_status_and_at_the_start(world: World) -> None:
    assert UNBOUNDED == "max_workers is 0: the pool is unbounded; the cluster's autoscaler is the limit"
    assert UNBOUNDED in screen(seen(world)).splitlines()
    with capture_logs() as logged:
        starting.log_limits(world.deps.settings)
    assert [line["cause"] for line in logged] == [UNBOUNDED]
    world.configure(max_workers=7)
    assert "unbounded" not in screen(seen(world))
    with capture_logs() as logged:
        starting.log_limits(world.deps.settings)
    assert logged == []


def test_status_reports_what_was_last_recorded_about_the_limit_of_nodes(world: World) -> None:
    missing = Finding(
        id="node_ceiling:unlimited", level=Level.WARN, evidence="NodePool a has none", fix="set it"
    )
    ceiling.record(world.store, [missing])
    assert "! NodePool a has none; set it" in screen(seen(world)).splitlines()
    ceiling.record(world.store, [unchecked("node_ceiling", "we may not look", "grant it")])
    told = [w["text"] for w in seen(world)["worries"] if w["id"].startswith("node_ceiling")]
    assert told == ["not checked: we may not look; grant it"]
    ceiling.record(world.store, [])
    assert "grant it" not in screen(seen(world))


def test_a_pass_is_dark_after_three_periods_without_success_and_a_paused_one_is_not(world: World) -> None:
    limit_s = 3 * PERIODS_S["sweep_stuck"]
    run_once(world.deps, PASSES["sweep_stuck"])
    world.pass_time(limit_s - SLACK_S)
    assert not seen(world)["passes"]["sweep_stuck"]["dark"]
    world.pass_time(SLACK_S + 0.1)
    assert seen(world)["passes"]["sweep_stuck"]["dark"]
    operating.set_pass_paused(world.store, "sweep_stuck", paused=True, operator=ALICE)
    assert not seen(world)["passes"]["sweep_stuck"]["dark"]


def test_a_pass_that_never_ran_is_dark_three_periods_after_the_pool_was_created(world: World) -> None:
    # The test's database was created a while ago.
    world.pass_time(3 * PERIODS_S["collect_garbage"] - 3000)
    assert not seen(world)["passes"]["collect_garbage"]["dark"]
    world.pass_time(3001)
    told = seen(world)["passes"]["collect_garbage"]
    assert (told["dark"], told["age_s"]) == (True, None)


def test_beat_is_dark_when_no_pass_was_tried_for_twelve_seconds(world: World) -> None:
    run_once(world.deps, PASSES["reap"])
    world.pass_time(12 - SLACK_S)
    assert not seen(world)["beat_dark"]
    world.pass_time(SLACK_S + 0.1)
    assert seen(world)["beat_dark"]


def test_idle_above_the_target_is_overdue_after_its_time_and_three_periods(world: World) -> None:
    world.profile(warm_target=1)
    world.warm(3)
    world.pass_time(world.deps.settings.pool.surplus_ttl_s + 3 * PERIODS_S["reap"] - 10)
    assert seen(world)["profiles"]["default"]["surplus_overdue"] == 0
    world.pass_time(15)
    assert seen(world)["profiles"]["default"]["surplus_overdue"] == 2


def test_an_org_with_only_parked_workers_is_shown(world: World) -> None:
    world.warm(1)
    world.release(world.granted("acme").claim_id)
    told = seen(world)["orgs"]["acme"]
    assert (told["in_use"], told["parked"]) == (0, 1)


def test_refusals_are_counted_for_a_minute(world: World) -> None:
    world.refused("acme")
    assert seen(world)["refused_last_minute"] == {"no_warm_worker": 1}
    world.pass_time(61)
    assert seen(world)["refused_last_minute"] == {}


def test_status_reports_a_profile_that_is_not_the_one_of_the_running_pool(world: World) -> None:
    settings = world.deps.settings
    assert _outdated(world, settings) == {}  # no pass has run
    run_once(world.deps, PASSES["reconcile_warm"])
    assert _outdated(world, settings) == {}
    # Whatever the change: one that needs new pods, one that does not, and a new profile.
    name, profile = next(iter(settings.profiles.items()))
    for changed in (
        replace(profile, command=("other",)),
        replace(profile, warm_target=profile.warm_target + 1),
    ):
        assert list(_outdated(world, replace(settings, profiles={**settings.profiles, name: changed}))) == [
            name
        ]
    more = _outdated(
        world, replace(settings, profiles={**settings.profiles, "new": replace(profile, name="new")})
    )
    assert more == {"new": "is not known to the running pool"}


def _outdated(world: World, settings: Settings) -> dict[str, str]:
    found = reporting.status(world.store, settings)["profiles"]
    return {name: p["outdated"] for name, p in found.items() if p["outdated"]}
