"""`pool.drivers.port` as a test suite. A driver's tests run it with a `ground` fixture; nothing here
uses files, pids or a cluster.

class TestMyDriver(DriverContract):
    @pytest.fixture
    def ground(self) -> Iterator[DriverGround]: ...
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import pytest

from pool.core.errors import Refused, Transient
from pool.drivers.port import (
    LABEL_BUSY,
    LABEL_WORKER,
    NOTE_CLAIM,
    NOTE_EPOCH,
    NOTE_ORG,
    NOTE_REVISION,
    Driver,
    Gone,
    Pod,
    PodPhase,
    PodRole,
    PodSpec,
    Stamp,
    StampResult,
    Word,
)
from tests.support.waiting import eventually

T = TypeVar("T", Pod, Gone)

NOBODY = Stamp(org=None, claim_id=None, epoch=0, busy=False)
HELD = Stamp(org="acme", claim_id="c-1", epoch=1, busy=True)
PARKED = Stamp(org="acme", claim_id=None, epoch=2, busy=False)


class DriverGround(Protocol):
    """The ground of a driver: actions on pods that bypass the driver."""

    def driver(self) -> Driver:
        """Return another driver on the same ground, like that of another replica."""

    def spec(self, name: str = "w-one", *, role: PodRole = PodRole.WORKER) -> PodSpec:
        """Return the spec of a pod that can be created here; its grace period is long."""

    def make_ready(self, pod: Pod) -> Pod:
        """Make the pod ready; return it."""

    def make_busy(self, pod: Pod) -> None:
        """Open a session on it; on deletion it stays until that session ends."""

    def make_unused(self, pod: Pod) -> None:
        """End that session; a terminating pod then ends."""

    def make_container_die(self, pod: Pod) -> None:
        """Kill its container without a request to end it."""

    def make_unaskable(self, pod: Pod) -> None:
        """Let its container run without answering."""

    def lose_companions(self, name: str) -> None:
        """Delete a pod's companions."""

    def leave_companions(self, name: str) -> None:
        """Create companions of a pod that does not exist."""

    def grace_left_s(self, pod: Pod) -> float:
        """How long a terminating pod may take to end."""

    def unreachable(self) -> AbstractContextManager[None]:
        """Make every read fail while the block runs."""


class Watcher:
    """Follows a driver's watch in its own thread."""

    def __init__(self, driver: Driver) -> None:
        self._stop = threading.Event()
        self._told: queue.SimpleQueue[Pod | Gone] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, args=(driver,))

    def wait_for(self, wanted: type[T], name: str, **traits: object) -> T:
        """Return the next event of that name that matches; skip earlier ones."""
        while True:
            event = self._told.get(timeout=10)
            if not isinstance(event, wanted) or event.name != name:
                continue
            if all(getattr(event, trait) == value for trait, value in traits.items()):
                return event

    def _follow(self, driver: Driver) -> None:
        for event in driver.watch(self._stop):
            self._told.put(event)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        assert not self._thread.is_alive(), "a watch continues after its stop"


class DriverContract:
    """The promises of every driver."""

    @pytest.fixture
    def driver(self, ground: DriverGround) -> Iterator[Driver]:
        with _closing(ground.driver()) as driver:
            yield driver

    @pytest.fixture
    def other(self, ground: DriverGround) -> Iterator[Driver]:
        """Another replica's driver."""
        with _closing(ground.driver()) as driver:
            yield driver

    @pytest.fixture
    def ready(self, ground: DriverGround, driver: Driver) -> Pod:
        """A pod that could be granted."""
        return ground.make_ready(driver.create(ground.spec()))

    # Creating

    def test_a_created_pod_is_seen_by_every_replica(
        self, ground: DriverGround, driver: Driver, other: Driver
    ) -> None:
        made = driver.create(ground.spec())
        assert made.name == "w-one"
        assert made.uid
        seen = other.read("w-one")
        assert seen is not None
        assert seen.uid == made.uid
        assert [pod.uid for pod in other.list().pods] == [made.uid]

    def test_a_created_pod_carries_its_profile_and_revision(
        self, ground: DriverGround, driver: Driver
    ) -> None:
        spec = ground.spec()
        pod = driver.create(spec)
        assert pod.labels[LABEL_WORKER] == spec.name
        assert (pod.profile, pod.image, pod.role) == (spec.profile, spec.image, PodRole.WORKER)
        assert pod.annotations[NOTE_REVISION] == spec.revision

    def test_a_created_pod_is_stamped_as_unclaimed(self, ground: DriverGround, driver: Driver) -> None:
        pod = driver.create(ground.spec())
        assert pod.says(NOBODY)
        assert not pod.ever_stamped

    def test_creating_twice_creates_one_pod(
        self, ground: DriverGround, driver: Driver, other: Driver
    ) -> None:
        assert other.create(ground.spec()).uid == driver.create(ground.spec()).uid
        assert len(driver.list().pods) == 1

    def test_concurrent_creates_create_one_pod(
        self, ground: DriverGround, driver: Driver, other: Driver
    ) -> None:
        with ThreadPoolExecutor(8) as threads:
            pods = list(threads.map(lambda d: d.create(ground.spec()), [driver, other] * 4))
        assert len({pod.uid for pod in pods}) == 1
        assert len(driver.list().pods) == 1

    def test_creating_again_does_not_undo_a_stamp(
        self, ground: DriverGround, driver: Driver, ready: Pod
    ) -> None:
        assert driver.stamp(ready, HELD) is StampResult.WRITTEN
        assert driver.create(ground.spec()).says(HELD)

    def test_creating_again_restores_lost_companions(self, ground: DriverGround, driver: Driver) -> None:
        driver.create(ground.spec())
        assert driver.companions() == ("w-one",)
        ground.lose_companions("w-one")
        assert driver.companions() == ()
        driver.create(ground.spec())
        assert driver.companions() == ("w-one",)

    def test_an_invalid_pod_name_is_refused(self, ground: DriverGround, driver: Driver) -> None:
        with pytest.raises(Refused):
            driver.create(ground.spec("../W_one"))
        assert driver.list().pods == ()

    def test_a_ready_pod_is_usable_at_its_endpoint(self, ready: Pod) -> None:
        assert ready.usable
        assert ready.phase is PodPhase.RUNNING
        assert ready.endpoint.startswith("http://")
        assert ready.exit_code is None

    def test_a_placeholder_is_labelled_as_one(self, ground: DriverGround, driver: Driver) -> None:
        driver.create(ground.spec("p-one", role=PodRole.PLACEHOLDER))
        assert [pod.role for pod in driver.list().pods] == [PodRole.PLACEHOLDER]

    # Ending

    def test_a_deleted_pod_goes_with_its_companions(
        self, ground: DriverGround, driver: Driver, ready: Pod
    ) -> None:
        driver.delete(ready.name, ready.uid)
        ground.make_unused(ready)
        eventually(lambda: driver.read(ready.name) is None)
        assert driver.list().pods == ()
        eventually(lambda: driver.companions() == ())

    def test_a_pod_that_was_never_ready_can_be_deleted(self, ground: DriverGround, driver: Driver) -> None:
        pod = driver.create(ground.spec())
        driver.delete(pod.name, pod.uid, grace_s=0)
        eventually(lambda: driver.list().pods == ())

    def test_delete_with_another_uid_deletes_nothing(self, driver: Driver, ready: Pod) -> None:
        driver.delete(ready.name, "another-uid", grace_s=0)
        pod = driver.read(ready.name)
        assert pod is not None
        assert pod.usable
        assert pod.version == ready.version

    def test_delete_without_uid_deletes_any_pod_of_that_name(self, driver: Driver, ready: Pod) -> None:
        driver.delete(ready.name, "", grace_s=0)
        eventually(lambda: driver.read(ready.name) is None)

    def test_deleting_a_missing_pod_succeeds(self, driver: Driver) -> None:
        driver.delete("w-never", "some-uid")
        driver.delete("w-never", "")
        assert driver.list().pods == ()

    def test_a_busy_pod_stays_terminating_until_its_session_ends(
        self, ground: DriverGround, driver: Driver, other: Driver, ready: Pod
    ) -> None:
        ground.make_busy(ready)
        driver.delete(ready.name, ready.uid)
        pod = other.read(ready.name)
        assert pod is not None
        assert pod.terminating
        assert not pod.usable
        assert other.word(pod) is Word.BUSY
        ground.make_unused(ready)
        eventually(lambda: other.read(ready.name) is None)

    def test_repeating_a_delete_never_lengthens_the_grace(
        self, ground: DriverGround, driver: Driver, ready: Pod
    ) -> None:
        ground.make_busy(ready)
        driver.delete(ready.name, ready.uid, grace_s=60)
        driver.delete(ready.name, ready.uid, grace_s=900)
        driver.delete(ready.name, ready.uid)
        assert 0 < ground.grace_left_s(ready) <= 60

    def test_repeating_a_delete_may_shorten_the_grace(
        self, ground: DriverGround, driver: Driver, ready: Pod
    ) -> None:
        ground.make_busy(ready)
        driver.delete(ready.name, ready.uid)
        driver.delete(ready.name, ready.uid, grace_s=0)
        eventually(lambda: driver.read(ready.name) is None)

    def test_a_pod_created_again_has_another_uid(
        self, ground: DriverGround, driver: Driver, ready: Pod
    ) -> None:
        driver.delete(ready.name, ready.uid, grace_s=0)
        eventually(lambda: driver.read(ready.name) is None)
        again = driver.create(ground.spec())
        assert again.uid != ready.uid
        driver.delete(ready.name, ready.uid, grace_s=0)
        assert driver.stamp(ready, HELD) is StampResult.GONE
        seen = driver.read(again.name)
        assert seen is not None
        assert not seen.terminating
        assert seen.says(NOBODY)

    def test_a_dead_container_is_an_ended_pod_until_deleted(
        self, ground: DriverGround, driver: Driver, other: Driver, ready: Pod
    ) -> None:
        ground.make_container_die(ready)
        ended = eventually(lambda: _read_if(other, ready.name, PodPhase.ENDED))
        assert ended is not None
        assert not ended.usable
        assert not ended.terminating
        assert ended.trouble
        assert ended.uid == ready.uid
        assert other.word(ready) is Word.UNUSED
        assert driver.create(ground.spec()).uid == ready.uid
        driver.delete(ready.name, ready.uid)
        eventually(lambda: other.read(ready.name) is None)

    def test_closing_a_driver_leaves_its_pods(self, ground: DriverGround, other: Driver) -> None:
        with _closing(ground.driver()) as driver:
            pod = ground.make_ready(driver.create(ground.spec()))
        seen = other.read(pod.name)
        assert seen is not None
        assert seen.usable

    # Stamping

    def test_a_recent_pod_is_one_that_was_read_or_none(self, driver: Driver, ready: Pod) -> None:
        """A process that does not follow the pods may have no view of them."""
        seen = driver.recent(ready.name)
        assert seen is None or (seen.name, seen.uid) == (ready.name, ready.uid)
        assert driver.recent("no-such-pod") is None

    def test_a_stamp_is_seen_by_every_replica(self, driver: Driver, other: Driver, ready: Pod) -> None:
        assert driver.stamp(ready, HELD) is StampResult.WRITTEN
        seen = other.read(ready.name)
        assert seen is not None
        assert seen.says(HELD)
        assert seen.ever_stamped
        assert seen.labels[LABEL_BUSY] == "true"
        assert seen.labels[LABEL_WORKER] == ready.name
        assert seen.version != ready.version

    def test_a_stamp_based_on_an_old_version_conflicts(
        self, driver: Driver, other: Driver, ready: Pod
    ) -> None:
        assert driver.stamp(ready, HELD) is StampResult.WRITTEN
        assert other.stamp(ready, PARKED) is StampResult.CONFLICT
        seen = other.read(ready.name)
        assert seen is not None
        assert seen.says(HELD)

    def test_a_released_pod_keeps_the_annotation_of_its_org(self, driver: Driver, ready: Pod) -> None:
        driver.stamp(ready, HELD)
        held = driver.read(ready.name)
        assert held is not None
        assert driver.stamp(held, Stamp(org=None, claim_id=None, epoch=2, busy=False)) is StampResult.WRITTEN
        seen = driver.read(ready.name)
        assert seen is not None
        assert seen.annotations[NOTE_ORG] == "acme"
        assert seen.annotations[NOTE_EPOCH] == "2"
        assert NOTE_CLAIM not in seen.annotations

    def test_stamping_an_unchanged_pod_writes_nothing(self, driver: Driver, ready: Pod) -> None:
        assert driver.stamp(ready, NOBODY) is StampResult.WRITTEN
        seen = driver.read(ready.name)
        assert seen is not None
        assert seen.version == ready.version

    def test_a_terminating_pod_is_not_stamped(self, ground: DriverGround, driver: Driver, ready: Pod) -> None:
        ground.make_busy(ready)
        driver.delete(ready.name, ready.uid)
        leaving = driver.read(ready.name)
        assert leaving is not None
        assert driver.stamp(leaving, HELD) is StampResult.TERMINATING
        assert driver.stamp(ready, HELD) is StampResult.TERMINATING

    def test_a_missing_pod_is_not_stamped(self, driver: Driver, ready: Pod) -> None:
        driver.delete(ready.name, ready.uid, grace_s=0)
        eventually(lambda: driver.read(ready.name) is None)
        assert driver.stamp(ready, HELD) is StampResult.GONE

    # Self-reports

    def test_a_worker_reports_itself_whether_it_is_busy(
        self, ground: DriverGround, driver: Driver, ready: Pod
    ) -> None:
        assert driver.word(ready) is Word.UNUSED
        ground.make_busy(ready)
        assert driver.word(ready) is Word.BUSY
        ground.make_unused(ready)
        assert driver.word(ready) is Word.UNUSED

    def test_a_worker_that_cannot_be_reached_is_silent(
        self, ground: DriverGround, driver: Driver, ready: Pod
    ) -> None:
        ground.make_unaskable(ready)
        assert driver.word(ready) is Word.SILENT

    # Reading

    def test_an_empty_list_is_anchored(self, driver: Driver) -> None:
        listing = driver.list()
        assert listing.pods == ()
        assert listing.anchored

    def test_a_list_that_cannot_be_read_raises(
        self, ground: DriverGround, driver: Driver, ready: Pod
    ) -> None:
        with ground.unreachable(), pytest.raises(Transient):
            driver.list()
        assert [pod.uid for pod in driver.list().pods] == [ready.uid]

    def test_a_failed_read_of_a_pod_does_not_count_as_absence(
        self, ground: DriverGround, driver: Driver, ready: Pod
    ) -> None:
        with ground.unreachable():
            with pytest.raises(Transient):
                driver.read(ready.name)
            with pytest.raises(Transient):
                driver.delete(ready.name, ready.uid)
        assert driver.read(ready.name) is not None

    def test_the_cache_needs_no_call_and_has_an_age(
        self, ground: DriverGround, driver: Driver, ready: Pod
    ) -> None:
        driver.list()
        with ground.unreachable():
            cached = driver.cached()
            assert [pod.uid for pod in cached.pods] == [ready.uid]
            assert cached.anchored
            eventually(lambda: driver.cached().age_s > cached.age_s)

    def test_a_cache_before_its_first_list_is_infinitely_old(self, driver: Driver) -> None:
        cached = driver.cached()
        assert not cached.anchored
        assert cached.age_s == math.inf

    def test_a_watch_begins_with_the_existing_pods(self, driver: Driver, ready: Pod) -> None:
        with Watcher(driver) as watcher:
            assert watcher.wait_for(Pod, ready.name).uid == ready.uid

    def test_a_watch_reports_every_change_of_a_pod(
        self, ground: DriverGround, driver: Driver, other: Driver
    ) -> None:
        with Watcher(driver) as watcher:
            pod = other.create(ground.spec())
            ready = ground.make_ready(pod)
            watcher.wait_for(Pod, pod.name, ready=True)
            assert other.stamp(ready, HELD) is StampResult.WRITTEN
            stamped = watcher.wait_for(Pod, pod.name, ever_stamped=True)
            recent = driver.recent(pod.name)
            assert recent is not None
            assert recent.version == stamped.version
            ground.make_busy(ready)
            other.delete(pod.name, pod.uid)
            watcher.wait_for(Pod, pod.name, terminating=True)
            ground.make_unused(ready)
            gone = watcher.wait_for(Gone, pod.name)
        assert gone == Gone(name=pod.name, uid=pod.uid)

    def test_a_watch_reports_that_a_container_ended(
        self, ground: DriverGround, driver: Driver, ready: Pod
    ) -> None:
        with Watcher(driver) as watcher:
            watcher.wait_for(Pod, ready.name, phase=PodPhase.RUNNING)
            ground.make_container_die(ready)
            watcher.wait_for(Pod, ready.name, phase=PodPhase.ENDED)

    def test_several_watches_report_the_same_pods(
        self, ground: DriverGround, driver: Driver, other: Driver
    ) -> None:
        with Watcher(driver) as one, Watcher(other) as two:
            pod = ground.make_ready(driver.create(ground.spec()))
            assert one.wait_for(Pod, pod.name).uid == two.wait_for(Pod, pod.name).uid
            driver.delete(pod.name, pod.uid, grace_s=0)
            assert one.wait_for(Gone, pod.name) == two.wait_for(Gone, pod.name)

    def test_a_watch_keeps_the_cache_fresh(self, ground: DriverGround, driver: Driver, other: Driver) -> None:
        with Watcher(driver):
            pod = other.create(ground.spec())
            eventually(lambda: [seen.uid for seen in driver.cached().pods] == [pod.uid])

    # Companions

    def test_companions_without_a_pod_are_found_and_removed(
        self, ground: DriverGround, driver: Driver
    ) -> None:
        ground.leave_companions("w-lost")
        assert driver.companions() == ("w-lost",)
        driver.delete_companions("w-lost")
        assert driver.companions() == ()

    def test_removing_missing_companions_succeeds(self, driver: Driver) -> None:
        driver.delete_companions("w-never")


def _read_if(driver: Driver, name: str, phase: PodPhase) -> Pod | None:
    pod = driver.read(name)
    return pod if pod is not None and pod.phase is phase else None


@contextmanager
def _closing(driver: Driver) -> Iterator[Driver]:
    try:
        yield driver
    finally:
        driver.close()
