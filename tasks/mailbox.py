"""The lane's side of Redis: messages are taken several at a time, answers and acknowledgements leave together.

What our own client sends is taken without a receipt: it asks again by itself. What any other Celery client sends is kept where kombu
keeps unacknowledged messages, in kombu's own form, until it is answered; if this process dies, any of our workers restores it.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from pool.ids import RandomIds
from tasks.letters import Letter
from tasks.options import GENERAL, LANE
from tasks.replies import REPLY_KEPT_S, Answered
from tasks.wire import Wire

BLOCK_S = 1
_UNACKED, _UNACKED_INDEX = "unacked", "unacked_index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A letter in our hands. The tag is what it is kept under, if it is."""

    letter: Letter
    tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What goes out for one letter. Without an answer it is only acknowledged: somebody answers later, or nobody wants it."""

    taken: Taken
    answer: Answered | None


class Mailbox:
    """Any thread may use it; one at a time takes."""

    def __init__(self, url: str, *, app: Any) -> None:
        self._incoming, self._outgoing = Wire(url), Wire(url)
        self._app = app
        self._tags = map(f"lane.{RandomIds().token()}.{{}}".format, itertools.count())

    def take(self, most: int) -> list[bytes]:
        """Everything that is there, up to `most`; waits a moment if there is nothing."""
        first, more = self._incoming.ask(("BRPOP", LANE, BLOCK_S), ("RPOP", LANE, most - 1))
        return [first[1], *(more or ())] if first else list(more or ())

    def keep(self, letters: Sequence[Letter]) -> list[Taken]:
        """Make sure of those whose senders do not ask again."""
        taken = [Taken(letter=x) if x.asks_again else Taken(letter=x, tag=next(self._tags)) for x in letters]
        if kept := [t for t in taken if t.tag]:
            now = self._app.now().timestamp()
            messages = [(t.tag, json.dumps([json.loads(t.letter.raw), "", LANE])) for t in kept]
            self._outgoing.ask(
                ("ZADD", _UNACKED_INDEX, *(part for t in kept for part in (now, t.tag))),
                ("HSET", _UNACKED, *(part for message in messages for part in message)),
            )
        return taken

    def forward(self, messages: Sequence[bytes]) -> None:
        """Leave to Celery what only Celery can read."""
        self._outgoing.ask(("LPUSH", GENERAL, *messages))

    def hand_back(self, taken: Sequence[Taken]) -> None:
        """Not done here: the next to take from the queue does it."""
        self._outgoing.ask(
            ("MULTI",),
            ("RPUSH", LANE, *(t.letter.raw for t in taken)),
            *_acknowledgements(taken),
            ("EXEC",),
        )

    def post(self, posts: Sequence[Post]) -> None:
        """Answers to whoever waits for them, and acknowledgements, in one round trip."""
        lists: dict[str, list[str]] = defaultdict(list)
        commands: list[tuple[Any, ...]] = []
        for post in posts:
            letter = post.taken.letter
            if post.answer is None or not letter.wants_result:
                continue
            if letter.address:
                lists[letter.address].append(_meta(letter.task_id, post.answer))
            else:
                commands += self._stored(letter.task_id, post.answer)
        for address, texts in lists.items():
            commands += [("RPUSH", address, *texts), ("EXPIRE", address, REPLY_KEPT_S)]
        commands += _acknowledgements([post.taken for post in posts])
        if commands:
            self._outgoing.ask(*commands)

    def close(self) -> None:
        self._incoming.close()
        self._outgoing.close()

    def _stored(self, task_id: str, answer: Answered) -> list[tuple[Any, ...]]:
        """As Celery's Redis backend stores a result, where `.get()` finds it."""
        backend = self._app.backend
        done = self._app.now().astimezone(UTC).isoformat()
        text, key = _meta(task_id, answer, children=[], date_done=done), backend.get_key_for_task(task_id)
        return [("SET", key, text, "EX", int(backend.expires)), ("PUBLISH", key, text)]


def _acknowledgements(taken: Sequence[Taken]) -> list[tuple[Any, ...]]:
    tags = [t.tag for t in taken if t.tag]
    return [("ZREM", _UNACKED_INDEX, *tags), ("HDEL", _UNACKED, *tags)] if tags else []


def _meta(task_id: str, answer: Answered, **more: Any) -> str:
    meta = {"task_id": task_id, "status": "SUCCESS", "result": answer.__json__(), "traceback": None}
    return json.dumps(meta | more)
