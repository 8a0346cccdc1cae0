"""The lane's access to Redis: messages are taken in batches; answers and acknowledgements are sent
together.

Messages of our own client are taken without a copy: that client sends them again by itself.
Messages of other Celery clients are kept where kombu keeps unacknowledged messages, in kombu's
format, until they are answered. If this process dies, any other worker restores them.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

import structlog
from celery import Celery

from pool.core.ids import RandomIds
from tasks.lane.exchange import Delivery, LateReply, Taken, TaskReply
from tasks.lane.messages import IncomingMessage
from tasks.lane.proving import ANSWERED, OPEN, Proven
from tasks.lane.replies import REPLY_KEPT_S
from tasks.lane.wire import RedisWire, ReplyTooLarge
from tasks.options import LANE

log = structlog.get_logger(__name__)

BLOCK_S = 1
# The most queues to read in one round trip, and the least share of messages of each queue.
MOST_QUEUES = 256
LEAST_SHARE = 10
# The most bytes to take in one round trip, not counting the message that exceeds it.
MOST_BYTES = 2_000_000
# The size of the name of the queue and the frame of a message.
_FRAME_BYTES = 64_000
# Takes up to ARGV[2] messages from each list in turn, ARGV[1] messages and ARGV[3] bytes in all.
# Messages of more than ARGV[4] bytes are dropped in the broker. Returns the number of lists that
# were read, the number of dropped messages, and the messages.
_TAKE = """
local room, share, bytes, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local found, dropped = {}, 0
for place, queue in ipairs(KEYS) do
  for turn = 1, share do
    if #found >= room or bytes <= 0 then return {turn == 1 and place - 1 or place, dropped, found} end
    local message = redis.call('RPOP', queue)
    if not message then break end
    if #message > limit then dropped = dropped + 1
    else found[#found + 1] = message; bytes = bytes - #message end
  end
end
return {#KEYS, dropped, found}
"""
# The most unread answers on a reply list. Older ones are dropped.
MOST_UNREAD = 10_000
_UNACKED, _UNACKED_INDEX = "unacked", "unacked_index"
# Keeps messages where kombu keeps unacknowledged ones, scored with the broker's time.
_KEEP = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
for n = 1, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], now, ARGV[n])
  redis.call('HSET', KEYS[2], ARGV[n], ARGV[n + 1])
end
"""
# Stores an answer and notifies the waiting caller, unless there is already an answer.
_SPARE = """
if redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2], 'NX') then
  redis.call('PUBLISH', KEYS[1], ARGV[1])
end
"""


class Mailbox:
    """Any thread may use it, but only one at a time may take."""

    def __init__(self, url: str, *, celery: Celery, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._incoming = RedisWire(url, limit_bytes=limit_bytes + MOST_BYTES + _FRAME_BYTES)
        self._outgoing = RedisWire(url)
        self._celery = celery
        self._next = 0
        self._found_empty = 0
        self._tags = map(f"lane.{RandomIds().token()}.{{}}".format, itertools.count())

    def take(self, most: int, queues: Sequence[str] = (LANE,)) -> Delivery:
        """Take up to `most` messages.

        The queues take turns, each with a small share, so that none waits behind a full one. Once
        all queues were empty, wait up to a second for the first message of any.
        """
        self._next %= len(queues)
        order = [*queues[self._next :], *queues[: self._next]]
        return self._wait(order) if self._found_empty >= len(queues) else self._look(most, order)

    def _look(self, most: int, order: Sequence[str]) -> Delivery:
        some = order[:MOST_QUEUES]
        share = max(LEAST_SHARE, most // len(some))
        script = ("EVAL", _TAKE, len(some), *some, most, share, MOST_BYTES, self._limit_bytes)
        found, time = self._incoming.ask(script, ("TIME",))
        looked_at, dropped, messages = found or (len(some), 0, [])
        self._next += looked_at
        self._found_empty = 0 if messages or dropped else self._found_empty + looked_at
        return Delivery(messages=messages, now_s=_seconds(time), too_large=dropped)

    def _wait(self, order: Sequence[str]) -> Delivery:
        try:
            first, time = self._incoming.ask(("BRPOP", *order, BLOCK_S), ("TIME",))
        except ReplyTooLarge:
            # The message was removed from its queue. The broker discards the rest of it with the
            # connection.
            self._found_empty = 0
            return Delivery(messages=[], now_s=0.0, too_large=1)
        if first is None:
            return Delivery(messages=[], now_s=_seconds(time))
        self._next += order.index(first[0].decode()) + 1
        self._found_empty = 0
        return Delivery(messages=[first[1]], now_s=_seconds(time))

    def tagged(self, message: IncomingMessage, proven: Proven) -> Taken:
        """Return a message as taken, with a tag if its sender does not send it again."""
        return Taken(message=message, proven=proven, tag="" if message.asks_again else next(self._tags))

    def keep(self, taken: Sequence[Taken]) -> dict[str, str]:
        """Keep a copy of messages whose senders do not send them again. Return the values of the
        spent nonces.
        """
        commands: list[tuple[Any, ...]] = []
        if kept := [t for t in taken if t.tag]:
            messages = (part for t in kept for part in (t.tag, t.message.kept(t.tag, LANE)))
            commands.append(("EVAL", _KEEP, 2, _UNACKED_INDEX, _UNACKED, *messages))
        nonces = [t.proven.nonce.key for t in taken if t.proven.nonce is not None]
        if nonces:
            commands.append(("MGET", *nonces))
        found = self._outgoing.ask(*commands) if commands else []
        values = zip(nonces, found[-1] or (), strict=False) if nonces else ()
        return {nonce: value.decode() for nonce, value in values if value is not None}

    def hand_back(self, taken: Sequence[Taken]) -> None:
        """Put messages back into the queue, for the next process."""
        self._outgoing.ask(
            ("MULTI",),
            ("RPUSH", LANE, *(t.message.raw for t in taken)),
            *_acknowledgements(taken),
            ("EXEC",),
        )

    def post(self, replies: Sequence[TaskReply], late: Sequence[LateReply] = ()) -> None:
        """Send answers and acknowledgements in one round trip."""
        lists: dict[str, list[str]] = defaultdict(list)
        commands: list[tuple[Any, ...]] = []
        for reply in replies:
            message = reply.taken.message
            if reply.is_open or not message.wants_result:
                continue
            try:
                state, result = self._result(reply)
                if message.address:
                    lists[message.address].append(_meta(message.task_id, state, result))
                else:
                    commands += self._stored(message.task_id, state, result, spare=reply.spare)
            # An answer that is not JSON affects only its own caller.
            except (TypeError, ValueError, RecursionError):
                log.exception("answer_not_encoded", task=message.task, task_id=message.task_id)
        for each in late:
            if each.to.address:
                lists[each.to.address].append(_meta(each.to.task_id, "SUCCESS", each.answer.__json__()))
            else:
                commands += self._stored(each.to.task_id, "SUCCESS", each.answer.__json__())
        commands += _pushes(lists)
        # After the answers: if the process dies in between, the calls are answered twice rather
        # than never.
        commands += _spent_nonces(replies)
        commands += _acknowledgements([reply.taken for reply in replies])
        if commands:
            # In one transaction: if the broker refuses the answers, it must not acknowledge the
            # calls.
            self._outgoing.ask(("MULTI",), *commands, ("EXEC",))

    def close(self) -> None:
        self._incoming.close()
        self._outgoing.close()

    def _stored(self, task_id: str, state: str, result: Any, *, spare: bool = False) -> list[tuple[Any, ...]]:
        """Return the commands that store a result as Celery's Redis backend does, for `.get()`."""
        backend: Any = self._celery.backend
        done = self._celery.now().astimezone(UTC).isoformat()
        text = _meta(task_id, state, result, children=[], date_done=done)
        key = backend.get_key_for_task(task_id)
        if spare:
            return [("EVAL", _SPARE, 1, key, text, REPLY_KEPT_S)]
        return [("SET", key, text, "EX", int(backend.expires)), ("PUBLISH", key, text)]

    def _result(self, reply: TaskReply) -> tuple[str, Any]:
        if reply.failure is not None:
            return reply.failure.state, self._celery.backend.prepare_exception(reply.failure.exc)
        return "SUCCESS", None if reply.answer is None else reply.answer.__json__()


def _meta(task_id: str, state: str, result: Any, **more: Any) -> str:
    meta = {"task_id": task_id, "status": state, "result": result, "traceback": None}
    return json.dumps(meta | more)


def _seconds(time: Any) -> float:
    return float(time[0]) + float(time[1]) / 1e6


def _pushes(lists: Mapping[str, Sequence[str]]) -> list[tuple[Any, ...]]:
    return [
        command
        for address, texts in lists.items()
        for command in (
            ("RPUSH", address, *texts),
            ("LTRIM", address, -MOST_UNREAD, -1),
            ("EXPIRE", address, REPLY_KEPT_S),
        )
    ]


def _spent_nonces(replies: Sequence[TaskReply]) -> list[tuple[Any, ...]]:
    return [
        ("SET", nonce.key, OPEN if reply.is_open else ANSWERED, "EX", nonce.keep_s)
        for reply in replies
        if (nonce := reply.taken.proven.nonce)
    ]


def _acknowledgements(taken: Sequence[Taken]) -> list[tuple[Any, ...]]:
    tags = [t.tag for t in taken if t.tag]
    return [("ZREM", _UNACKED_INDEX, *tags), ("HDEL", _UNACKED, *tags)] if tags else []
