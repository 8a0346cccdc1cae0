"""The lane: one thread takes what callers send, many messages at a time, and posts the replies. It never waits for a batch to fill: while one is
being decided, the next one gathers in Redis.

Nothing that arrives ends the lane; while Redis or the database is away it tries again until the process stops.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from pool.core.backoff import Backoff
from pool.core.clock import Clock
from pool.core.errors import Transient
from tasks.lane.exchange import NOTHING
from tasks.lane.front import Front
from tasks.lane.knownorgs import OrgQueues
from tasks.lane.mailbox import Mailbox
from tasks.lane.posting import Posting
from tasks.lane.slowpath import SlowPath

log = structlog.get_logger(__name__)

MOST_AT_ONCE = 100
# A turn takes a moment, and with the database away as long as a call to it may; a lane without one for this long is stuck.
STUCK_S = 60.0
_AWAY = Backoff(first_s=0.05, factor=2.0, limit_s=1.0, tries=1_000_000)


class Lane:
    """Takes, has the front serve, posts."""

    def __init__(
        self, mailbox: Mailbox, queues: OrgQueues, front: Front, slow_path: SlowPath, posting: Posting
    ) -> None:
        self._mailbox = mailbox
        self._queues = queues
        self._front = front
        self._slow_path = slow_path
        self._posting = posting

    def run(self, clock: Clock, stopping: threading.Event, turned: Callable[[], None]) -> None:
        """Turn until the process stops, and call `turned` each time. What was taken and not served is handed back."""
        pauses = _AWAY.pauses()
        while not stopping.is_set():
            turned()
            try:
                self._turn(turned)
                pauses = _AWAY.pauses()
            except (RedisError, OSError, Transient) as exc:
                log.warning("lane_interrupted", cause=str(exc))
                clock.wait(stopping, next(pauses))
            except Exception:  # one turn's trouble, whatever it is, must not be the end of the lane
                log.exception("lane_stumbled")
                clock.wait(stopping, next(pauses))
        with contextlib.suppress(RedisError, OSError):
            if unserved := self._front.unserved():
                self._mailbox.hand_back(unserved)
        with contextlib.suppress(RedisError, OSError):
            self._posting.post()

    def _turn(self, turned: Callable[[], None]) -> None:
        self._posting.post()
        self._slow_path.wait_for_room(turned)
        came = NOTHING if self._front.has_work else self._mailbox.take(MOST_AT_ONCE, self._queues.names())
        replies = self._front.serve(came)
        try:
            self._posting.post(replies.now, replies.late)
        finally:
            self._front.finish(replies)
        if replies.outage is not None:
            raise replies.outage
