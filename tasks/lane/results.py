"""The Redis commands that deliver an answer: to a reply list, or as Celery's result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from celery import Celery

from tasks.lane.replies import REPLY_KEPT_S

# Answers on a reply list that are not read; older ones give way.
MOST_UNREAD = 10_000
# Stores an answer and notifies the caller that waits for it, unless there is an answer already.
_SPARE = "if redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2], 'NX') then redis.call('PUBLISH', KEYS[1], ARGV[1]) end"


def stored(
    celery: Celery, task_id: str, state: str, result: Any, *, spare: bool = False
) -> list[tuple[Any, ...]]:
    """Return the commands that store a result as Celery's Redis backend does, for `.get()`."""
    backend: Any = celery.backend
    done = celery.now().astimezone(UTC).isoformat()
    text = meta(task_id, state, result, children=[], date_done=done)
    key = backend.get_key_for_task(task_id)
    if spare:
        return [("EVAL", _SPARE, 1, key, text, REPLY_KEPT_S)]
    return [("SET", key, text, "EX", int(backend.expires)), ("PUBLISH", key, text)]


def meta(task_id: str, state: str, result: Any, **more: Any) -> str:
    """Return Celery's result metadata."""
    return json.dumps({"task_id": task_id, "status": state, "result": result, "traceback": None} | more)


def pushes(lists: Mapping[str, Sequence[str]]) -> list[tuple[Any, ...]]:
    """Return the commands that push answers to reply lists."""
    return [
        command
        for address, texts in lists.items()
        for command in (
            ("RPUSH", address, *texts),
            ("LTRIM", address, -MOST_UNREAD, -1),
            ("EXPIRE", address, REPLY_KEPT_S),
        )
    ]
