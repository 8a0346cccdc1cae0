"""The retry policy: bounded in tries and in time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.backoff import Backoff, retrying
from pool.core.errors import Refused, Transient


class NotedWaits:
    """A clock whose waits take no time and are recorded."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return sum(self.waits)

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        return stop.is_set()


def failing(times: int, error: type[Exception] = Transient) -> tuple[Callable[[], str], list[int]]:
    """A call that fails `times` times, and the number of its calls."""
    calls: list[int] = []

    def call() -> str:
        calls.append(len(calls) + 1)
        if len(calls) <= times:
            raise error(f"failure {len(calls)}")
        return "done"

    return call, calls


policies = st.builds(
    Backoff,
    first_s=st.floats(min_value=0.001, max_value=10),
    factor=st.floats(min_value=1, max_value=4),
    limit_s=st.floats(min_value=10, max_value=60),
    tries=st.integers(min_value=1, max_value=20),
)


@given(policies)
def test_there_is_a_pause_between_tries_and_none_after_the_last(policy: Backoff) -> None:
    assert len(list(policy.pauses())) == policy.tries - 1


@given(policies)
def test_a_pause_is_between_half_and_all_of_its_nominal_length(policy: Backoff) -> None:
    for number, pause in enumerate(policy.pauses(), start=1):
        nominal = policy.nominal(number)
        assert nominal / 2 <= pause * (1 + 1e-9)
        assert pause <= nominal * (1 + 1e-9)


@given(policies, st.integers(min_value=1, max_value=100_000))
def test_no_pause_is_longer_than_the_limit_or_shorter_than_the_one_before(
    policy: Backoff, attempt: int
) -> None:
    assert policy.nominal(attempt) <= policy.nominal(attempt + 1) <= policy.limit_s


def test_pauses_are_jittered() -> None:
    assert len({next(Backoff().pauses()) for _ in range(20)}) > 1


def test_a_call_that_recovers_is_not_called_again() -> None:
    call, calls = failing(2)
    clock = NotedWaits()
    assert retrying(call, policy=Backoff(tries=5), clock=clock) == "done"
    assert calls == [1, 2, 3]
    assert len(clock.waits) == 2


def test_after_the_last_try_its_own_error_is_raised() -> None:
    call, calls = failing(99)
    with pytest.raises(Transient, match="failure 3"):
        retrying(call, policy=Backoff(tries=3), clock=NotedWaits())
    assert calls == [1, 2, 3]


def test_an_error_that_is_not_transient_is_raised_at_once() -> None:
    call, calls = failing(1, Refused)
    with pytest.raises(Refused):
        retrying(call, policy=Backoff(tries=5), clock=NotedWaits())
    assert calls == [1]


def test_a_stop_ends_the_waiting_with_one_last_try() -> None:
    call, calls = failing(99)
    stop = threading.Event()
    stop.set()
    clock = NotedWaits()
    with pytest.raises(Transient, match="failure 2"):
        retrying(call, policy=Backoff(tries=50), clock=clock, stop=stop)
    assert calls == [1, 2]
    assert len(clock.waits) == 1
