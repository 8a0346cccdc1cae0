"""Threads that orgs share: waiting calls of one org never delay another's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from pool.core.clock import SystemClock
from tasks.lane.delaying import MOST, MOST_OF_AN_ORG, Delayed
from tasks.lane.exchange import Taken
from tasks.lane.proving import Proven
from tasks.lane.sharing import SharedThreads
from tests.support.waiting import eventually
from tests.unit.test_incoming_messages import envelope, incoming

WITHIN_S = 10.0
LARGE = 10**9


class ThreadGate:
    """Calls that wait until the gate opens, and how many of them run."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun = threading.Semaphore(0)

    def call(self) -> None:
        self.begun.release()
        self.opened.wait(WITHIN_S)


@pytest.fixture
def gate() -> Iterator[ThreadGate]:
    made = ThreadGate()
    yield made
    made.opened.set()


def test_org_whose_calls_wait_leaves_threads_to_another(gate: ThreadGate) -> None:
    threads = SharedThreads(8, most_in_progress=100, most_bytes=LARGE)
    for _ in range(40):
        assert threads.submit("stuck", gate.call)
    for _ in range(4):
        assert gate.begun.acquire(timeout=WITHIN_S)
    assert not gate.begun.acquire(timeout=0.05), "an org has more than half of the threads"
    for _ in range(40):
        assert threads.submit("stuck too", gate.call)
    served = threading.Event()
    assert threads.submit("other", served.set)
    assert served.wait(WITHIN_S)
    gate.opened.set()
    threads.shutdown()


def test_org_has_a_bounded_number_of_queued_calls(gate: ThreadGate) -> None:
    threads = SharedThreads(4, most_in_progress=3, most_bytes=LARGE)
    assert [threads.submit("acme", gate.call) for _ in range(4)] == [True, True, True, False]
    assert threads.submit("other", gate.call)
    gate.opened.set()
    threads.shutdown()


def test_org_has_a_bounded_number_of_queued_bytes(gate: ThreadGate) -> None:
    threads = SharedThreads(4, most_in_progress=100, most_bytes=1000)
    assert [threads.submit("acme", gate.call, size) for size in (600, 600, 300)] == [True, False, True]
    assert threads.submit("other", gate.call, 5000), "one call of any size"
    gate.opened.set()
    threads.shutdown()
    assert not threads._bytes


def test_bytes_of_a_call_that_has_ended_are_free_again(gate: ThreadGate) -> None:
    threads, ended = SharedThreads(4, most_in_progress=100, most_bytes=1000), threading.Event()
    assert threads.submit("acme", gate.call, 100)
    assert gate.begun.acquire(timeout=WITHIN_S)
    assert threads.submit("acme", ended.set, 800)
    assert ended.wait(WITHIN_S)
    eventually(lambda: threads.submit("acme", gate.call, 800), within_s=WITHIN_S / 3)
    gate.opened.set()
    threads.shutdown()


def test_every_call_is_made_before_shutdown_ends(gate: ThreadGate) -> None:
    threads, made = SharedThreads(2, most_in_progress=1000, most_bytes=LARGE), []
    for n in range(50):
        threads.submit(f"org-{n % 7}", lambda n=n: made.append(n))  # type: ignore[misc]
    threads.submit("acme", lambda: 1 // 0)
    threads.shutdown()
    assert sorted(made) == list(range(50))


class HandClock(SystemClock):
    """A clock that a test moves."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def _now() -> datetime:
    return datetime(2031, 5, 1, 12, tzinfo=UTC)


def taken(org: str | None) -> Taken:
    return Taken(message=incoming(envelope()), proven=Proven(org=org))  # type: ignore[arg-type]


def test_delayed_call_is_due_at_its_time_and_leaves() -> None:
    clock = HandClock()
    delayed = Delayed(clock, _now)
    late, soon = taken("acme"), taken("acme")
    assert delayed.add(late, 30)
    assert delayed.add(soon, 5)
    assert delayed.due() == []
    clock.now_s += 5
    assert delayed.due() == [soon]
    assert delayed.everything() == [late]
    assert delayed.everything() == []


def test_delayed_calls_are_bounded_by_org_and_in_all() -> None:
    delayed = Delayed(HandClock(), _now)
    assert all(delayed.add(taken("acme"), 5) for _ in range(MOST_OF_AN_ORG))
    assert not delayed.add(taken("acme"), 5)
    assert delayed.add(taken("other"), 5)
    assert sum(delayed.add(taken(None), 5) for _ in range(2 * MOST)) == MOST - MOST_OF_AN_ORG - 1
    delayed.everything()
    assert delayed.add(taken("acme"), 5)
