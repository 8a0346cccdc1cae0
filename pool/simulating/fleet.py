"""The pool as queues: who is idle, parked, waiting; who is served next. The rules are those of `pool.claiming`, `pool.matching` and `pool.holding`, without
a table: one thing happens at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pool.settings import OrgDefaults, Profile, Settings
from pool.simulating.outcome import Tally
from pool.states import Reason, Source


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
    """A worker that its org keeps until its time is over."""

    org: str
    profile: str
    since: float
    until: float
    taken: bool = False


@dataclass(slots=True)
class Org:
    """A tenant."""

    limits: OrgDefaults
    in_use: int = 0
    parked: int = 0

    @property
    def at_cap(self) -> bool:
        return bool(self.limits.cap) and self.in_use >= self.limits.cap


@dataclass(slots=True)
class Kind:
    """One profile's part of the fleet."""

    profile: Profile
    # When each idle worker became ready, the longest first: the order in which they are taken.
    idle: deque[float] = field(default_factory=deque)
    spawning: int = 0
    # When each miss happened that no slot was made for.
    misses: deque[float] = field(default_factory=deque)
    waiting: dict[str, deque[Waiter]] = field(default_factory=dict)


class Fleet:
    """All workers and all who want one. What it does costs and counts in its tally."""

    def __init__(self, settings: Settings, tally: Tally) -> None:
        self.settings = settings
        self.tally = tally
        self.kinds = {name: Kind(profile=p) for name, p in settings.profiles.items()}
        self.orgs: dict[str, Org] = {}
        self.parked: dict[tuple[str, str], list[Parked]] = {}
        self.by_since: deque[Parked] = deque()
        self.live = 0
        self.busy = 0
        self.parked_now = 0
        self.waiting_now = 0

    def org(self, name: str) -> Org:
        found = self.orgs.get(name)
        if found is None:
            found = self.orgs[name] = Org(limits=self.settings.orgs.get(name) or OrgDefaults())
        return found

    def take(self, org: str, kind: Kind, at: float) -> Source | None:
        """A worker for this org: its own parked one, the one parked last; else the warm one that has been ready longest."""
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
        """Its time to wait is over."""
        waiter.done = True
        self.waiting_now -= 1

    def eligible(self, kind: Kind) -> int:
        """Waiters that a new worker could serve."""
        if not kind.waiting:
            return 0
        return sum(len(line) for org, line in self._lines(kind) if not self.org(org).at_cap)

    def next_waiter(self, kind: Kind, *, has_parked: bool = False) -> Waiter | None:
        """Who is to be served first: the org with the least use for its weight, ties by the oldest wait; within an org the oldest. `has_parked`:
        only orgs that have a worker of their own parked."""
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

    def _lines(self, kind: Kind) -> list[tuple[str, deque[Waiter]]]:
        """The lines that have somebody in them; those who left are forgotten."""
        for name in list(kind.waiting):
            line = kind.waiting[name]
            while line and line[0].done:
                line.popleft()
            if not line:
                del kind.waiting[name]
        return list(kind.waiting.items())

    def release(self, org: str, kind: Kind, at: float) -> Parked | None:
        """The worker is parked for its org; None: it leaves, since nobody keeps it."""
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
        """It is claimed, or drained."""
        parked.taken = True
        self.org(parked.org).parked -= 1
        self.parked_now -= 1
        self.tally.parked_s[parked.profile] += min(at, parked.until) - parked.since
        self.tally.overdue_s[parked.profile] += max(0.0, at - parked.until)

    def forget_taken(self) -> None:
        """Parked workers that are no longer, once they outnumber those that are."""
        if len(self.by_since) > 2 * self.parked_now + 1000:
            self.by_since = deque(p for p in self.by_since if not p.taken)

    def _unpark(self, org: str, profile: str, at: float) -> Parked | None:
        if not self.has_parked(org, profile):
            return None
        parked = self.parked[org, profile].pop()
        self.leave_parking(parked, at)
        return parked
