"""What a caller makes the pool remember is bounded: reply addresses, and timers of waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pool.core.ids import RequestPk
from pool.store.requests import MAX_REPLIES
from tasks.lane.waits import LOOK_EVERY_S, Waits
from tests.support.world import World


class HeldTimers:
    """Timers that fire when the test calls them."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], Any]]] = []

    def after(self, seconds: float, call: Callable[[], Any]) -> None:
        self.due.append((seconds, call))

    def fire(self) -> None:
        due, self.due = self.due, []
        for _, call in due:
            call()


class HeldClock:
    """A clock that the test moves."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        raise NotImplementedError


def _pk(world: World, request_id: str) -> RequestPk:
    return next(RequestPk(r.pk) for r in world.rows("requests") if r.request_id == request_id)


def _waits(world: World) -> tuple[Waits, HeldTimers, HeldClock]:
    from dataclasses import replace

    timers, clock = HeldTimers(), HeldClock()
    return Waits(replace(world.deps, clock=clock), timers), timers, clock  # type: ignore[arg-type]


def test_a_request_keeps_only_its_newest_reply_addresses(world: World) -> None:
    for number in range(MAX_REPLIES + 40):
        world.acquire("acme", task_id=f"t-{number}", request_id="same", wait_s=60)
    (row,) = world.rows("requests")
    assert [task for task, _ in row.replies] == [f"t-{n}" for n in range(40, MAX_REPLIES + 40)]
    world.warm(1)
    assert world.broker.answers_for(f"t-{MAX_REPLIES + 39}")
    assert not world.broker.answers_for("t-0")


def test_a_decided_wait_is_removed_from_memory(world: World) -> None:
    waits, timers, _ = _waits(world)
    world.waits("acme", wait_s=3600, request_id="served")
    world.waits("bolt", wait_s=3600, request_id="waiting")
    for request_id in ("served", "waiting"):
        waits.add(_pk(world, request_id), 3600)
    assert (len(waits), len(timers.due)) == (2, 1)
    world.warm(1)
    timers.fire()
    assert len(waits) == 1
    world.warm(1)
    timers.fire()
    assert (len(waits), timers.due) == (0, [])


def test_a_long_wait_ends_at_its_deadline(world: World) -> None:
    waits, timers, clock = _waits(world)
    task = world.waits("acme", wait_s=35, request_id="long")
    waits.add(_pk(world, "long"), 35.05)
    for _ in range(3):
        clock.now_s += LOOK_EVERY_S
        timers.fire()
        assert not world.broker.answers_for(task)
    world.pass_time(36)
    timers.fire()
    assert [a["reason"] for a in world.broker.answers_for(task)] == ["wait_timeout"]


def test_a_short_wait_has_its_own_timer(world: World) -> None:
    waits, timers, _ = _waits(world)
    world.waits("acme", wait_s=2, request_id="short")
    waits.add(_pk(world, "short"), 2.05)
    assert [seconds for seconds, _ in timers.due] == [2.05]
    assert len(waits) == 0
