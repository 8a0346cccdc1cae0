"""A long-lived thread that dies is restarted, counted and logged; a dead or stuck one is reported."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from structlog.testing import capture_logs

from pool.core.clock import SystemClock
from pool.core.threads import Threads
from tests.support.waiting import eventually


class ThreadCase:
    """Threads whose restarts are counted, and one event that ends them all."""

    def __init__(self) -> None:
        self.restarts: Counter[str] = Counter()
        self.stop = threading.Event()
        self.turns = 0
        self.threads = Threads(SystemClock(), lambda name: self.restarts.update([name]))

    def turn(self) -> None:
        """A loop that only turns."""
        while not self.stop.wait(0.01):
            self.turns += 1

    def restarted(self, times: int) -> bool:
        return self.restarts["some thread"] == times

    def goes_on(self) -> None:
        before = self.turns
        eventually(lambda: self.turns > before)


@pytest.fixture
def case() -> Iterator[ThreadCase]:
    made = ThreadCase()
    yield made
    made.stop.set()


class TargetCrash(BaseException):
    """Not even an `Exception`."""


def kill(name: str, error: type[BaseException] = TargetCrash) -> None:
    """Raise this in a thread, wherever it is."""
    ident = next(t.ident for t in threading.enumerate() if t.name == name)
    assert ident is not None
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error)) == 1


@pytest.mark.parametrize("error", [TargetCrash, ValueError, SystemExit])
def test_killed_thread_is_restarted_and_counted(case: ThreadCase, error: type[BaseException]) -> None:
    with capture_logs() as logged:
        case.threads.start("some thread", case.turn, stop=case.stop)
        for times in (1, 2):
            case.goes_on()
            kill("some thread", error)
            eventually(partial(case.restarted, times))
        case.goes_on()
    told = [line for line in logged if line["event"] == "thread_restarted"]
    assert [(line["thread"], line["in_a_row"]) for line in told] == [("some thread", 1), ("some thread", 2)]
    assert case.threads.unwell() == []


def test_thread_that_returns_while_it_is_wanted_is_restarted(case: ThreadCase) -> None:
    ran: list[int] = []
    case.threads.start("hasty", lambda: ran.append(1), stop=case.stop)
    eventually(lambda: len(ran) >= 2 and case.restarts["hasty"] >= 1)


def test_stopped_thread_ends_and_is_not_counted(case: ThreadCase) -> None:
    thread = case.threads.start("ending", case.turn, stop=case.stop)
    case.goes_on()
    case.stop.set()
    thread.join(5)
    assert thread.is_over()
    assert not case.restarts
    assert case.threads.unwell() == []


class HandClock(SystemClock):
    """Intervals that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_thread_that_does_not_turn_is_unhealthy_until_it_turns_again() -> None:
    clock, stop, go_on = HandClock(), threading.Event(), threading.Event()
    threads = Threads(clock, lambda _: None)

    def once() -> None:
        go_on.wait()
        go_on.clear()
        thread.turned()
        stop.wait()

    thread = threads.make("slow", once, stop=stop, stuck_after_s=60.0)
    thread.start()
    clock.now += 59
    assert threads.unwell() == []
    clock.now += 2
    assert threads.unwell() == ["slow"]
    go_on.set()
    eventually(lambda: not threads.unwell())
    stop.set()


def test_dead_thread_is_unhealthy() -> None:
    """Only its own failure ends the runner, such as a failure to start a thread."""
    stop = threading.Event()
    threads = Threads(SystemClock(), lambda _: None)
    thread = threads.make("dead", _end, stop=stop)
    thread._run = lambda: None  # type: ignore[method-assign]
    thread._thread = threading.Thread(target=thread._run)
    thread.start()
    eventually(lambda: threads.unwell() == ["dead"])
    stop.set()
    assert threads.unwell() == []


def _end() -> None:
    pass


def test_counter_that_fails_does_not_end_the_thread(case: ThreadCase) -> None:
    def fails(_: str) -> None:
        raise RuntimeError("no metrics yet")

    threads = Threads(SystemClock(), fails)
    ran: list[int] = []
    run: Callable[[], object] = lambda: ran.append(1)  # noqa: E731
    threads.start("uncounted", run, stop=case.stop)
    eventually(lambda: len(ran) >= 3)
