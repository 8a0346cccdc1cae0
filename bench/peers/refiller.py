"""`python -m bench.peers.refiller DATABASE PER_SECOND`: refill the pool after the input line "go", and
stop after "rest".

The database work of a refill is that of the pool: `reconcile_warm` counts demand and creates slots,
and each slot is spawned, confirmed and observed as ready. The pods are entries of a dict, because a
real cluster runs on other machines.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from dataclasses import replace

import structlog

from pool.core.ids import RandomIds, WorkerId
from pool.core.keys import Keyring
from pool.store import connect
from tests.support.world import World

AT_A_TIME = 5


class _NoMark(Keyring):
    """Its workers are marked with the acquire worker's key, which only that process has."""

    def marked(self, worker_id: WorkerId) -> WorkerId:
        return worker_id


class Refiller(threading.Thread):
    """A few at a time, at a steady rate."""

    def __init__(self, database: str, per_second: float) -> None:
        super().__init__(daemon=True)
        self.going = threading.Event()
        self._every_s = AT_A_TIME / per_second
        self._world = World(connect(database, connections=4))
        self._world.deps = replace(self._world.deps, ids=RandomIds(), keys=_NoMark(current=b"k" * 32))
        # The target is never reached, and a run creates a few.
        self._world.profile(warm_target=1_000_000)
        self._world.configure(pass_limit=AT_A_TIME)

    def run(self) -> None:
        due = time.monotonic()
        while True:
            self.going.wait()
            due = max(due + self._every_s, time.monotonic() - self._every_s)
            time.sleep(max(0.0, due - time.monotonic()))
            self.refill()

    def refill(self) -> int:
        """Return how many were created."""
        world = self._world
        world.refill()
        made = [given["worker_id"] for task, given in world.broker.sent if task == "pool.spawn"]
        world.deliver("pool.spawn")
        for worker_id in made:
            world.driver.become_ready(worker_id)
        world.observe()
        world.driver.pods.clear()
        world.broker.sent.clear()
        return len(made)


def main(database: str, per_second: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    refiller = Refiller(database, float(per_second))
    made = refiller.refill()
    assert made == AT_A_TIME, f"{made} workers were made"
    refiller.start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "go":
            refiller.going.set()
        else:
            refiller.going.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
