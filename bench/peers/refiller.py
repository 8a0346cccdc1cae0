"""`python -m bench.peers.refiller DATABASE PER_SECOND`: a process that refills the pool while "go" was the last line it was told, and rests after "rest".

All that a refill does to the database is done as the pool does it: demand is counted and slots are made by `reconcile_warm`, each is spawned, its pod confirmed and seen
to become ready. The pods are entries of a dict: a real cluster works elsewhere."""

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
    """The workers that it makes are taken for ones of the acquire worker's own key, which only that
    one has.
    """

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
        # More are wanted than there will ever be, and a few are made in a run.
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
        """How many were made."""
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
