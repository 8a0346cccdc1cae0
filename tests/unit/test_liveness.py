"""A consumer's silence is excused by a broker that is away, and for a while after; a stall is not."""

from __future__ import annotations

import threading

from tasks.liveness import SILENT_S, STALLED_S, Silence


class HandClock:
    """Moves when it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        raise AssertionError("nothing waits here")


class Case:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.broker_answers = True
        self.silence = Silence(self.clock, lambda: self.broker_answers)
        self.silence.turned()

    def later(self, seconds: float) -> bool:
        """Whether the silence is excused then."""
        self.clock.now += seconds
        return self.silence.is_excused()


def test_a_consumer_that_turns_is_not_silent() -> None:
    case = Case()
    case.clock.now += SILENT_S
    assert not case.silence.is_there()
    case.clock.now += 0.1
    assert case.silence.is_there()


def test_one_that_has_never_turned_is_silent() -> None:
    assert Silence(HandClock(), lambda: True).is_there()


def test_a_broker_that_is_away_excuses_any_silence() -> None:
    case = Case()
    case.broker_answers = False
    assert all(case.later(3600) for _ in range(5))


def test_a_broker_that_is_back_excuses_it_for_a_while() -> None:
    case = Case()
    case.broker_answers = False
    assert case.later(3600)
    case.broker_answers = True
    assert case.later(1)
    assert case.later(STALLED_S)
    assert not case.later(1)


def test_a_turn_or_another_outage_begins_it_anew() -> None:
    case = Case()
    assert case.later(1)
    assert not case.later(STALLED_S + 1)
    case.silence.turned()
    assert case.later(1)
    case.broker_answers = False
    assert case.later(STALLED_S + 1)
    case.broker_answers = True
    assert case.later(STALLED_S + 1)
