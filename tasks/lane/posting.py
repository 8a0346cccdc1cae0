"""Post replies. Replies that cannot be posted are posted later, and are not marked as delivered
until then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import RedisError

from pool.metrics.catalog import Item
from pool.store import Store, requests
from tasks.background import Gathering, Timers
from tasks.lane.exchange import LateReply, Taken, TaskReply
from tasks.lane.mailbox import Mailbox

MARKS_WITHIN_S = 1.0

# Reports to Flower what was posted.
Observer = Callable[[Sequence[TaskReply], Sequence[LateReply]], None]


class Posting:
    """Any thread may post."""

    def __init__(self, mailbox: Mailbox, store: Store, timers: Timers, observer: Observer) -> None:
        self._mailbox = mailbox
        self._store = store
        self._observer = observer
        self._delivered = Gathering(timers, MARKS_WITHIN_S, self._mark, item=Item.MARK)
        self._turn = threading.Lock()
        self._unposted: list[TaskReply] = []
        self._late: list[LateReply] = []

    def post(self, replies: Sequence[TaskReply] = (), late: Sequence[LateReply] = ()) -> None:
        """Post these replies and those left from before. Raise `RedisError` or `OSError` if they
        are kept for later.
        """
        with self._turn:
            posts, self._unposted = [*self._unposted, *replies], []
            lates, self._late = [*self._late, *late], []
        if not posts and not lates:
            return
        try:
            self._mailbox.post(posts, lates)
        except (RedisError, OSError):
            with self._turn:
                self._unposted = posts + self._unposted
                self._late = lates + self._late
            raise
        for answer in (*(reply.answer for reply in posts), *(each.answer for each in lates)):
            if answer is not None and answer.pk:
                self._delivered.add(answer.pk)
        self._observer(posts, lates)

    def hand_back(self, taken: Sequence[Taken]) -> None:
        """Hand messages back to the queue, for another process."""
        self._mailbox.hand_back(taken)

    def close(self) -> None:
        """Mark the delivered answers."""
        self._delivered.flush()

    def _mark(self, pks: list[Any]) -> None:
        with self._store.write() as tx:
            requests.mark_replied(tx, pks)
