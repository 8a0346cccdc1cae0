"""The pool in one process with a real driver: pods are processes or live in a cluster, the rest is
as in `tests.support.world`.

Events of the driver's watch are kept until the test observes them, and pods age with the test's
clock. A real pod needs time, so tests wait explicitly: `scene.until(...)` delivers messages and
observes meanwhile.
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
    """Where a whole pool runs."""

    def driver_of(self, profiles: Mapping[str, Profile]) -> Driver:
        """Return a driver for these profiles; they may change later."""

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the configuration tables of a deployment whose pods are here."""

    def unstartable(self, profile: Profile) -> Profile:
        """Return the same profile with a program that cannot be started here."""


class FollowedDriver:
    """A real driver that keeps the events of its watch for the test."""

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
        """Return all pods as they are now, except terminating ones."""
        return {pod.name: pod for pod in self._driver.list().pods if not pod.terminating}

    def drain_events(self) -> tuple[Pod | Gone, ...]:
        with self._lock:
            events, self._events = self._events, []
        return tuple(events)

    def become_ready(self, name: str) -> None:
        """Wait until the watch has reported that the pod is ready."""
        self.wait_told(name, lambda seen: isinstance(seen, Pod) and seen.usable)

    def wait_told(self, name: str, check: Callable[[Pod | Gone], bool]) -> None:
        """Wait until the watch has reported this state of a pod."""
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
        """Return another replica, which has observed nothing yet."""
        other = Scene(self.store, self.ground)
        other.deps = replace(other.deps, ids=self.deps.ids, settings=self.deps.settings)
        other.configure()
        other.driver.older_by_s = self.driver.older_by_s
        return other

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        self.driver.older_by_s += seconds

    def until(self, check: Callable[[], T], *, within_s: float = SOON_S) -> T:
        """Deliver and observe until the condition holds."""

        def now() -> T:
            self.settle()
            return check()

        return eventually(now, within_s=within_s, every_s=0.1)

    def until_seen(self, check: Callable[[dict[str, Pod]], T]) -> T:
        """Wait until the cache shows it: passes read only the cache."""
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
        """Return the reason of each of its moves."""
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
