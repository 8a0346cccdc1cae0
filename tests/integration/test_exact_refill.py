"""A refill is exact under load: reconciles overlap each other and refills by event, while workers are claimed and new ones become ready."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from pool.core.states import State
from pool.lifecycle import spawning
from tests.support.waiting import eventually
from tests.support.world import World

TARGET = 300


@contextmanager
def over_and_over(*acts: Callable[[], object]) -> Iterator[None]:
    """Each of them runs again and again in a thread of its own, until the block ends."""
    ended = threading.Event()

    def turns(act: Callable[[], object]) -> None:
        while not ended.is_set():
            act()

    with ThreadPoolExecutor(len(acts)) as threads:
        running = [threads.submit(turns, act) for act in acts]
        try:
            yield
        finally:
            ended.set()
        for each in running:
            each.result()


def start_pods(world: World) -> None:
    """Start the pods of new slots, and make them ready one by one."""
    for slot in world.workers(State.SPAWNING):
        spawning.spawn(world.deps, slot.id)
        world.driver.become_ready(slot.id)
        world.observe()


def is_full_again(world: World) -> bool:
    return not world.workers(State.SPAWNING) and len(world.workers(State.IDLE)) >= TARGET


def test_300_claims_at_target_300_refill_exactly_300(world: World) -> None:
    world.profile(warm_target=TARGET)
    world.warm(TARGET)
    reconcile = partial(world.run_pass, "reconcile_warm")
    with over_and_over(reconcile, reconcile, world.refill, partial(start_pods, world)):
        for _ in range(TARGET):
            world.granted("acme")
        eventually(lambda: is_full_again(world), within_s=120)
    assert len(world.rows("workers")) == 2 * TARGET
    reconcile()
    world.refill()
    assert len(world.rows("workers")) == 2 * TARGET
    assert {state: len(world.workers(state)) for state in (State.SPAWNING, State.IDLE, State.HOT)} == {
        State.SPAWNING: 0,
        State.IDLE: TARGET,
        State.HOT: TARGET,
    }
