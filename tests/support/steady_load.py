"""Orgs that always have waiters, on a pool of the test's own: each grant is released in its turn, and each
waiter that was served is replaced by a new one."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pool.core.contract import Granted, Pending
from pool.core.states import State
from tests.support.world import World

LONG_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyGrant:
    """A grant, and how many grants of other orgs its waiter saw before it."""

    org: str
    claim_id: str
    worker_id: str
    passed_by: int


@dataclass(slots=True, kw_only=True)
class SteadyLoad:
    """`profiles` has the profile of an org's requests; `default` is used for the others."""

    world: World
    orgs: tuple[str, ...]
    depth: int = 2
    profiles: Mapping[str, str] = field(default_factory=dict)
    served: list[SteadyGrant] = field(default_factory=list)
    held: deque[SteadyGrant] = field(default_factory=deque)
    waiting: dict[str, tuple[str, int]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def top_up(self) -> None:
        """Let every org have its waiters again, the orgs in turn."""
        for org in self.orgs * self.depth:
            while Counter(o for o, _ in self.waiting.values())[org] < self.depth:
                self._ask(org)

    def step(self) -> None:
        """Release the oldest claim and let the pool come to rest, as it does with its events."""
        if self.held:
            self.world.release(self.held.popleft().claim_id)
        self.rest()
        self.top_up()

    def rest(self) -> None:
        """Carry out everything that was sent until nothing moves any more."""
        while True:
            self._hear()
            nudged, self.world.broker.nudged = self.world.broker.nudged, set()
            # Stamps are not what this is about, and most of what is sent.
            self.world.broker.sent = [m for m in self.world.broker.sent if m[0] != "pool.stamp"]
            moved = self.world.deliver()
            for profile in sorted(nudged):
                self.world.refill(profile)
            for slot in self.world.workers(State.SPAWNING):
                if slot.id in self.world.driver.pods:
                    self.world.driver.become_ready(slot.id)
            self.world.observe()
            if not moved and not nudged:
                return

    def shares(self, last: int) -> dict[str, float]:
        """Return each org's part of the last grants."""
        counted = Counter(g.org for g in self.served[-last:])
        return {org: counted[org] / last for org in self.orgs}

    def _ask(self, org: str) -> None:
        task = f"load-{next(self.numbers)}"
        asked = {"wait_s": LONG_S, "lease_s": LONG_S, "profile": self.profiles.get(org, "default")}
        self.waiting[task] = (org, len(self.served))
        answer = self.world.acquire(org, task_id=task, **asked)
        if isinstance(answer, Granted):
            self._serve(task, answer.as_dict())
        assert isinstance(answer, Granted | Pending), answer
        self._hear()

    def _hear(self) -> None:
        replies, self.world.broker.replies = self.world.broker.replies, []
        for to, answer in replies:
            assert answer["outcome"] == "granted", answer
            self._serve(to.task_id, answer)

    def _serve(self, task: str, answer: Mapping[str, Any]) -> None:
        org, since = self.waiting.pop(task)
        # Within an org, first come is first served: only grants of others pass a waiter over.
        passed = sum(1 for g in self.served[since:] if g.org != org)
        got = SteadyGrant(
            org=org, claim_id=answer["claim_id"], worker_id=answer["worker_id"], passed_by=passed
        )
        self.served.append(got)
        self.held.append(got)
