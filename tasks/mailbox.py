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
from tasks.proving import ANSWERED, OPEN, Proven
from tasks.replies import REPLY_KEPT_S, Answered
from tasks.wire import Wire

BLOCK_S = 1
# Of so many queues everything is asked for in one round trip, at least so much of each; of more, each turn some.
MOST_QUEUES = 32
LEAST_SHARE = 10
NOT_ASKED = Proven()
_UNACKED, _UNACKED_INDEX = "unacked", "unacked_index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A letter in our hands. The tag is what it is kept under, if it is."""

    letter: Letter
    tag: str = ""
    proven: Proven = NOT_ASKED


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What goes out for one letter. Without an answer it is only acknowledged: somebody answers later, or nobody wants it. A `spare` one does
    not take the place of a result that is there."""

    taken: Taken
    answer: Answered | None
    spare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What came, and the broker's time then, if it was asked for."""

    messages: list[bytes]
    now_s: float


class Mailbox:
    """Any thread may use it; one at a time takes."""

    def __init__(self, url: str, *, app: Any) -> None:
        self._incoming, self._outgoing = Wire(url), Wire(url)
        self._app = app
        self._timed = ((("TIME",)),) if app.settings.pool.signed_requests else ()
        self._first = 0
        self._tags = map(f"lane.{RandomIds().token()}.{{}}".format, itertools.count())

    def take(self, most: int, queues: Sequence[str] = (LANE,)) -> Delivery:
        """What is there, about `most`; waits a moment if there is nothing. Of several queues another one comes first each time, so that none
        waits for ever behind a busy one."""
        self._first = (self._first + 1) % len(queues)
        order = [*queues[self._first :], *queues[: self._first]]
        some = order[:MOST_QUEUES]
        share = max(LEAST_SHARE, most // len(some)) if len(some) > 1 else most - 1
        first, *more = self._incoming.ask(
            ("BRPOP", *order, BLOCK_S), *(("RPOP", queue, share) for queue in some), *self._timed
        )
        now_s = _seconds(more.pop()) if self._timed else 0.0
        messages = [first[1]] if first else []
        return Delivery(messages=messages + [m for each in more for m in each or ()], now_s=now_s)

    def keep(self, letters: Sequence[tuple[Letter, Proven]]) -> tuple[list[Taken], dict[str, str]]:
        """Make sure of those whose senders do not ask again; and what the nonces of all say that have been spent."""
        taken = [Taken(letter=x, proven=p, tag="" if x.asks_again else next(self._tags)) for x, p in letters]
        commands: list[tuple[Any, ...]] = []
        if kept := [t for t in taken if t.tag]:
            now = self._app.now().timestamp()
            messages = [(t.tag, json.dumps([json.loads(t.letter.raw), "", LANE])) for t in kept]
            commands = [
                ("ZADD", _UNACKED_INDEX, *(part for t in kept for part in (now, t.tag))),
                ("HSET", _UNACKED, *(part for message in messages for part in message)),
            ]
        nonces = [p.nonce.key for _, p in letters if p.nonce is not None]
        if nonces:
            commands.append(("MGET", *nonces))
        found = self._outgoing.ask(*commands) if commands else []
        said = zip(nonces, found[-1] or (), strict=False) if nonces else ()
        return taken, {nonce: word.decode() for nonce, word in said if word is not None}

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
                commands += self._stored(letter.task_id, post.answer, spare=post.spare)
        for address, texts in lists.items():
            commands += [("RPUSH", address, *texts), ("EXPIRE", address, REPLY_KEPT_S)]
        # After the answers: a process that dies in between has them answered once more rather than not at all.
        for post in posts:
            if nonce := post.taken.proven.nonce:
                said = OPEN if post.answer is None else ANSWERED
                commands.append(("SET", nonce.key, said, "EX", nonce.keep_s))
        commands += _acknowledgements([post.taken for post in posts])
        if commands:
            self._outgoing.ask(*commands)

    def close(self) -> None:
        self._incoming.close()
        self._outgoing.close()

    def _stored(self, task_id: str, answer: Answered, *, spare: bool) -> list[tuple[Any, ...]]:
        """As Celery's Redis backend stores a result, where `.get()` finds it."""
        backend = self._app.backend
        done = self._app.now().astimezone(UTC).isoformat()
        text, key = _meta(task_id, answer, children=[], date_done=done), backend.get_key_for_task(task_id)
        if spare:
            return [("SET", key, text, "EX", int(backend.expires), "NX")]
        return [("SET", key, text, "EX", int(backend.expires)), ("PUBLISH", key, text)]


def _seconds(time: Any) -> float:
    return float(time[0]) + float(time[1]) / 1e6


def _acknowledgements(taken: Sequence[Taken]) -> list[tuple[Any, ...]]:
    tags = [t.tag for t in taken if t.tag]
    return [("ZREM", _UNACKED_INDEX, *tags), ("HDEL", _UNACKED, *tags)] if tags else []


def _meta(task_id: str, answer: Answered, **more: Any) -> str:
    meta = {"task_id": task_id, "status": "SUCCESS", "result": answer.__json__(), "traceback": None}
    return json.dumps(meta | more)
