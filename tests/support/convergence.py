"""Run the pool after faults until it has converged. Time passes in bounded rounds of passes,
messages and pod starts; live holders renew and live callers repeat their requests. `unsettled`
lists what is still wrong afterwards. Used by the crash points, the model and other fault tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pool.core import profiles
from pool.core.contract import Granted, Pending
from pool.core.errors import Refused, Transient
from pool.core.ids import ProfileName
from pool.core.records import SeenWorker
from pool.core.states import BOUND, CLAIMABLE, CLAIMED, LIVE, State
from pool.drivers.port import PodPhase, PodRole
from pool.lifecycle import observing, stamping
from pool.passes import PASSES
from pool.passes.reconcile_warm import refill_once
from pool.store import workers
from tests.support.world import World

# Seconds that pass before each round. Short ones come first, so that leases end while the lane is
# open, also the lease of a worker that replaces one whose activation was silent for 15 s. Long ones
# reach the limits of slots (90, 120 s) and of orphans (120, 300 s), each followed by a second
# observation.
ROUNDS_S = (4, 7, 7, 7, 7, 7, 95, 35, 130, 35, 310, 35, 35, 310)
# All passes but `collect_garbage`, which repairs nothing.
_MENDING = tuple(name for name in PASSES if name != "collect_garbage")
SETTLED_STATES = CLAIMABLE | {State.HOT}


class KeptLocks:
    """Locks in a dict. The lock of a crashed run stays until `expire` is called."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    def taken(self, name: str, ttl_s: float) -> Any:
        return _Taking(self, name)

    def holder(self, name: str) -> str | None:
        return "holder" if name in self.held else None

    def expire(self) -> None:
        self.held.clear()


class _Taking:
    found_empty = False

    def __init__(self, locks: KeptLocks, name: str) -> None:
        self._locks, self._name, self._mine = locks, name, False

    def __enter__(self) -> _Taking | None:
        if self._name in self._locks.held:
            return None
        self._locks.held.add(self._name)
        self._mine = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._mine:
            self._locks.held.discard(self._name)

    def held(self) -> bool:
        return True


@dataclass
class WillingWorkers:
    """Workers that accept any configuration, except the given number that refuse theirs."""

    refusals: int = 0
    activated: list[str] = field(default_factory=list)

    def activate(self, url: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Refused("no", detail="the worker cannot take this configuration")
        self.activated.append(url)

    def healthy(self, url: str, timeout_s: float) -> bool:
        return True


@dataclass
class WorkerLife:
    """A world with holders that renew, callers that wait, and a cluster that starts pods."""

    world: World
    holders: dict[str, Granted] = field(default_factory=dict)
    callers: dict[str, dict[str, Any]] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)

    def hold(self, org: str, **given: Any) -> Granted:
        """A claim whose holder is alive and renews."""
        granted = self.world.granted(org, **given)
        self.holders[granted.claim_id] = granted
        return granted

    def ask(self, org: str, *, task_id: str, lives: bool = True, **given: Any) -> None:
        """An acquire. A live caller repeats it until it has its answer, and holds the worker that
        it gets.
        """
        if lives:
            self.callers[task_id] = {"org": org, **given}
        answer = self.world.acquire(org, task_id=task_id, **given)
        if lives:
            self._hear(task_id, answer)

    def release(self, claim_id: str, condition: str = "clean") -> None:
        """Release the claim; it is not renewed from here on, whatever the answer."""
        self.holders.pop(claim_id, None)
        if self.world.release(claim_id, condition) == "released":
            self.released.add(claim_id)

    def converge(self) -> tuple[int, int]:
        """Run rounds until nothing is left to do; return their number and the seconds that passed."""
        self.world.driver.tell_again()
        left: list[str] = []
        for number, seconds in enumerate(ROUNDS_S, 1):
            self.round(seconds)
            left = self.unsettled()
            if not left:
                self.world.check()
                self.check_held()
                return number, sum(ROUNDS_S[:number])
        raise AssertionError(f"after {len(ROUNDS_S)} rounds and {sum(ROUNDS_S)} s there is left: {left}")

    def round(self, seconds: float) -> None:
        """Let time pass, let callers and holders act, run every pass once and carry out what it
        sent.
        """
        world = self.world
        world.pass_time(seconds)
        world.driver.grow_older(seconds)
        world.canary()
        self.check_held()
        for task_id, given in list(self.callers.items()):
            self._hear(task_id, world.acquire(task_id=task_id, **given))
        self.settle()
        self.check_held()
        for name in _MENDING:
            world.run_pass(name)
        self.settle()

    def settle(self) -> None:
        """Deliver messages, run refills and start pods until nothing changes; then read the
        answers.
        """
        self.settle_quietly()
        self.hear_replies()

    def settle_quietly(self) -> None:
        """Do the same without reading the answers."""
        world = self.world
        for _ in range(12):
            sent, world.broker.sent = world.broker.sent, []
            for task, arguments in sent:
                _left_to_the_pass(partial(world.run_task, task, arguments))
            nudged, world.broker.nudged = world.broker.nudged, set()
            for profile in sorted(nudged):
                _left_to_the_pass(partial(refill_once, world.deps, ProfileName(profile)))
            self.start_pods()
            if not (self.observe() or sent or nudged):
                break

    def observe(self) -> int:
        """Deliver the events of the watch and return their number. A failure restarts the watch, as
        in `observing.follow`.
        """
        events = self.world.driver.drain_events()
        for seen in events:
            try:
                observing.observe(self.world.deps, seen)
            except (Transient, Refused):
                self.world.driver.tell_again()
                break
        return len(events)

    def start_pods(self) -> None:
        driver = self.world.driver
        for name in [
            p.name for p in driver.pods.values() if p.phase is PodPhase.PENDING and not p.unschedulable
        ]:
            driver.become_ready(name)

    def hear_replies(self) -> None:
        """Read answers from the broker: the first one counts, and later ones must be equal."""
        replies, self.world.broker.replies = self.world.broker.replies, []
        for to, answer in replies:
            if to.task_id in self.callers:
                if answer["outcome"] == "granted":
                    self.take_over(answer["claim_id"])
                del self.callers[to.task_id]

    def check_held(self) -> None:
        """Check that every holder still holds its worker: its renewal succeeds, and its pod exists."""
        if not self.holders:
            return
        answer = self.world.renew(*self.holders)
        assert answer["renewed"].keys() == self.holders.keys(), f"live claims were ended: {answer['gone']}"
        for granted in self.holders.values():
            assert granted.worker_id in self.world.driver.pods, f"the pod of live {granted.claim_id} is gone"

    def _hear(self, task_id: str, answer: object) -> None:
        if isinstance(answer, Pending):
            return
        if isinstance(answer, Granted):
            self.holders[answer.claim_id] = answer
        self.callers.pop(task_id, None)

    def take_over(self, claim_id: str) -> None:
        """From here on the holder is alive and renews, unless the claim has ended."""
        (row,) = [c for c in self.world.rows("claims") if c.id == claim_id]
        if row.ended_at is None:
            self.holders[claim_id] = Granted(
                claim_id=row.id, worker_id=row.worker_id, epoch=row.epoch, pod=row.worker_id, endpoint="",
                token="",
                lease_expires_at=row.lease_expires_at, source=row.source,
            )  # fmt: skip

    def unsettled(self) -> list[str]:
        """Return what is not yet in its final state, as sentences."""
        rows = self.world.workers()
        live = [w for w in rows if w.state in LIVE]
        return [
            *self._unsettled_rows(live),
            *self._unsettled_pods(live),
            *self._unsettled_claims(),
            *(f"caller {t} has no answer" for t in self.callers),
            *(f"message {task} is under way" for task, _ in self.world.broker.sent),
        ]

    def _unsettled_rows(self, live: list[SeenWorker]) -> list[str]:
        found = [f"{w.id} is {w.state}" for w in live if w.state not in SETTLED_STATES]
        pods = self.world.driver.pods
        for w in live:
            pod = pods.get(w.id)
            # A holder keeps its terminating pod until it releases it, once the row is marked as
            # leaving.
            told = w.state in CLAIMED and w.leaving_since is not None
            if pod is None or pod.uid != w.pod_uid or not (pod.usable or (told and pod.leaving)):
                found.append(f"{w.id} is {w.state} and its pod is {pod}")
            elif (w.state in BOUND and not pod.says(stamping.wanted(w))) or stamping.is_due(w, pod):
                found.append(f"the pod of {w.id} differs from its row")
        with self.world.store.read() as tx:
            found += [f"{w.id} is parked past its time" for w in workers.parked_past_end(tx, limit=9)]
        for name, profile in self.world.deps.settings.profiles.items():
            idle = sum(1 for w in live if w.state is State.IDLE and w.profile == name)
            if idle != profile.warm_target:
                found.append(f"{idle} of {profile.warm_target} {name} are warm")
            old = [w for w in live if w.profile == name and w.revision != profiles.revision(profile)]
            found += [f"{w.id} is {w.state} and of an old build" for w in old if w.state in CLAIMABLE]
        return found

    def _unsettled_pods(self, live: list[SeenWorker]) -> list[str]:
        driver, known = self.world.driver, {w.id for w in live}
        working = {n for n, p in driver.pods.items() if p.role == PodRole.WORKER}
        found = [f"pod {n} has no row" for n in working - known]
        found += [f"companions of {n} are left" for n in driver.secrets if n not in driver.pods]
        placeholders = len(driver.pods) - len(working)
        wanted = sum(p.headroom for p in self.world.deps.settings.profiles.values())
        return found + ([f"{placeholders} of {wanted} placeholders"] if placeholders != wanted else [])

    def _unsettled_claims(self) -> list[str]:
        claims = {c.id: c for c in self.world.rows("claims")}
        live = {i for i, c in claims.items() if c.ended_at is None}
        held = {w.claim_id for w in self.world.workers(*CLAIMED)}
        found = [f"claim {i} lives without a holder" for i in live - self.holders.keys()]
        found += [f"claim {i} and the rows disagree" for i in live ^ held]
        for r in self.world.rows("requests"):
            if r.decided_at is None:
                found.append(f"request {r.request_id} is {r.state}")
            elif r.replied_at is None:
                found.append(f"the answer to {r.request_id} is not marked as delivered")
        return found


def _left_to_the_pass(task: Callable[[], object]) -> None:
    """Run a message as Celery does: a task that fails is not repeated."""
    with contextlib.suppress(Transient, Refused):
        task()
