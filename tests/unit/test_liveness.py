"""An unreachable broker excuses a consumer's silence, also for a while afterwards; a stall is not
excused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool.core.names import ENV_READY_FILE
from pool.core.threads import Threads
from tasks.worker.liveness import SILENT_S, STALLED_S, Liveness, Silence


class HandClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        raise AssertionError("nothing waits here")


class LivenessCase:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.broker_answers = True
        self.silence = Silence(self.clock, lambda: self.broker_answers)
        self.silence.turned()

    def later(self, seconds: float) -> bool:
        """Return whether the silence is excused then."""
        self.clock.now += seconds
        return self.silence.is_excused()


def test_a_consumer_that_turns_is_not_silent() -> None:
    case = LivenessCase()
    case.clock.now += SILENT_S
    assert not case.silence.is_there()
    case.clock.now += 0.1
    assert case.silence.is_there()


def test_a_consumer_that_never_turned_is_silent() -> None:
    assert Silence(HandClock(), lambda: True).is_there()


def test_an_unreachable_broker_excuses_any_silence() -> None:
    case = LivenessCase()
    case.broker_answers = False
    assert all(case.later(3600) for _ in range(5))


def test_a_broker_that_is_back_excuses_silence_for_a_while() -> None:
    case = LivenessCase()
    case.broker_answers = False
    assert case.later(3600)
    case.broker_answers = True
    assert case.later(1)
    assert case.later(STALLED_S)
    assert not case.later(1)


def test_a_turn_or_another_outage_restarts_the_interval() -> None:
    case = LivenessCase()
    assert case.later(1)
    assert not case.later(STALLED_S + 1)
    case.silence.turned()
    assert case.later(1)
    case.broker_answers = False
    assert case.later(STALLED_S + 1)
    case.broker_answers = True
    assert case.later(STALLED_S + 1)


class LivenessProbe:
    """The worker's part of the probe, without a worker: its threads, and whether a turn of the
    consumer touches the file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.clock = HandClock()
        self.stop = threading.Event()
        self.threads = Threads(self.clock, lambda _: None)
        self.liveness = Liveness(self.threads, self.stop, lambda: True)

    def start(self, name: str) -> None:
        self.threads.start(name, self.stop.wait, stop=self.stop, stuck_after_s=60.0)

    def turn(self) -> bool:
        """Return whether the consumer's turn touched the file."""
        self._file.unlink(missing_ok=True)
        self.liveness.turn()
        return self._file.exists()


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LivenessProbe]:
    made = LivenessProbe(tmp_path / "ready")
    monkeypatch.setenv(ENV_READY_FILE, str(tmp_path / "ready"))
    yield made
    made.stop.set()


def test_stuck_thread_fails_the_probe(probe: LivenessProbe) -> None:
    probe.start("timers")
    assert probe.turn()
    probe.clock.now += 61
    assert not probe.turn()
    assert probe.threads.unwell() == ["timers"]
    assert probe.liveness.silence.is_there()
    assert probe.liveness.silence.is_excused()
    probe.clock.now += STALLED_S + 1
    assert not probe.liveness.silence.is_excused()


def test_dead_thread_fails_the_probe(probe: LivenessProbe) -> None:
    dead = probe.threads.make("observer", lambda: None, stop=probe.stop)
    dead._thread = threading.Thread(target=lambda: None)
    dead.start()
    dead.join(5)
    assert not probe.turn()
