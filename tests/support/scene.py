"""The pool in one process with a real driver: pods are processes or live in a cluster, the rest is as in `tests.support.world`.

What the driver's watch tells is kept until the test observes it, and pods grow older with the test's clock. A real pod takes its time,
so a test says what it waits for: `scene.until(...)` delivers messages and observes meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, Self, TypeVar

from pool.core.keys import Keyring
from pool.core.records import with_detail
from pool.core.settings import Profile
from pool.core.states import State
from pool.drivers.port import Driver, Gone, Listing, Pod
from pool.store import Store, journal
from tests.contracts.driver import DriverGround
from tests.support.local_ground import MASTER_KEY
from tests.support.waiting import eventually
from tests.support.world import WorldStage

T = TypeVar("T")
SOON_S = 40.0


class PoolGround(DriverGround, Protocol):
    """Where a whole pool stands."""

    def driver_of(self, profiles: Mapping[str, Profile]) -> Driver:
        """A driver for these profiles; they may change later."""

    def tables(self) -> dict[str, dict[str, Any]]:
        """What the configuration of a deployment says whose pods are here."""

    def unstartable(self, profile: Profile) -> Profile:
        """The same profile with a program that can not be started here."""


class FollowedDriver:
    """A real driver, with what its watch told kept for the test."""

    def __init__(self, driver: Driver) -> None:
        self.older_by_s = 0.0
        self._driver = driver
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._events: list[Pod | Gone] = []
        self._newest: dict[str, Pod | Gone] = {}
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        eventually(lambda: driver.cached().age_s < 5, within_s=SOON_S)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def cached(self) -> Listing:
        return self._aged(self._driver.cached())

    def list(self) -> Listing:
        return self._aged(self._driver.list())

    @property
    def pods(self) -> dict[str, Pod]:
        """All pods as they are now, but those that are going."""
        return {pod.name: pod for pod in self._driver.list().pods if not pod.terminating}

    def drain_events(self) -> tuple[Pod | Gone, ...]:
        with self._lock:
            events, self._events = self._events, []
        return tuple(events)

    def become_ready(self, name: str) -> None:
        """Wait until the watch has told that it is."""
        self.wait_told(name, lambda seen: isinstance(seen, Pod) and seen.usable)

    def wait_told(self, name: str, check: Callable[[Pod | Gone], bool]) -> None:
        """Wait until the watch has told this of a pod."""
        eventually(lambda: name in self._newest and check(self._newest[name]), within_s=SOON_S)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._driver.close()

    def _follow(self) -> None:
        for event in self._driver.watch(self._stop):
            with self._lock:
                self._events.append(event)
                self._newest[event.name] = event

    def _aged(self, listing: Listing) -> Listing:
        pods = tuple(replace(pod, age_s=pod.age_s + self.older_by_s) for pod in listing.pods)
        return replace(listing, pods=pods)


class Scene(WorldStage[FollowedDriver]):
    """One replica of everything, on a ground."""

    def __init__(self, store: Store, ground: PoolGround) -> None:
        self._profiles: dict[str, Profile] = {}
        self.ground = ground
        super().__init__(store, FollowedDriver(ground.driver_of(self._profiles)))
        self.deps = replace(self.deps, keys=Keyring(current=MASTER_KEY))
        self.configure()

    def configure(self, **changes: Any) -> None:
        super().configure(**changes)
        self._profiles.update(self.deps.settings.profiles)

    def without_memory(self) -> Scene:
        """Another replica, which has seen nothing yet."""
        other = Scene(self.store, self.ground)
        other.deps = replace(other.deps, ids=self.deps.ids, settings=self.deps.settings)
        other.configure()
        other.driver.older_by_s = self.driver.older_by_s
        return other

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        self.driver.older_by_s += seconds

    def until(self, check: Callable[[], T], *, within_s: float = SOON_S) -> T:
        """Deliver and observe until it is so."""

        def now() -> T:
            self.settle()
            return check()

        return eventually(now, within_s=within_s, every_s=0.1)

    def until_seen(self, check: Callable[[dict[str, Pod]], T]) -> T:
        """Wait until the cache shows it: passes look at nothing else."""
        return eventually(
            lambda: check({pod.name: pod for pod in self.driver.cached().pods}), within_s=SOON_S
        )

    def until_state(self, worker_id: str, state: State) -> None:
        self.until(lambda: self.state_of(worker_id) is state)

    def pod(self, worker_id: str) -> Pod:
        found = self.driver.read(worker_id)
        assert isinstance(found, Pod), f"{worker_id} has no pod"
        return found

    def story(self, worker_id: str) -> list[str]:
        """Why each of its moves was made."""
        with self.store.read() as tx:
            return [
                with_detail(e.reason, e.detail)
                for e in journal.since(tx, limit=100_000)
                if e.worker_id == worker_id
            ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.close()
