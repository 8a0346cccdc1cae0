"""The pool as queues: idle, parked and waiting. The rules are those of `pool.lifecycle` (claiming,
matching, holding), without a database, because one thing happens at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pool.core.settings import OrgDefaults, Profile, Settings
from pool.core.states import Reason, Source
from pool.ops.simulating.outcome import Tally


@dataclass(slots=True)
class Waiter:
    """A request that waits."""

    number: int
    at: float
    org: str
    profile: str
    hold_s: float
    done: bool = False


@dataclass(slots=True)
class Parked:
    """A worker that is parked for its org until its TTL."""

    org: str
    profile: str
    since: float
    until: float
    taken: bool = False


@dataclass(slots=True)
class SimulatedOrg:
    """A tenant."""

    limits: OrgDefaults
    in_use: int = 0
    parked: int = 0

    @property
    def at_cap(self) -> bool:
        return bool(self.limits.cap) and self.in_use >= self.limits.cap


@dataclass(slots=True)
class EventKind:
    """One profile's part of the fleet."""

    profile: Profile
    # When each idle worker became ready, oldest first: the order in which they are claimed.
    idle: deque[float] = field(default_factory=deque)
    spawning: int = 0
    # Times of the misses for which no slot was created yet.
    misses: deque[float] = field(default_factory=deque)
    waiting: dict[str, deque[Waiter]] = field(default_factory=dict)


class SimulatedFleet:
    """All workers and all waiting requests. Costs and counts go to the tally."""

    def __init__(self, settings: Settings, tally: Tally) -> None:
        self.settings = settings
        self.tally = tally
        self.kinds = {name: EventKind(profile=p) for name, p in settings.profiles.items()}
        self.orgs: dict[str, SimulatedOrg] = {}
        self.parked: dict[tuple[str, str], list[Parked]] = {}
        self.by_since: deque[Parked] = deque()
        self.live = 0
        self.busy = 0
        self.parked_now = 0
        self.waiting_now = 0

    def org(self, name: str) -> SimulatedOrg:
        found = self.orgs.get(name)
        if found is None:
            found = self.orgs[name] = SimulatedOrg(limits=self.settings.orgs.get(name) or OrgDefaults())
        return found

    def take(self, org: str, kind: EventKind, at: float) -> Source | None:
        """Claim a worker for this org: its own last parked worker, else the warm worker that has been ready
        longest."""
        parked = self._unpark(org, kind.profile.name, at)
        if parked is not None:
            source = Source.HOT_IDLE
        elif kind.idle:
            self.tally.warm_s[kind.profile.name] += at - kind.idle.popleft()
            source = Source.WARM
        else:
            return None
        self.org(org).in_use += 1
        self.busy += 1
        return source

    def why_not(self, org: str) -> Reason:
        if self.org(org).at_cap:
            return Reason.ORG_CAP
        cap = self.settings.pool.max_workers
        return Reason.POOL_CAP if cap and self.live >= cap else Reason.NO_WARM_WORKER

    def wait(self, waiter: Waiter) -> None:
        self.kinds[waiter.profile].waiting.setdefault(waiter.org, deque()).append(waiter)
        self.waiting_now += 1

    def give_up(self, waiter: Waiter) -> None:
        """Take a waiter out of the queue."""
        waiter.done = True
        self.waiting_now -= 1

    def eligible(self, kind: EventKind) -> int:
        """Return the number of waiters that a new worker could serve."""
        if not kind.waiting:
            return 0
        return sum(len(line) for org, line in self._lines(kind) if not self.org(org).at_cap)

    def next_waiter(self, kind: EventKind, *, has_parked: bool = False) -> Waiter | None:
        """Take the next waiter: of the org with the lowest use per weight, then the oldest; within
        an org the oldest.

        With `has_parked`, only of orgs that have a parked worker.
        """
        best: tuple[float, float, str] | None = None
        for name, line in self._lines(kind):
            org = self.org(name)
            if org.at_cap or (has_parked and not self.has_parked(name, kind.profile.name)):
                continue
            rank = (org.in_use / org.limits.weight, line[0].at, name)
            best = rank if best is None or rank < best else best
        if best is None:
            return None
        waiter = kind.waiting[best[2]].popleft()
        self.give_up(waiter)
        return waiter

    def _lines(self, kind: EventKind) -> list[tuple[str, deque[Waiter]]]:
        """Return the queues that are not empty; waiters that are done are removed."""
        for name in list(kind.waiting):
            line = kind.waiting[name]
            while line and line[0].done:
                line.popleft()
            if not line:
                del kind.waiting[name]
        return list(kind.waiting.items())

    def release(self, org: str, kind: EventKind, at: float) -> Parked | None:
        """Park the worker for its org and return it; None if the TTL is 0 and the worker is removed."""
        owner, profile = self.org(org), kind.profile
        owner.in_use -= 1
        self.busy -= 1
        ttl_s = self.settings.ttl_s(profile, call=None, org=owner.limits.hot_idle_ttl_s)
        if ttl_s <= 0:
            return None
        parked = Parked(org=org, profile=profile.name, since=at, until=at + ttl_s)
        self.parked.setdefault((org, profile.name), []).append(parked)
        self.by_since.append(parked)
        owner.parked += 1
        self.parked_now += 1
        return parked

    def has_parked(self, org: str, profile: str) -> bool:
        line = self.parked.get((org, profile))
        while line and line[-1].taken:
            line.pop()
        return bool(line)

    def leave_parking(self, parked: Parked, at: float) -> None:
        """Unpark a worker that is claimed or drained, and count its parked time."""
        parked.taken = True
        self.org(parked.org).parked -= 1
        self.parked_now -= 1
        self.tally.parked_s[parked.profile] += min(at, parked.until) - parked.since
        self.tally.overdue_s[parked.profile] += max(0.0, at - parked.until)

    def forget_taken(self) -> None:
        """Drop entries of workers that are no longer parked, once they are the majority."""
        if len(self.by_since) > 2 * self.parked_now + 1000:
            self.by_since = deque(p for p in self.by_since if not p.taken)

    def _unpark(self, org: str, profile: str, at: float) -> Parked | None:
        if not self.has_parked(org, profile):
            return None
        parked = self.parked[org, profile].pop()
        self.leave_parking(parked, at)
        return parked
