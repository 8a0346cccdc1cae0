"""Push messages of one sender, valid or not, to a queue of a running pool, and read the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import redis

from pool.core import names
from pool.core.ids import RandomIds, new_task_id
from pool.core.signing import OrgKey
from tests.support.hostile_draft import Draft
from tests.support.system import System
from tests.support.waiting import eventually

ANSWERED_WITHIN_S = 20.0
VALID_S = 300


class Sender:
    """A producer with its own reply list and, on a pool with signed requests, the key of its org."""

    def __init__(self, system: System, *, key: OrgKey | None = None) -> None:
        # A blocking pop takes longer than the client's own timeout.
        self.redis = redis.Redis.from_url(system.redis.url, socket_timeout=2 * ANSWERED_WITHIN_S)
        self.address = (
            f"{names.REPLY_PREFIX}{'' if key is None else key.org + ':'}sender.{RandomIds().token()}"
        )
        self._system = system
        self._key = key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.redis.close()

    def draft(self, task: str, **kwargs: Any) -> Draft:
        """Return a valid call, for a test to change."""
        return Draft(task=task, task_id=new_task_id(), kwargs=kwargs, reply_to=self.address)

    def encoded(self, draft: Draft) -> bytes:
        """Push it, signed as it is now if there is a key."""
        if self._key is not None:
            expires_s = int(self.redis.time()[0]) + VALID_S
            draft.signed(self._key, expires_s=expires_s, nonce=RandomIds().token())
        return draft.raw(new_task_id())

    def push(self, draft: Draft, queue: str = "acquire") -> None:
        self.redis.lpush(queue, self.encoded(draft))

    def answers(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the next `count` answers on the reply list."""
        found: list[dict[str, Any]] = []
        for _ in range(count):
            popped = self.redis.blpop([self.address], timeout=ANSWERED_WITHIN_S)
            assert popped is not None, f"{len(found)} of {count} answers came\n{self._system.tails()}"
            found.append(dict(json.loads(popped[1])["result"]))
        return found

    def asked(self, task: str, **kwargs: Any) -> dict[str, Any]:
        """Return the answer to a valid call."""
        self.push(self.draft(task, **kwargs))
        return self.answers()[0]

    def result(self, draft: Draft, *, within_s: float = ANSWERED_WITHIN_S) -> dict[str, Any]:
        """Return the Celery result of a call without a reply list."""
        raw: Any = eventually(lambda: self.redis.get(f"celery-task-meta-{draft.task_id}"), within_s=within_s)
        return dict(json.loads(raw)["result"])

    def nothing_came(self) -> bool:
        return not self.redis.llen(self.address)


@contextmanager
def never_sent(system: System, mark: str) -> Iterator[None]:
    """Check that nothing with this text is pushed to Redis during the block. An attacker's own
    message contains it only in its encoded body.
    """
    with redis.Redis.from_url(system.redis.url) as client, client.monitor() as monitor:
        try:
            yield
        finally:
            end = RandomIds().token()
            with redis.Redis.from_url(system.redis.url) as other:
                other.echo(end)
            sent = _until(monitor, end, mark)
            assert not sent, f"the follower was sent: {sent}"


def _until(monitor: Any, end: str, mark: str) -> list[str]:
    """Return the commands up to the last one that contain the mark."""
    found = []
    for each in monitor.listen():
        if mark in each["command"]:
            found.append(each["command"][:2000])
        if end in each["command"]:
            break
    return found
