"""The supervisor's decisions: events in, actions out, on a clock that only the test moves."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from pool.drivers.local.processref import ProcessRef
from pool.ops.up import events as ev
from pool.ops.up.adoption import judge
from pool.ops.up.components import Component, ComponentKind, ReadyFile, StartStage
from pool.ops.up.datadir import Recorded
from pool.ops.up.processes import Exit
from pool.ops.up.supervision import FAILED_STARTS_LIMIT, ComponentPhase, Supervision


def a_component(name: str, stage: StartStage, kind: ComponentKind = ComponentKind.SERVICE) -> Component:
    return Component(
        name=name,
        stage=stage,
        kind=kind,
        argv=(name,),
        readiness=ReadyFile(path=Path(name)),
        fingerprint=f"{name}-now",
        ready_limit_s=60,
        silence_limit_s=60,
        stop_grace_s=10,
    )


COMPONENTS = [
    a_component("redis", StartStage.SERVERS),
    a_component("migrate", StartStage.MIGRATION, ComponentKind.ONE_SHOT),
    a_component("acquire", StartStage.WORKERS),
    a_component("fleet", StartStage.WORKERS),
    a_component("beat", StartStage.DRIVING),
]


class SupervisedRun:
    """A supervision with a clock, and all its actions."""

    def __init__(self, components: Iterable[Component] = COMPONENTS) -> None:
        self.state = Supervision(list(components))
        self.now = 1000.0
        self.orders: list[ev.Action] = []

    def tell(self, *events: ev.Event) -> list[ev.Action]:
        actions = [action for event in events for action in self.state.handle(event, self.now)]
        self.orders += actions
        return actions

    def after(self, seconds: float) -> list[ev.Action]:
        self.now += seconds
        return self.tell(ev.Ticked())

    def exits(self, name: str, code: int | None = 1) -> list[ev.Action]:
        return self.tell(ev.Exited(name, Exit(code=code)))

    def all_up(self) -> SupervisedRun:
        self.tell(ev.Ticked(), ev.Heard("redis"), ev.Ticked())
        self.exits("migrate", 0)
        self.tell(ev.Ticked(), ev.Heard("acquire"), ev.Heard("fleet"), ev.Ticked(), ev.Heard("beat"))
        return self

    def pause_after_crash(self, name: str) -> float:
        """Return how long a crashed component waits for its restart, and that start."""
        waited = 0.0
        while ev.Start(name) not in self.after(0.05):
            waited += 0.05
            assert waited < 10, f"{name} was not started again"
        return waited


def started(actions: Iterable[ev.Action]) -> list[str]:
    return [action.name for action in actions if isinstance(action, ev.Start)]


def test_a_stage_starts_only_when_the_one_before_is_ready() -> None:
    run = SupervisedRun()
    assert started(run.after(0)) == ["redis"]
    assert started(run.after(5)) == []
    run.tell(ev.Heard("redis"))
    assert started(run.after(0)) == ["migrate"]
    run.exits("migrate", 0)
    assert started(run.after(0)) == ["acquire", "fleet"]
    run.tell(ev.Heard("fleet"))
    assert started(run.after(0)) == []
    run.tell(ev.Heard("acquire"))
    assert started(run.after(0)) == ["beat"]


def test_each_component_and_the_whole_pool_are_reported_ready_once() -> None:
    run = SupervisedRun().all_up()
    for name in ("redis", "beat"):
        run.tell(ev.Heard(name))
    told = [action.name for action in run.orders if isinstance(action, ev.TellReady)]
    assert told == ["redis", "migrate", "acquire", "fleet", "beat"]
    assert run.orders.count(ev.AllReady()) == 1


def test_a_one_shot_that_ran_is_not_run_again() -> None:
    run = SupervisedRun().all_up()
    assert run.state.phase("migrate") is ComponentPhase.DONE
    assert started(run.after(100)) == []


def test_an_ended_component_is_restarted_and_its_end_is_explained() -> None:
    run = SupervisedRun().all_up()
    (warning,) = run.exits("fleet", -signal.SIGKILL)
    assert warning == ev.Warn("fleet was killed by SIGKILL; starting it again in 0.2 s")
    assert started(run.after(0.1)) == []
    assert started(run.after(0.1)) == ["fleet"]


def test_a_dead_broker_is_restarted_without_touching_the_rest() -> None:
    run = SupervisedRun().all_up()
    run.exits("redis")
    assert run.after(1) == [ev.Start("redis")]


def test_pauses_between_restarts_grow_up_to_five_seconds() -> None:
    run = SupervisedRun().all_up()
    pauses = []
    for _ in range(8):
        run.exits("beat")
        pauses.append(run.pause_after_crash("beat"))
        run.tell(ev.Heard("beat"))
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0], abs=0.06)


def test_restarts_are_not_limited_in_number() -> None:
    run = SupervisedRun().all_up()
    for _ in range(1200):
        run.exits("beat")
        assert started(run.after(5)) == ["beat"]


def test_pauses_are_short_again_after_half_a_minute_of_running() -> None:
    run = SupervisedRun().all_up()
    for _ in range(4):
        run.exits("beat")
        run.pause_after_crash("beat")
        run.tell(ev.Heard("beat"))
    run.now += 31
    run.exits("beat")
    assert run.pause_after_crash("beat") == pytest.approx(0.2, abs=0.06)


def test_a_component_that_never_became_ready_ends_the_run_with_its_log() -> None:
    run = SupervisedRun()
    run.after(0)
    for _ in range(FAILED_STARTS_LIMIT - 1):
        run.exits("redis")
        run.pause_after_crash("redis")
    actions = run.exits("redis", 3)
    assert actions[:2] == [
        ev.Warn("redis ended with exit code 3; it failed 5 times before it was ready, stopping everything"),
        ev.ShowLog("redis"),
    ]
    assert run.tell(ev.PodsCleared()) == [ev.Finish(1)]


def test_a_component_that_is_not_ready_in_time_counts_as_failed() -> None:
    run = SupervisedRun()
    run.after(0)
    for _ in range(FAILED_STARTS_LIMIT):
        assert ev.Terminate("redis") in run.after(61)
        run.exits("redis", 0)
        run.after(5)
    assert ev.ShowLog("redis") in run.orders


def test_a_component_that_was_ready_before_is_always_restarted() -> None:
    run = SupervisedRun().all_up()
    for _ in range(3 * FAILED_STARTS_LIMIT):
        run.exits("acquire")
        run.after(5)
    assert not run.state.stopping


def test_a_silent_component_is_stopped_then_killed_then_restarted() -> None:
    run = SupervisedRun().all_up()
    others = [ev.Heard(name) for name in ("redis", "acquire", "beat")]
    run.now += 61
    run.tell(*others)
    assert run.tell(ev.Ticked()) == [
        ev.Warn("fleet has not responded for 60 s; restarting it"),
        ev.Terminate("fleet"),
    ]
    assert run.after(9) == []
    assert run.after(1) == [ev.Kill("fleet")]
    run.exits("fleet", -signal.SIGKILL)
    assert run.after(0.2) == [ev.Start("fleet")]


def test_a_component_with_a_heartbeat_is_left_alone() -> None:
    run = SupervisedRun().all_up()
    for _ in range(10):
        run.now += 50
        run.tell(*(ev.Heard(name) for name in ("redis", "acquire", "fleet", "beat")))
        assert run.tell(ev.Ticked()) == []


def test_stopping_goes_from_the_last_stage_to_the_first_and_waits_between() -> None:
    run = SupervisedRun().all_up()
    assert run.tell(ev.StopRequested()) == [ev.Terminate("beat")]
    assert run.after(1) == []
    assert run.exits("beat", 0) == [ev.TellStopped("beat"), ev.Terminate("acquire"), ev.Terminate("fleet")]
    assert run.exits("fleet", 0) == [ev.TellStopped("fleet")]
    assert run.exits("acquire", 0) == [ev.TellStopped("acquire"), ev.ClearPods()]
    assert run.after(1) == []
    assert run.tell(ev.PodsCleared()) == [ev.Terminate("redis")]
    assert run.exits("redis", 0) == [ev.TellStopped("redis"), ev.Finish(0)]
    assert run.after(1) == []


def test_pods_are_deleted_only_after_all_processes_that_create_them_ended() -> None:
    run = SupervisedRun().all_up()
    run.tell(ev.StopRequested())
    run.exits("beat", 0)
    run.exits("acquire", 0)
    run.after(100)
    assert ev.ClearPods() not in run.orders
    assert ev.Kill("fleet") in run.orders
    assert ev.ClearPods() in run.exits("fleet", -9)


def test_a_component_that_does_not_end_in_its_grace_period_is_killed() -> None:
    run = SupervisedRun().all_up()
    run.tell(ev.StopRequested())
    assert run.after(9.9) == []
    assert run.after(0.2) == [ev.Kill("beat")]


def test_a_second_stop_request_kills_everything_and_still_deletes_the_pods_first() -> None:
    run = SupervisedRun().all_up()
    run.tell(ev.StopRequested())
    assert run.tell(ev.StopRequested()) == [ev.Kill("acquire"), ev.Kill("fleet"), ev.Kill("beat")]
    for name in ("acquire", "fleet"):
        run.exits(name, -9)
    assert ev.ClearPods() in run.exits("beat", -9)
    assert run.tell(ev.PodsCleared()) == [ev.Kill("redis")]
    assert ev.Finish(0) in run.exits("redis", -9)


def test_nothing_is_started_while_stopping() -> None:
    run = SupervisedRun().all_up()
    run.exits("fleet")
    run.tell(ev.StopRequested())
    run.exits("acquire")
    assert started(run.after(60)) == []


def test_stopping_before_any_component_is_ready_leaves_nothing() -> None:
    run = SupervisedRun()
    run.after(0)
    assert run.tell(ev.StopRequested()) == [ev.ClearPods()]
    assert run.tell(ev.PodsCleared()) == [ev.Terminate("redis")]
    assert ev.Finish(0) in run.exits("redis", 0)


def test_an_adopted_component_is_not_started_a_second_time() -> None:
    run = SupervisedRun()
    run.tell(ev.Adopted("redis"), ev.Adopted("fleet"))
    assert started(run.after(0)) == []
    run.tell(ev.Heard("redis"), ev.Heard("fleet"), ev.Ticked())
    run.exits("migrate", 0)
    assert started(run.after(0)) == ["acquire"]


FLEET, REDIS = ProcessRef(pid=10, started=1), ProcessRef(pid=11, started=2)


def recorded(name: str, ref: ProcessRef, fingerprint: str = "") -> dict[str, Recorded]:
    return {name: Recorded(ref=ref, fingerprint=fingerprint or f"{name}-now")}


def test_a_process_with_the_same_code_and_settings_is_adopted() -> None:
    found = recorded("fleet", FLEET) | recorded("redis", REDIS)
    leftovers = judge(COMPONENTS, found, {FLEET: "fleet", REDIS: "redis"})
    assert leftovers.adopt == {"fleet": FLEET, "redis": REDIS}
    assert leftovers.end == {}


def test_a_process_with_other_code_or_settings_is_stopped_and_the_others_are_adopted() -> None:
    found = recorded("fleet", FLEET, "fleet-before") | recorded("redis", REDIS)
    leftovers = judge(COMPONENTS, found, {FLEET: "fleet", REDIS: "redis"})
    assert leftovers.adopt == {"redis": REDIS}
    assert leftovers.end == {FLEET: "fleet"}


def test_a_component_that_is_no_longer_wanted_is_stopped() -> None:
    assert judge(COMPONENTS, recorded("flower", FLEET), {}).end == {FLEET: "flower"}


def test_a_process_without_a_record_is_stopped() -> None:
    assert judge(COMPONENTS, {}, {FLEET: "fleet"}).end == {FLEET: "fleet"}


def test_a_one_shot_is_never_adopted() -> None:
    leftovers = judge(COMPONENTS, recorded("migrate", FLEET), {})
    assert leftovers.adopt == {}
    assert leftovers.end == {FLEET: "migrate"}


def test_a_second_process_of_an_adopted_component_is_stopped() -> None:
    twin = replace(FLEET, pid=99)
    leftovers = judge(COMPONENTS, recorded("fleet", FLEET), {FLEET: "fleet", twin: "fleet"})
    assert leftovers.adopt == {"fleet": FLEET}
    assert leftovers.end == {twin: "fleet"}
