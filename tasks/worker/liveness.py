"""The liveness of a worker.

It is healthy if its consumer turns and no long-lived thread is dead or stuck, or if the broker or
the database is down. A worker that does not turn while both answer is stalled, and only a restart
helps.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import structlog
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from pool import config, wiring
from pool.broker import connecting
from pool.core.clock import Clock
from pool.core.errors import PoolError
from pool.core.settings import Settings
from pool.core.threads import Threads
from pool.store import ping
from tasks.worker.probefiles import touch, touch_alive

log = structlog.get_logger(__name__)

BEAT_S = 2.0
# Time without a turn after which the consumer counts as silent.
SILENT_S = 3 * BEAT_S
# After an outage, the consumer needs some seconds to connect and to start again.
STALLED_S = 45.0
_ASK_TIMEOUT_S = 1.0
# Querying the database may take a connection timeout and a statement timeout.
_STUCK_S = 120.0


class Silence:
    """Detects a consumer or thread that does not turn.

    That is normal while the broker or the database is down, and for some time afterwards.
    """

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
        """Return whether a restart would not help. Queries the broker and the database."""
        if not self._others_answer():
            self._answered_since = None
            return True
        now = self._clock.monotonic()
        if self._answered_since is None:
            self._answered_since = now
        return now - self._answered_since <= STALLED_S


class Liveness:
    """Touches the ready file from the loop of the consumer, so that a stalled consumer is visible.

    While the broker is down, the loop is blocked in Celery or in the Redis client. Then a thread
    touches the file.
    """

    def __init__(
        self, threads: Threads, stopping: threading.Event, others_answer: Callable[[], bool]
    ) -> None:
        self._threads = threads
        self._stopping = stopping
        self._touch = touch_alive
        self.silence = Silence(threads.clock, others_answer)

    def watch(self) -> None:
        """Start the thread that touches the file while the loop is blocked."""
        thread = self._threads.make(
            "liveness",
            lambda: self._in_silence(thread.turned),
            stop=threading.Event(),
            stuck_after_s=_STUCK_S,
        )
        thread.start()

    def consume(self, timer: Any) -> None:
        """Touch the file in the loop of the consumer from now on. Called after every reconnection,
        because Celery then clears the timers of the loop.
        """
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
    """Return whether the broker and the database answer."""
    return _broker_answers(settings) and _database_answers(settings)


def _database_answers(settings: Settings) -> bool:
    """Query the database on a separate connection: stuck threads may use all others."""
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
    """Query the broker on a new connection."""
    client = connecting.connect(
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
