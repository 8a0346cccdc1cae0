"""Whether a worker is well: its consumer turns and none of its long-lived threads is dead or stuck, or the broker or the database is away. One that
stands still while both answer everybody else is stalled, and only a restart helps it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import structlog
from celery import bootsteps
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from pool import config, wiring
from pool.clock import Clock, SystemClock
from pool.errors import PoolError
from pool.store import ping
from tasks.app import app
from tasks.reporting import touch, touch_alive

log = structlog.get_logger(__name__)

BEAT_S = 2.0
# So long without a turn is silence.
SILENT_S = 3 * BEAT_S
# Celery waits up to 32 s between two tries to connect.
STALLED_S = 45.0
_ASK_TIMEOUT_S = 1.0
# To ask the database may take a connection timeout and a statement timeout.
_STUCK_S = 120.0


class Silence:
    """A consumer or a thread that does not turn. That is in order while the broker or the database is away, and for a while after it is back."""

    def __init__(self, clock: Clock, others_answer: Callable[[], bool]) -> None:
        self._clock = clock
        self._others_answer = others_answer
        self._turned = -math.inf
        self._answered_since: float | None = None

    def turned(self) -> None:
        self._turned = self._clock.monotonic()
        self._answered_since = None

    def is_there(self) -> bool:
        return self._clock.monotonic() - self._turned > SILENT_S

    def is_excused(self) -> bool:
        """Whether a restart would not help. Asks the broker and the database."""
        if not self._others_answer():
            self._answered_since = None
            return True
        now = self._clock.monotonic()
        if self._answered_since is None:
            self._answered_since = now
        return now - self._answered_since <= STALLED_S


class Liveness(bootsteps.StartStopStep):
    """Touches the ready file from the consumer's own loop, so that a stalled consumer shows. While the broker is away the loop stands
    still, in Celery's hands or in those of the Redis client; then a thread touches it."""

    # It starts when the worker consumes. Without this Celery may start it before the connection is there.
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._touch = touch_alive
        self._silence = Silence(SystemClock(), _others_answer)
        self._thread = app.watched.make(
            "liveness", self._in_silence, stop=threading.Event(), stuck_after_s=_STUCK_S
        )
        self._thread.start()

    def start(self, parent: Any) -> None:
        """Called anew after every reconnection, since the loop's timers are cleared then."""
        self._touch = touch
        self._turn()
        parent.timer.call_repeatedly(BEAT_S, self._turn)

    def _turn(self) -> None:
        if _unwell():
            return
        self._silence.turned()
        touch()

    def _in_silence(self) -> None:
        clock, never = SystemClock(), threading.Event()
        self._touch()
        while not clock.wait(never, BEAT_S):
            self._thread.turned()
            if not self._silence.is_there():
                continue
            if app.stopping.is_set() or self._silence.is_excused():
                self._touch()
            else:
                what = ", ".join(_unwell()) or "the consumer"
                log.error("consumer_stalled", cause=f"broker and database answer, and {what} does not turn")


def _unwell() -> list[str]:
    """The threads of this process that are dead or stuck."""
    return app.watched.unwell() + ["lane" for lane in app.lanes if not lane.is_well()]


def _others_answer() -> bool:
    return _broker_answers() and _database_answers()


def _database_answers() -> bool:
    """On a connection of its own: those of the process may all be in use by what is stuck."""
    store = wiring.open_store(app.settings, connections=1)
    try:
        ping(store)
    except PoolError:
        return False
    else:
        return True
    finally:
        store.close()


def _broker_answers() -> bool:
    """On a connection of its own, made anew."""
    client = Redis.from_url(
        config.broker_url(app.settings),
        socket_timeout=_ASK_TIMEOUT_S,
        socket_connect_timeout=_ASK_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        return bool(client.ping())
    except (RedisError, OSError):
        return False
    finally:
        client.close()
