"""A consumer's silence is excused by a broker that is away, and for a while after; a stall is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pool.embedded.ports import free_port
from pool.settings import PoolSettings, Settings
from pool.threads import Threads
from tasks import liveness
from tasks.app import app
from tasks.liveness import SILENT_S, STALLED_S, Liveness, Silence
from tasks.reporting import READY_FILE


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


class Probe:
    """The worker's part of the probe, without a worker: its threads, and whether a turn of the consumer touches the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.clock = HandClock()
        self.stop = threading.Event()
        self.threads = Threads(self.clock, lambda _: None)
        self.step = Liveness.__new__(Liveness)
        self.step._silence = Silence(self.clock, lambda: True)

    def start(self, name: str) -> None:
        self.threads.start(name, self.stop.wait, stop=self.stop, stuck_after_s=60.0)

    def turn(self) -> bool:
        """Whether the consumer's turn touched the file."""
        self._file.unlink(missing_ok=True)
        self.step._turn()
        return self._file.exists()


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    made = Probe(tmp_path / "ready")
    monkeypatch.setenv(READY_FILE, str(tmp_path / "ready"))
    monkeypatch.setitem(app.__dict__, "watched", made.threads)
    monkeypatch.setitem(app.__dict__, "lanes", [])
    yield made
    made.stop.set()


def test_stuck_thread_fails_the_probe(probe: Probe) -> None:
    probe.start("timers")
    assert probe.turn()
    probe.clock.now += 61
    assert not probe.turn()
    assert liveness._unwell() == ["timers"]
    assert probe.step._silence.is_there()
    assert probe.step._silence.is_excused()
    probe.clock.now += STALLED_S + 1
    assert not probe.step._silence.is_excused()


def test_dead_thread_fails_the_probe(probe: Probe) -> None:
    dead = probe.threads.make("observer", lambda: None, stop=probe.stop)
    dead._thread = threading.Thread(target=lambda: None)
    dead.start()
    dead.join(5)
    assert not probe.turn()


def test_database_that_is_away_excuses_a_stuck_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    settings = Settings(pool=replace(PoolSettings(), database_url=away, call_timeout_s=2))
    monkeypatch.setitem(app.__dict__, "settings", settings)
    monkeypatch.setattr(liveness, "_broker_answers", lambda: True)
    assert not liveness._others_answer()
    here = replace(settings.pool, database_url=f"sqlite:///{tmp_path / 'pool.db'}")
    monkeypatch.setitem(app.__dict__, "settings", replace(settings, pool=here))
    assert liveness._others_answer()
