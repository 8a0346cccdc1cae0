"""Whether a worker is well: its consumer turns and none of its long-lived threads is dead or stuck, or the broker or the database is away. One that
stands still while both answer everybody else is stalled, and only a restart helps it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from pool import config, wiring
from pool.core.clock import Clock
from pool.core.errors import PoolError
from pool.core.settings import Settings
from pool.core.threads import Threads
from pool.store import ping
from tasks.worker.probefiles import touch, touch_alive

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


class Liveness:
    """Touches the ready file from the consumer's own loop, so that a stalled consumer shows. While the broker is away the loop stands
    still, in Celery's hands or in those of the Redis client; then a thread touches it."""

    def __init__(
        self, threads: Threads, stopping: threading.Event, others_answer: Callable[[], bool]
    ) -> None:
        self._threads = threads
        self._stopping = stopping
        self._touch = touch_alive
        self.silence = Silence(threads.clock, others_answer)

    def watch(self) -> None:
        """Start the thread that touches the file while the loop stands still."""
        thread = self._threads.make(
            "liveness",
            lambda: self._in_silence(thread.turned),
            stop=threading.Event(),
            stuck_after_s=_STUCK_S,
        )
        thread.start()

    def consume(self, timer: Any) -> None:
        """Turn with the consumer's loop from now on. Called anew after every reconnection, since the loop's timers are cleared then."""
        self._touch = touch
        self.turn()
        timer.call_repeatedly(BEAT_S, self.turn)

    def turn(self) -> None:
        """Touch the file, unless a thread of this process is dead or stuck."""
        if self._threads.unwell():
            return
        self.silence.turned()
        touch()

    def _in_silence(self, turned: Callable[[], None]) -> None:
        clock, never = self._threads.clock, threading.Event()
        self._touch()
        while not clock.wait(never, BEAT_S):
            turned()
            if not self.silence.is_there():
                continue
            if self._stopping.is_set() or self.silence.is_excused():
                self._touch()
            else:
                what = ", ".join(self._threads.unwell()) or "the consumer"
                log.error("consumer_stalled", cause=f"broker and database answer, and {what} does not turn")


def others_answer(settings: Settings) -> bool:
    """Whether the broker and the database answer."""
    return _broker_answers(settings) and _database_answers(settings)


def _database_answers(settings: Settings) -> bool:
    """On a connection of its own: those of the process may all be in use by what is stuck."""
    store = wiring.open_store(settings, connections=1)
    try:
        ping(store)
    except PoolError:
        return False
    else:
        return True
    finally:
        store.close()


def _broker_answers(settings: Settings) -> bool:
    """On a connection of its own, made anew."""
    client = Redis.from_url(
        config.broker_url(settings),
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
