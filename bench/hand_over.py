"""A hand-over: from the call of a release until the next of 500 waiters has its answer, compared with a
plain acquire of an idle worker without waiters.

Ten orgs, one worker and fifty waiters each; a worker stays with its org, so each release serves the
org's oldest waiter. Waiters are real clients: they send their acquire again while their answer is
overdue.
"""

from __future__ import annotations

import itertools
from collections import deque

from bench.lanes import LONG_S, SETTLE_S, BenchLane, lanes
from bench.measuring import BenchReport, Effort, Subject, interleaved
from bench.populating import askers
from bench.waiters import Waiters
from pool.client.aio_held import AsyncWorker
from tests.support.waiting import eventually

# A p99 needs many calls per round.
FULL = Effort(rounds=6, calls=200, warm_up=50)
QUICK = Effort(rounds=3, calls=100, warm_up=20)
ORGS, WAITERS, IDLE = 10, 500, 1_000
MOST = 3.0
_HAND_OVER, _ACQUIRE = f"hand-over, {WAITERS} waiters", "acquire"


class HandOver:
    """Release and wait for the next waiter's answer; each org in turn."""

    def __init__(self, lane: BenchLane, waiters: Waiters) -> None:
        self._lane, self._waiters = lane, waiters
        self._orgs = deque(askers()[:ORGS])
        self._held = deque(waiters.acquire(org, ttl_s=LONG_S) for org in self._orgs)
        for org in self._orgs:
            for _ in range(WAITERS // ORGS):
                waiters.wait_for(org)
        self._all_wait()

    def once(self) -> None:
        self._held.append(self._waiters.hand_over(self._held.popleft()))

    def after(self) -> None:
        """Add a waiter in the place of the one that was served."""
        self._waiters.released()
        self._waiters.wait_for(self._orgs[0])
        self._orgs.rotate(-1)

    def between(self) -> None:
        self._all_wait()
        self._lane.put_right()

    def _all_wait(self) -> None:
        """Wait until the server counts all waiters; the last one may still arrive."""
        eventually(lambda: self._lane.waiting() == WAITERS, within_s=SETTLE_S, every_s=0.5)


class LoneAcquire:
    """A warm worker."""

    def __init__(self, lane: BenchLane, waiters: Waiters) -> None:
        self._lane, self._waiters = lane, waiters
        self._orgs = itertools.cycle(askers()[:ORGS])
        self._taken: list[AsyncWorker] = []
        self._spent = 0

    def once(self) -> None:
        self._taken.append(self._waiters.acquire(next(self._orgs), ttl_s=0))

    def after(self) -> None:
        """It drains; no request waits for another."""
        self._spent += len(self._taken)
        while self._taken:
            self._waiters.release(self._taken.pop())

    def between(self) -> None:
        self._lane.put_right(self._spent)
        self._spent = 0


def run(effort: Effort) -> BenchReport:
    """Start everything, measure, end everything."""
    with lanes() as ground:
        tight, roomy = ground.open("tight", idle=ORGS), ground.open("roomy", idle=IDLE)
        crowd = ground.stack.enter_context(Waiters(tight.url))
        alone = ground.stack.enter_context(Waiters(roomy.url))
        subjects: dict[str, Subject] = {
            _HAND_OVER: HandOver(tight, crowd),
            _ACQUIRE: LoneAcquire(roomy, alone),
            f"{_ACQUIRE} (again)": LoneAcquire(roomy, alone),
        }
        measured = interleaved(subjects, effort)
    figures = (
        measured.ratio("p99: hand-over to acquire", _HAND_OVER, _ACQUIRE, q=99, most=MOST),
        measured.ratio("p50: hand-over to acquire", _HAND_OVER, _ACQUIRE),
        measured.ratio("p99: acquire to itself (the noise)", f"{_ACQUIRE} (again)", _ACQUIRE, q=99),
    )
    return BenchReport(bench="hand-over", figures=figures, measured=measured)
