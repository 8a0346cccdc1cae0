"""The event loop of a simulation: requests, releases, pods that become ready, and the passes at
their periods, in virtual time.

The pool's own planning code and settings decide how many slots are wanted, which idle workers are
surplus, how long a released worker stays parked, and the target under a cap. Everything else is in
`Assumptions`.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pool.core import planning
from pool.core.periods import PERIODS_S
from pool.core.settings import Settings
from pool.core.states import Reason, Source
from pool.ops.simulating.fleet import EventKind, Parked, SimulatedFleet, Waiter
from pool.ops.simulating.outcome import Sample, SimulationOutcome, Tally, judge
from pool.ops.simulating.traces import Trace

# Refills requested within this time become one.
NUDGES_WITHIN_S = 0.1
_SAMPLES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What a simulation assumes about the world outside the pool."""

    # Time from creating a slot to its worker being ready.
    spawn_s: float = 10.0
    # Time from the decision to remove a worker until its place is free.
    delete_s: float = 0.5
    # Time to activate a warm worker for an org; a parked worker is activated already.
    activation_s: float = 0.0
    # Longest time callers wait; 0 means that they do not wait.
    wait_s: float = 0.0
    # Whether the pool starts with its warm targets met.
    begins_warm: bool = True


def simulate(
    trace: Trace, settings: Settings, given: Assumptions | None = None, *, label: str = ""
) -> SimulationOutcome:
    """Replay a trace against these settings and return the outcome. Requests for an unknown profile are
    refused."""
    return _Simulation(trace, settings, given or Assumptions()).run(label)


class _Simulation:
    def __init__(self, trace: Trace, settings: Settings, given: Assumptions) -> None:
        self._trace = trace
        self._settings = settings
        self._given = given
        self._tally = Tally()
        self._fleet = SimulatedFleet(settings, self._tally)
        self._events: list[tuple[float, int, Callable[..., None], Any]] = []
        self._order = itertools.count()
        self._nudged: set[str] = set()
        self._line: deque[Waiter] = deque()
        self._expiring: dict[float, deque[Parked]] = {}
        self._end = trace.span_s + given.wait_s
        self._sample_every = max(1, int(self._end / PERIODS_S["reconcile_warm"] / _SAMPLES))
        self._ticks = 0
        self._hits = 0

    def run(self, label: str) -> SimulationOutcome:
        if self._given.begins_warm:
            for kind in self._fleet.kinds.values():
                self._make(kind, self._target(kind), 0.0, after_s=0.0)
        self._later(0.0, self._reconcile_tick, None)
        self._later(PERIODS_S["reap"] / 2, self._reap_tick, None)
        arrivals = zip(
            self._trace.at_s, self._trace.org, self._trace.profile, self._trace.hold_s, strict=True
        )
        for number, (at, org, profile, hold_s) in enumerate(arrivals):
            self._until(at)
            self._ask(number, at, org, profile, hold_s)
        self._until(self._end)
        self._give_up(self._end)
        self._close(self._end)
        return judge(label, self._tally, self._settings.profiles, hits=self._hits, span_s=self._end)

    # Time.

    def _later(self, at: float, what: Callable[..., None], about: Any) -> None:
        heapq.heappush(self._events, (at, next(self._order), what, about))

    def _until(self, at: float) -> None:
        events = self._events
        while events and events[0][0] <= at:
            then, _, what, about = heapq.heappop(events)
            what(then, about)

    # Callers.

    def _ask(self, number: int, at: float, org: str, profile: str, hold_s: float) -> None:
        fleet = self._fleet
        kind = fleet.kinds.get(profile)
        if kind is None:
            self._tally.refused[Reason.UNKNOWN_PROFILE] += 1
            return
        may = not fleet.org(org).at_cap
        # Earlier waiters of other orgs can use a warm worker, but not a worker parked for this org.
        if may and (not kind.waiting or not fleet.eligible(kind) or fleet.has_parked(org, profile)):
            source = fleet.take(org, kind, at)
            if source is not None:
                self._hits += 1
                self._grant(at, at, org, kind, hold_s, source)
                return
        if self._given.wait_s > 0:
            waiter = Waiter(number, at, org, profile, hold_s)
            fleet.wait(waiter)
            self._line.append(waiter)
            return
        reason = fleet.why_not(org)
        self._tally.refused[reason] += 1
        if reason is not Reason.ORG_CAP:
            kind.misses.append(at)

    def _grant(
        self, at: float, asked: float, org: str, kind: EventKind, hold_s: float, source: Source
    ) -> None:
        bound_s = self._given.activation_s if source is Source.WARM else 0.0
        self._tally.sources[source] += 1
        self._tally.waits_s.append(at - asked + bound_s)
        self._later(at + bound_s + hold_s, self._released, (org, kind, at))
        if source is Source.WARM:
            self._nudge(kind.profile.name, at)

    def _released(self, at: float, about: tuple[str, EventKind, float]) -> None:
        org, kind, since = about
        self._tally.busy_s[kind.profile.name] += at - since
        parked = self._fleet.release(org, kind, at)
        if parked is None:
            self._delete(kind.profile.name, at)
        else:
            ttl_s = parked.until - parked.since
            self._expiring.setdefault(ttl_s, deque()).append(parked)
        for other in self._fleet.kinds.values():
            if other.waiting and (other is kind or self._fleet.org(org).limits.cap):
                self._match(other, at)

    def _give_up(self, at: float) -> None:
        """Refuse waiters whose time is over, oldest first; all have the same wait limit."""
        line = self._line
        while line and (line[0].done or line[0].at + self._given.wait_s <= at):
            waiter = line.popleft()
            if not waiter.done:
                self._fleet.give_up(waiter)
                self._tally.refused[Reason.WAIT_TIMEOUT] += 1

    def _match(self, kind: EventKind, at: float) -> None:
        """Give claimable workers to waiters until either runs out."""
        self._give_up(at)
        while kind.waiting:
            waiter = self._fleet.next_waiter(kind, has_parked=not kind.idle)
            if waiter is None:
                return
            source = self._fleet.take(waiter.org, kind, at)
            if source is not None:
                self._grant(at, waiter.at, waiter.org, kind, waiter.hold_s, source)

    # The pool.

    def _target(self, kind: EventKind) -> int:
        return planning.clamped_target(kind.profile.warm_target, self._settings.pool.max_workers)

    def _make(self, kind: EventKind, count: int, at: float, *, after_s: float) -> None:
        self._fleet.live += count
        self._tally.spawned += count
        self._tally.peak_live = max(self._tally.peak_live, self._fleet.live)
        kind.spawning += count
        for _ in range(count):
            self._later(at + after_s, self._ready, (kind, at))

    def _ready(self, at: float, about: tuple[EventKind, float]) -> None:
        kind, since = about
        kind.spawning -= 1
        self._tally.starting_s[kind.profile.name] += at - since
        kind.idle.append(at)
        if kind.waiting:
            self._match(kind, at)

    def _delete(self, profile: str, at: float) -> None:
        self._later(at + self._given.delete_s, self._deleted, profile)
        self._nudge(profile, at)

    def _deleted(self, at: float, profile: str) -> None:
        self._fleet.live -= 1
        self._nudge(profile, at)

    def _nudge(self, profile: str, at: float) -> None:
        if profile not in self._nudged:
            self._nudged.add(profile)
            self._later(at + NUDGES_WITHIN_S, self._refill, profile)

    def _refill(self, at: float, profile: str) -> None:
        self._nudged.discard(profile)
        self._reconcile(self._fleet.kinds[profile], at)

    def _reconcile_tick(self, at: float, _: None) -> None:
        for kind in self._fleet.kinds.values():
            self._reconcile(kind, at)
        if self._ticks % self._sample_every == 0:
            self._tally.samples.append(self._sample(at))
        self._ticks += 1
        self._later(at + PERIODS_S["reconcile_warm"], self._reconcile_tick, None)

    def _reconcile(self, kind: EventKind, at: float) -> None:
        """Run `reconcile_warm` for one profile: match, create missing slots, then make room for waiters at
        the cap."""
        pool, fleet = self._settings.pool, self._fleet
        if kind.waiting:
            self._match(kind, at)
        while kind.misses and kind.misses[0] <= at - pool.miss_fresh_s:
            kind.misses.popleft()
        supply = planning.Supply(
            target=self._target(kind),
            waiters=fleet.eligible(kind),
            misses=len(kind.misses),
            warm=len(kind.idle),
            spawning=kind.spawning,
        )
        wanted = planning.slots_wanted(supply)
        room = max(0, pool.max_workers - fleet.live) if pool.max_workers else wanted
        granted = min(wanted, pool.pass_limit, room)
        for _ in range(max(0, len(kind.misses) - (wanted - granted))):
            kind.misses.popleft()
        if granted:
            self._make(kind, granted, at, after_s=self._given.spawn_s)
        short = min(wanted - granted, supply.waiters)
        if short > 0:
            self._make_room(short, at)

    def _make_room(self, wanted: int, at: float) -> None:
        """Drain idle workers above their profile's target, then the longest-parked workers above their org's
        floor."""
        surplus = sorted(
            (since, name)
            for name, kind in self._fleet.kinds.items()
            for since in planning.surplus(list(kind.idle), kind.profile.warm_target)
        )
        for since, name in surplus[:wanted]:
            self._drain_idle(self._fleet.kinds[name], since, at)
        left = wanted - len(surplus[:wanted])
        for parked in [p for p in self._fleet.by_since if not p.taken] if left > 0 else ():
            if left > 0 and self._drain_parked(parked, at):
                left -= 1

    def _reap_tick(self, at: float, _: None) -> None:
        """Run `reap`: drain workers parked past their TTL or above an org's hot-idle cap, and surplus; refuse
        expired waiters."""
        limit = self._settings.pool.pass_limit
        self._give_up(at)
        for line in self._expiring.values():
            self._past_their_time(line, at, limit)
        self._fleet.forget_taken()
        self._above_park_caps(at)
        for kind in self._fleet.kinds.values():
            target = self._target(kind)
            if len(kind.idle) > target:
                self._surplus(kind, target, at, limit)
        self._later(at + PERIODS_S["reap"], self._reap_tick, None)

    def _past_their_time(self, line: deque[Parked], at: float, limit: int) -> None:
        kept: list[Parked] = []
        while line and limit and (line[0].taken or line[0].until <= at):
            parked = line.popleft()
            if not parked.taken:
                limit -= 1
                if not self._drain_parked(parked, at):
                    kept.append(parked)  # kept by its org's floor; checked again at the next tick
        line.extendleft(reversed(kept))

    def _above_park_caps(self, at: float) -> None:
        over = {n: o for n, o in self._fleet.orgs.items() if 0 < o.limits.hot_idle_cap < o.parked}
        for parked in [p for p in self._fleet.by_since if p.org in over and not p.taken] if over else ():
            org = over[parked.org]
            if org.parked > org.limits.hot_idle_cap:
                self._drain_parked(parked, at)

    def _surplus(self, kind: EventKind, target: int, at: float, limit: int) -> None:
        cutoff = at - self._settings.pool.surplus_ttl_s
        long = list(
            itertools.takewhile(
                lambda since: since <= cutoff, itertools.islice(kind.idle, target + limit + 1)
            )
        )
        for since in planning.surplus(long, target)[:limit]:
            self._drain_idle(kind, since, at)

    def _drain_idle(self, kind: EventKind, since: float, at: float) -> None:
        kind.idle.remove(since)
        self._tally.warm_s[kind.profile.name] += at - since
        self._delete(kind.profile.name, at)

    def _drain_parked(self, parked: Parked, at: float) -> bool:
        """Drain a parked worker and return True, unless its org's floor keeps it; the hot-idle cap overrides
        the floor."""
        org = self._fleet.org(parked.org)
        above_cap = 0 < org.limits.hot_idle_cap < org.parked
        if org.parked <= org.limits.hot_idle_floor and not above_cap:
            return False
        self._fleet.leave_parking(parked, at)
        self._delete(parked.profile, at)
        return True

    # Results.

    def _sample(self, at: float) -> Sample:
        fleet, kinds = self._fleet, self._fleet.kinds.values()
        return Sample(
            at=at,
            busy=fleet.busy,
            idle=sum(len(k.idle) for k in kinds),
            parked=fleet.parked_now,
            spawning=sum(k.spawning for k in kinds),
            waiting=fleet.waiting_now,
            live=fleet.live,
        )

    def _close(self, at: float) -> None:
        """Add the cost of everything that still exists at the end."""
        for kind in self._fleet.kinds.values():
            self._tally.warm_s[kind.profile.name] += sum(at - since for since in kind.idle)
        for parked in self._fleet.by_since:
            if not parked.taken:
                self._fleet.leave_parking(parked, at)
        for _, _, what, about in self._events:
            if what == self._released:
                self._tally.busy_s[about[1].profile.name] += at - about[2]
            elif what == self._ready:
                self._tally.starting_s[about[0].profile.name] += at - about[1]
