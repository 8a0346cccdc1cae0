"""The lane: one thread takes messages of callers in batches and posts the replies.

It never waits for a batch to fill: while one is being decided, the next one gathers in Redis. No
message ends the lane. While Redis or the database is down, it retries until the process stops.
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
# A turn is short; with the database down it takes as long as a call to it may. A lane without a
# turn for this time is stuck.
STUCK_S = 60.0
_AWAY = Backoff(first_s=0.05, factor=2.0, limit_s=1.0, tries=1_000_000)


class Lane:
    """Takes messages, passes them to the front, posts the replies."""

    def __init__(
        self, mailbox: Mailbox, queues: OrgQueues, front: Front, slow_path: SlowPath, posting: Posting
    ) -> None:
        self._mailbox = mailbox
        self._queues = queues
        self._front = front
        self._slow_path = slow_path
        self._posting = posting

    def run(self, clock: Clock, stopping: threading.Event, turned: Callable[[], None]) -> None:
        """Take turns until the process stops, and call `turned` each time. Hand back messages that
        were taken and not served.
        """
        pauses = _AWAY.pauses()
        while not stopping.is_set():
            turned()
            try:
                self._turn(turned)
                pauses = _AWAY.pauses()
            except (RedisError, OSError, Transient) as exc:
                if not isinstance(exc, Transient):
                    self._mailbox.reconnect()
                log.warning("lane_interrupted", cause=str(exc))
                clock.wait(stopping, next(pauses))
            except Exception:  # a failed turn must not end the lane
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
