"""The entry point for calls of the task contract: messages come in, replies go out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import structlog
from redis.exceptions import RedisError

from pool.lifecycle import effects
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import Effects
from tasks.lane.admission import Admission
from tasks.lane.deciding import Deciding
from tasks.lane.delaying import Delayed
from tasks.lane.exchange import Delivery, Replies, Taken

log = structlog.get_logger(__name__)


class Front:
    """Used only by the thread of the lane."""

    def __init__(
        self, deps: Deps, admission: Admission, delayed: Delayed, deciding: Deciding, aside: Executor
    ) -> None:
        self._deps = deps
        self._admission = admission
        self._delayed = delayed
        self._deciding = deciding
        self._aside = aside

    @property
    def has_work(self) -> bool:
        """Whether messages of an earlier delivery are to be served before more are taken."""
        return bool(self._admission.held)

    def serve(self, came: Delivery) -> Replies:
        """Check bounds, authenticate, spend the nonce, parse, decide, answer."""
        replies = Replies(now=self._admission.admit(came))
        try:
            fresh = self._admission.unspent(replies.now)
        except (RedisError, OSError) as exc:
            replies.outage = exc
            return replies
        due = self._delayed.in_time([*fresh, *self._delayed.due()], replies.now)
        if due:
            self._deciding.decide(due, replies)
        return replies

    def finish(self, replies: Replies) -> None:
        """Execute the effects, after the replies are posted. No caller waits for them."""
        effects.send(self._deps, replies.effects)
        if replies.effects.again:
            self._aside.submit(self._match, Effects(again=replies.effects.again))

    def unserved(self) -> Sequence[Taken]:
        """Return the messages to hand back when the process stops."""
        return [*self._admission.held, *self._delayed.everything()]

    def _match(self, after: Effects) -> None:
        try:
            effects.finish(self._deps, after)
        except Exception:  # the pass matches the rest
            log.exception("matching_left_to_the_pass")
