"""Ports that fail on demand. Every external call of the pool is numbered, and a plan selects which
calls fail and how. A call of a kind that `CASES` does not list is an error, so that every new call
declares how it can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from pool.broker.locks import Lease, Locks
from pool.core.errors import Refused, Transient
from pool.core.ids import ProfileName
from pool.core.records import ReplyTo
from pool.drivers.port import Driver
from pool.lifecycle.deps import Broker, Deps, WorkerApi
from pool.store import Store, Tx

T = TypeVar("T")


class Fault(StrEnum):
    """How one call can fail."""

    REFUSED = "refused"
    LOST_REPLY = "lost reply"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    DENIED = "denied"


class Crash(BaseException):
    """The process has ended. No `except Exception` of the pool may catch it, as none catches a
    SIGKILL.
    """


FOUR = (Fault.REFUSED, Fault.LOST_REPLY, Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
# The cluster may also refuse a call for good, which is another kind of error.
FIVE = (*FOUR, Fault.DENIED)

# A call that only reads has no effect: a lost answer is like a refusal, and a crash after it is
# like a crash before the next call.
TWO = (Fault.REFUSED, Fault.CRASH_BEFORE)
LOOKS = (*TWO, Fault.DENIED)

CASES: Mapping[str, tuple[Fault, ...]] = {
    "store.write": FOUR,
    "store.read": FOUR,  # a single statement, which may be the function that claims
    "store.snapshot": TWO,
    "driver.create": FIVE,
    "driver.delete": FIVE,
    "driver.read": LOOKS,
    "driver.list": LOOKS,
    "driver.stamp": FIVE,
    "driver.word": LOOKS,
    "driver.companions": LOOKS,
    "driver.delete_companions": FIVE,
    "locks.take": FOUR,
    "locks.release": FOUR,
    "broker.send": FOUR,
    "broker.send_later": FOUR,
    "broker.nudge": FOUR,
    "broker.reply": FOUR,
    "worker.activate": FIVE,
    "worker.healthy": TWO,
}
# Not external calls: they answer from memory, or are not part of any verb.
NO_CALLS = frozenset(
    {
        "driver.cached",
        "driver.recent",
        "driver.watch",
        "driver.close",
        "locks.holder",
        "store.now",
        "store.close",
    }
)


@dataclass
class Plan:
    """Which calls fail, by number, and the calls that were made."""

    faults: Mapping[int, Fault] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    dead: bool = False

    def arrive(self, name: str) -> Fault | None:
        """Record the next call and return how it is to fail. A crashed process makes no further
        call.
        """
        if self.dead:
            raise Crash
        if name not in CASES:
            raise AssertionError(f"CASES does not say how {name} can fail")
        self.calls.append(name)
        fault = self.faults.get(len(self.calls) - 1)
        if fault is Fault.CRASH_BEFORE:
            self.die()
        return fault

    def call(self, name: str, effect: Callable[[], T]) -> T:
        """Make the call, and let it fail if the plan selects it."""
        fault = self.arrive(name)
        if fault is Fault.REFUSED:
            raise Transient(f"{name} was refused")
        if fault is Fault.DENIED:
            raise Refused("forbidden", detail=f"{name} is not allowed")
        result = effect()
        self.leave(name, fault)
        return result

    def leave(self, name: str, fault: Fault | None) -> None:
        """Fail after the call has had its effect."""
        if fault is Fault.LOST_REPLY:
            raise Transient(f"the answer to {name} was lost")
        if fault is Fault.CRASH_AFTER:
            self.die()

    def die(self) -> None:
        self.dead = True
        raise Crash


class FailingStore:
    """One transaction is one call. A refused one has done all its work and does not commit."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._store = store
        self._plan = plan

    @contextmanager
    def write(self) -> Iterator[Tx]:
        with self._once("write") as tx:
            yield tx

    @contextmanager
    def read(self) -> Iterator[Tx]:
        with self._once("read") as tx:
            yield tx

    @contextmanager
    def snapshot(self) -> Iterator[Tx]:
        with self._once("snapshot") as tx:
            yield tx

    ask = Store.ask

    @contextmanager
    def _once(self, how: str) -> Iterator[Tx]:
        name = f"store.{how}"
        fault = self._plan.arrive(name)
        # A single statement commits by itself: it is refused before it runs, or not at all.
        if fault is Fault.REFUSED and how == "read":
            raise Transient("store.read was refused")
        with getattr(self._store, how)() as tx:
            yield tx
            if fault is Fault.REFUSED:
                raise Transient(f"store.{how} was not committed")
        self._plan.leave(name, fault)


class FailingDriver:
    """Count every call of the port under its name."""

    def __init__(self, driver: Driver, plan: Plan) -> None:
        self._driver = driver
        self._plan = plan

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._driver, verb)
        if f"driver.{verb}" in NO_CALLS:
            return real
        return lambda *args, **kwargs: self._plan.call(f"driver.{verb}", lambda: real(*args, **kwargs))


class FailingLocks:
    """Acquiring and releasing a lock are calls; the lock of a crashed run stays held until its TTL
    is over.
    """

    def __init__(self, locks: Locks, plan: Plan) -> None:
        self._locks = locks
        self._plan = plan

    @contextmanager
    def taken(self, name: str, ttl_s: float) -> Iterator[Lease | None]:
        taken = self._locks.taken(name, ttl_s)
        lease = self._plan.call("locks.take", taken.__enter__)
        try:
            yield lease
        finally:
            if lease is not None:
                self._give_back(taken)

    def _give_back(self, taken: Any) -> None:
        try:
            self._plan.call("locks.release", lambda: taken.__exit__(None, None, None))
        except Transient:
            """As in `pool.broker.locks`: the lock expires by itself."""

    def holder(self, name: str) -> str | None:
        return self._locks.holder(name)


class FailingBroker:
    """`send` and `nudge` never raise: refused means lost, and a lost reply means sent twice."""

    def __init__(self, broker: Broker, plan: Plan) -> None:
        self._broker = broker
        self._plan = plan

    def send(self, task: str, **arguments: Any) -> None:
        self._post("send", lambda: self._broker.send(task, **arguments))

    def send_later(self, task: str, **arguments: Any) -> None:
        self._post("send_later", lambda: self._broker.send_later(task, **arguments))

    def nudge(self, profile: ProfileName) -> None:
        self._post("nudge", lambda: self._broker.nudge(profile))

    def reply(self, to: ReplyTo, answer: Mapping[str, Any]) -> None:
        self._plan.call("broker.reply", lambda: self._broker.reply(to, answer))

    def _post(self, verb: str, effect: Callable[[], None]) -> None:
        fault = self._plan.arrive(f"broker.{verb}")
        if fault is Fault.REFUSED:
            return
        effect()
        if fault is Fault.LOST_REPLY:
            effect()
        elif fault is not None:
            self._plan.die()


class FailingWorkers:
    """The answers of workers, which can fail."""

    def __init__(self, worker_api: WorkerApi, plan: Plan) -> None:
        self._worker_api = worker_api
        self._plan = plan

    def activate(self, url: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> None:
        self._plan.call("worker.activate", lambda: self._worker_api.activate(url, body, headers, timeout_s))

    def healthy(self, url: str, timeout_s: float) -> bool:
        try:
            return self._plan.call("worker.healthy", lambda: self._worker_api.healthy(url, timeout_s))
        except Transient:
            return False


def failing(deps: Deps, plan: Plan) -> Deps:
    """Return the same pool in a process whose calls fail by this plan."""
    driver: Any = FailingDriver(deps.driver, plan)
    store: Any = FailingStore(deps.store, plan)
    return replace(
        deps,
        store=store,
        broker=FailingBroker(deps.broker, plan),
        locks=FailingLocks(deps.locks, plan),
        worker_api=FailingWorkers(deps.worker_api, plan),
        make_driver=lambda: driver,
    )
