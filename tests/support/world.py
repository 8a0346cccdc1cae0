"""A whole pool in one process, for tests of the verbs: a real store, a driver, and a broker whose
messages the test delivers itself, so that the order of lines is the order of events. `World` has
pods without processes; `tests.support.scene` has the same with real ones.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import select, update

from pool.broker.locks import Lease
from pool.core import profiles
from pool.core.clock import SystemClock
from pool.core.contract import Acquire, Cancel, Granted, Pending, RefusedAnswer, Release, Renew
from pool.core.errors import Transient
from pool.core.ids import ClaimId, OrgId, ProfileName, WorkerId
from pool.core.keys import Keyring
from pool.core.records import Held, ReplyTo, SeenWorker
from pool.core.settings import OrgDefaults, PoolSettings, Profile, Settings
from pool.core.states import MoveReason, State
from pool.drivers.port import Driver, Gone, Pod
from pool.drivers.workerapi import HttpWorkerApi
from pool.lifecycle import activating, claiming, observing, retiring, spawning, stamping
from pool.lifecycle.deps import Deps
from pool.metrics import Metrics
from pool.passes import PASSES
from pool.passes.reconcile_warm import refill_once
from pool.passes.running import Run, carry_out
from pool.store import Store, journal, orgs, schema, workers
from pool.store.canaries import canary_answered
from tests.support.podless import PodlessDriver


class CountingIds:
    """Ids in the order of their creation."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def worker(self) -> WorkerId:
        return WorkerId(f"w-{next(self._numbers):06d}")

    def token(self) -> str:
        return f"t-{next(self._numbers):06d}"


@dataclass
class HeldMessages:
    """A broker that keeps sent messages until the test delivers, drops or repeats them."""

    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    replies: list[tuple[ReplyTo, dict[str, Any]]] = field(default_factory=list)
    nudged: set[str] = field(default_factory=set)
    down: bool = False

    def send(self, task: str, **arguments: Any) -> None:
        self.sent.append((task, arguments))

    def send_later(self, task: str, **arguments: Any) -> None:
        self.sent.append((task, arguments))

    def reply(self, to: ReplyTo, answer: Mapping[str, Any]) -> None:
        if self.down:
            raise Transient("redis is down")
        self.replies.append((to, dict(answer)))

    def nudge(self, profile: ProfileName) -> None:
        self.nudged.add(profile)

    def answers_for(self, task_id: str) -> list[dict[str, Any]]:
        return [answer for to, answer in self.replies if to.task_id == task_id]


class FreeLocks:
    """Locks that are always free, for tests that are not about locks."""

    @contextmanager
    def taken(self, name: str, ttl_s: float) -> Iterator[Lease | None]:
        yield _AlwaysHeld()

    def holder(self, name: str) -> str | None:
        return None


class _AlwaysHeld:
    found_empty = False

    def held(self) -> bool:
        return True


class WorldEvent(Driver, Protocol):
    """A driver whose watch events the test takes when it needs them."""

    def drain_events(self) -> tuple[Pod | Gone, ...]:
        """Return the events of its watch since the last call."""

    def become_ready(self, name: str) -> None:
        """Make a pod ready."""


D = TypeVar("D", bound=WorldEvent)


class WorldStage(Generic[D]):
    """Everything a test needs, with short names for what happens in it."""

    def __init__(self, store: Store, driver: D, settings: Settings | None = None) -> None:
        self.store = store
        self.driver = driver
        self.broker = HeldMessages()
        self.deps = Deps(
            store=store,
            broker=self.broker,
            locks=FreeLocks(),
            worker_api=HttpWorkerApi(SystemClock()),
            clock=SystemClock(),
            ids=CountingIds(),
            metrics=Metrics(),
            settings=settings or Settings(),
            keys=Keyring(current=b"k" * 32),
            who="test",
            make_driver=lambda: self.driver,
        )
        self._tasks = itertools.count(1)

    def configure(
        self, *, profiles: Mapping[str, Profile] | None = None, orgs_auto_create: bool = True, **pool: Any
    ) -> None:
        """Apply other settings from here on, as after a restart."""
        settings = replace(
            self.deps.settings,
            pool=replace(self.deps.settings.pool, **pool),
            orgs_auto_create=orgs_auto_create,
        )
        if profiles is not None:
            settings = replace(settings, profiles=profiles)
        self.deps = replace(self.deps, settings=settings)

    def profile(self, name: str = "default", **changes: Any) -> None:
        """Change or add one profile."""
        known = dict(self.deps.settings.profiles)
        known[name] = replace(known.get(name, Profile(name=name)), **changes)
        self.configure(profiles=known)

    def org(self, name: str, **settings: Any) -> None:
        with self.store.write() as tx:
            orgs.seed(tx, OrgId(name), OrgDefaults())
            if settings:
                orgs.change(tx, OrgId(name), settings)

    # Actions of callers.

    def acquire(
        self, org: str = "acme", *, task_id: str | None = None, **given: Any
    ) -> Granted | RefusedAnswer | Pending:
        task_id = task_id or f"task-{next(self._tasks)}"
        asked = Acquire.parse({"org": org, **given}, task_id=task_id)
        return claiming.acquire(self.deps, asked, ReplyTo(task_id=task_id))

    def granted(self, org: str = "acme", **given: Any) -> Granted:
        answer = self.acquire(org, **given)
        assert isinstance(answer, Granted), answer
        return answer

    def refused(self, org: str = "acme", **given: Any) -> RefusedAnswer:
        answer = self.acquire(org, **given)
        assert isinstance(answer, RefusedAnswer), answer
        return answer

    def waits(self, org: str = "acme", **given: Any) -> str:
        """Send an acquire that waits; return its task id."""
        task_id = f"task-{next(self._tasks)}"
        answer = self.acquire(org, task_id=task_id, **{"wait_s": 30, **given})
        assert isinstance(answer, Pending), answer
        return task_id

    def release(self, claim_id: str, condition: str = "clean") -> str:
        return str(claiming.release(self.deps, Release.parse(claim_id, condition))["outcome"])

    def renew(self, *claim_ids: str) -> dict[str, Any]:
        return claiming.renew(self.deps, Renew.parse(list(claim_ids)))

    def cancel(self, org: str, request_id: str) -> str:
        return str(claiming.cancel(self.deps, Cancel.parse(org, request_id))["outcome"])

    # Actions of the pool.

    def deliver(self, *only: str, times: int = 1) -> int:
        """Run the sent messages (of these tasks, or all) as Celery would; return their number."""
        taken = [m for m in self.broker.sent if not only or m[0] in only]
        self.broker.sent = [m for m in self.broker.sent if m not in taken]
        for task, arguments in taken:
            for _ in range(times):
                self.run_task(task, arguments)
        return len(taken)

    def settle(self, rounds: int = 10) -> None:
        """Deliver messages and observe pods until nothing changes."""
        for _ in range(rounds):
            moved = self.deliver()
            self.observe()
            if not moved and not self.broker.sent:
                return

    def observe(self) -> None:
        """Deliver all events of the watch."""
        for seen in self.driver.drain_events():
            observing.observe(self.deps, seen)

    def run_pass(self, name: str, *, dry_run: bool = False) -> dict[str, Any]:
        return carry_out(self.deps, PASSES[name], Run(deps=self.deps, name=name, dry_run=dry_run))

    def refill(self, profile: str = "default") -> None:
        refill_once(self.deps, ProfileName(profile))

    def warm(self, count: int, profile: str = "default") -> list[str]:
        """Create `count` idle workers as the pool creates them."""
        before = {w.id for w in self.workers(State.IDLE)}
        with self.store.write() as tx:
            shape = self.deps.settings.profiles[profile]
            ids = [self.deps.new_worker() for _ in range(count)]
            orgs.reserve_slots(tx, count, 0)
            workers.insert_slots(tx, shape, profiles.revision(shape), ids, self.deps.by(MoveReason.DEMAND))
        for worker_id in ids:
            spawning.spawn(self.deps, worker_id)
            self.driver.become_ready(worker_id)
        self.observe()
        return [w.id for w in self.workers(State.IDLE) if w.id not in before]

    def pass_time(self, seconds: float) -> None:
        """Advance the database's clock."""
        with self.store.write() as tx:
            tx.execute(update(schema.clock).values(shift_s=schema.clock.c.shift_s + seconds))

    def canary(self) -> None:
        with self.store.write() as tx:
            canary_answered(tx, gap_s=10)

    # The current state.

    def workers(self, *states: State) -> list[SeenWorker]:
        with self.store.read() as tx:
            return workers.live(tx, states=frozenset(states or State))

    def worker(self, worker_id: str) -> SeenWorker:
        with self.store.read() as tx:
            found = workers.get(tx, WorkerId(worker_id))
        assert found is not None
        return found

    def state_of(self, worker_id: str) -> State:
        return self.worker(worker_id).state

    def held(self, granted: Granted) -> Held:
        return Held(
            worker_id=WorkerId(granted.worker_id), claim_id=ClaimId(granted.claim_id), epoch=granted.epoch
        )

    def rows(self, table: str) -> list[Any]:
        found = schema.metadata.tables[table]
        with self.store.read() as tx:
            return list(tx.execute(select(found).order_by(*found.primary_key)))

    def check(self) -> None:
        """Check what must always hold: rows are consistent, counters match, the journal replays to
        the table.
        """
        with self.store.snapshot() as tx:
            found = orgs.miscounted(tx) + journal.disagreements(tx)
            for row in workers.live(tx, states=frozenset(State)):
                found += [f"{row.id}: {v}" for v in row.violations()]
        assert not found, found

    def run_task(self, task: str, given: dict[str, Any]) -> None:
        """Run one message as Celery would deliver it."""
        match task:
            case "pool.spawn":
                spawning.spawn(self.deps, given["worker_id"])
            case "pool.retire":
                retiring.retire(self.deps, given["worker_id"])
            case "pool.stamp":
                stamping.stamp(self.deps, given["worker_id"])
            case "pool.activate":
                activating.activate(self.deps, Held(**given))
            case "pool.canary":
                self.canary()
            case _:
                raise AssertionError(f"no such task: {task}")


class World(WorldStage[PodlessDriver]):
    """The test decides what happens to pods."""

    def __init__(self, store: Store, settings: Settings | None = None) -> None:
        super().__init__(store, PodlessDriver(), settings)


STOP = threading.Event()


def a_profile(**changes: Any) -> Profile:
    return replace(Profile(), **changes)


def some_settings(**pool: Any) -> Settings:
    return Settings(pool=replace(PoolSettings(), **pool))
