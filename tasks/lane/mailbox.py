"""The lane's access to Redis: messages are taken in batches; answers and acknowledgements are sent
together.

What our own client sends is taken without a receipt: it sends again by itself. What any other Celery
client sends is moved, in the same step in which it leaves the queue, to a hash of taken messages. It
stays there until it is answered. If this process dies, an acquire worker puts it back into the queue
after the visibility timeout.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import structlog
from celery import Celery
from redis.exceptions import RedisError

from pool.core.clock import SystemClock
from pool.core.ids import RandomIds
from pool.core.names import REPLY_PREFIX, TAKEN_KEY, TAKEN_SINCE_KEY
from tasks.lane.exchange import Delivery, LateReply, Received, Taken, TaskReply
from tasks.lane.following import Following
from tasks.lane.proving import ANSWERED, OPEN
from tasks.lane.results import meta, pushes, stored
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
# How often messages are looked for that another process took and did not answer.
RESTORED_EVERY_S = 5.0
_RESTORED_AT_ONCE = 100
# Keeps a message that left its queue, by the broker's time, unless its sender sends it again: a
# message with a reply list comes from our own client. Returns its tag, or an empty one.
_KEPT = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local tags = 0
local function kept(message, tag)
  if string.find(message, '"reply_to"%s*:%s*"{reply}') then return '' end
  tags = tags + 1
  redis.call('HSET', '{taken}', tag .. tags, message)
  redis.call('ZADD', '{since}', now, tag .. tags)
  return tag .. tags
end
""".format(reply=REPLY_PREFIX.replace(".", "%."), taken=TAKEN_KEY, since=TAKEN_SINCE_KEY)
# Takes up to ARGV[2] messages from each list in turn, ARGV[1] messages and ARGV[3] bytes in all. A
# message of more than ARGV[4] bytes is dropped here: it never leaves the broker. Returns how many
# lists were looked at, how many messages were dropped, the messages and their tags.
_TAKE = (
    _KEPT
    + """
local room, share, bytes, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local found, names, dropped = {}, {}, 0
for place, queue in ipairs(KEYS) do
  for turn = 1, share do
    if #found >= room or bytes <= 0 then return {turn == 1 and place - 1 or place, dropped, found, names} end
    local message = redis.call('RPOP', queue)
    if not message then break end
    if #message > limit then dropped = dropped + 1 else
      found[#found + 1] = message
      names[#found] = kept(message, ARGV[5])
      bytes = bytes - #message
    end
  end
end
return {#KEYS, dropped, found, names}
"""
)
# Keeps one message that a blocking call took.
_TAKE_ONE = _KEPT + "return kept(ARGV[1], ARGV[2])"
# Puts back what was taken more than ARGV[1] seconds ago, oldest first, at most ARGV[2].
_RESTORE = """
local time = redis.call('TIME')
local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', time[1] - ARGV[1], 'LIMIT', 0, ARGV[2])
for _, tag in ipairs(old) do
  local message = redis.call('HGET', KEYS[2], tag)
  if message then redis.call('RPUSH', KEYS[3], message) end
  redis.call('HDEL', KEYS[2], tag)
  redis.call('ZREM', KEYS[1], tag)
end
return #old
"""
_REPLY_LIST = re.compile(rb'"reply_to"\s*:\s*"' + re.escape(REPLY_PREFIX).encode())


class Mailbox:
    """Any thread may use it, but only one at a time may take."""

    def __init__(
        self, url: str, *, celery: Celery, limit_bytes: int, visibility_s: int, following: Following
    ) -> None:
        self._limit_bytes = limit_bytes
        self._visibility_s = visibility_s
        self._incoming = RedisWire(url, limit_bytes=limit_bytes + MOST_BYTES + _FRAME_BYTES)
        self._outgoing = RedisWire(url)
        self._celery = celery
        self._following = following
        self._next = 0
        self._found_empty = 0
        self._tags = map(f"{RandomIds().token()}.{{}}.".format, itertools.count())
        self._forgotten: list[str] = []
        self._clock = SystemClock()
        self._restored_at = float("-inf")

    def take(self, most: int, queues: Sequence[str] = (LANE,)) -> Delivery:
        """Take up to `most` messages.

        The queues take turns, each with a small share, so that none waits behind a full one. Once
        all queues were empty, wait up to a second for the first message of any.
        """
        self._next %= len(queues)
        order = [*queues[self._next :], *queues[: self._next]]
        came = self._wait(order) if self._found_empty >= len(queues) else self._look(most, order)
        return replace(came, taken_s=self._clock.monotonic()) if came.messages else came

    def _look(self, most: int, order: Sequence[str]) -> Delivery:
        some = order[:MOST_QUEUES]
        share = max(LEAST_SHARE, most // len(some))
        bounds = (most, share, MOST_BYTES, self._limit_bytes, next(self._tags))
        *_, found, time = self._incoming.ask(
            *self._chores(), ("EVAL", _TAKE, len(some), *some, *bounds), ("TIME",)
        )
        looked_at, dropped, messages, tags = found or (len(some), 0, [], [])
        self._next += looked_at
        self._found_empty = 0 if messages or dropped else self._found_empty + looked_at
        received = [Received(raw, tag.decode()) for raw, tag in zip(messages, tags, strict=True)]
        return Delivery(messages=received, now_s=_seconds(time), too_large=dropped)

    def _wait(self, order: Sequence[str]) -> Delivery:
        try:
            *_, first, time = self._incoming.ask(*self._chores(), ("BRPOP", *order, BLOCK_S), ("TIME",))
        except ReplyTooLarge:
            # It left its queue; the broker drops the rest of it with the connection.
            self._found_empty = 0
            return Delivery(messages=[], now_s=0.0, too_large=1)
        if first is None:
            return Delivery(messages=[], now_s=_seconds(time))
        queue, raw = first
        self._next += order.index(queue.decode()) + 1
        self._found_empty = 0
        return Delivery(messages=[Received(raw, self._kept(raw))], now_s=_seconds(time))

    def _kept(self, raw: bytes) -> str:
        """Keep a message that has just left its queue, and return its tag."""
        if _REPLY_LIST.search(raw):
            return ""
        try:
            [tag] = self._incoming.ask(("EVAL", _TAKE_ONE, 0, raw, next(self._tags)))
        except (RedisError, OSError) as exc:
            # It is served all the same; only the death of this process would lose it.
            log.warning("message_not_kept", cause=str(exc))
            return ""
        return str((tag or b"").decode())

    def _chores(self) -> list[tuple[Any, ...]]:
        """Return what is sent along with the next look: acknowledgements of dropped messages, and from
        time to time the restoring of what another process did not answer."""
        commands, self._forgotten = _acknowledgements(self._forgotten), []
        if self._clock.monotonic() - self._restored_at >= RESTORED_EVERY_S:
            self._restored_at = self._clock.monotonic()
            keys = (TAKEN_SINCE_KEY, TAKEN_KEY, LANE)
            commands.append(("EVAL", _RESTORE, len(keys), *keys, self._visibility_s, _RESTORED_AT_ONCE))
        return commands

    def forget(self, received: Received) -> None:
        """Acknowledge a message that gets no answer, with the next look."""
        if received.tag:
            self._forgotten.append(received.tag)

    def spent_nonces(self, taken: Sequence[Taken]) -> dict[str, str]:
        """Return the values of the nonces that are spent."""
        nonces = [t.proven.nonce.key for t in taken if t.proven.nonce is not None]
        if not nonces:
            return {}
        [found] = self._outgoing.ask(("MGET", *nonces))
        values = zip(nonces, found or (), strict=False)
        return {nonce: value.decode() for nonce, value in values if value is not None}

    def hand_back(self, taken: Sequence[Taken]) -> None:
        """Put messages back into the queue, for the next process."""
        self._outgoing.ask(
            ("MULTI",),
            ("RPUSH", LANE, *(t.message.raw for t in taken)),
            *_acknowledgements([t.tag for t in taken]),
            ("EXEC",),
        )

    def post(self, replies: Sequence[TaskReply], late: Sequence[LateReply] = ()) -> None:
        """Send answers and acknowledgements in one round trip."""
        lists: dict[str, list[str]] = defaultdict(list)
        commands: list[tuple[Any, ...]] = []
        for reply in replies:
            message = reply.taken.message
            if reply.is_open or not (message.wants_result or message.followers):
                continue
            try:
                commands += self._answered(reply, lists)
            # An answer that is not JSON affects only its own caller.
            except (TypeError, ValueError, RecursionError):
                log.exception("answer_not_encoded", task=message.task, task_id=message.task_id)
        for each in late:
            to, result = each.to, each.answer.__json__()
            if to.followers:
                shown = repr(each.answer)
                commands += self._following.commands(to.task_id, to.followers, "SUCCESS", result, shown)
            if to.address:
                lists[to.address].append(meta(to.task_id, "SUCCESS", result))
            else:
                commands += stored(self._celery, to.task_id, "SUCCESS", result)
        commands += pushes(lists)
        # After the answers: if the process dies in between, the calls are answered twice rather
        # than never.
        commands += _spent_nonces(replies)
        commands += _acknowledgements([reply.taken.tag for reply in replies])
        if commands:
            # In one transaction: if the broker refuses the answers, it must not acknowledge the
            # calls.
            self._outgoing.ask(("MULTI",), *commands, ("EXEC",))

    def reconnect(self) -> None:
        """Replace both connections. If one has failed, the other may lead to the same lost server, and
        would fail only after its own timeout.
        """
        self._incoming.drop()
        self._outgoing.drop()

    def close(self) -> None:
        self._incoming.close()
        self._outgoing.close()

    def _answered(self, reply: TaskReply, lists: dict[str, list[str]]) -> list[tuple[Any, ...]]:
        """Add an answer to its reply list, or return the commands that store it. What follows is sent
        with it."""
        message, commands = reply.taken.message, list[tuple[Any, ...]]()
        state, result = self._result(reply)
        if message.followers is not None and not reply.spare:
            follows, shown = message.followers.text, repr(reply.answer)
            commands += self._following.commands(message.task_id, follows, state, result, shown)
        if message.wants_result and message.address:
            lists[message.address].append(meta(message.task_id, state, result))
        elif message.wants_result:
            commands += stored(self._celery, message.task_id, state, result, spare=reply.spare)
        return commands

    def _result(self, reply: TaskReply) -> tuple[str, Any]:
        if reply.failure is not None:
            return reply.failure.state, self._celery.backend.prepare_exception(reply.failure.exc)
        return "SUCCESS", None if reply.answer is None else reply.answer.__json__()


def _seconds(time: Any) -> float:
    return float(time[0]) + float(time[1]) / 1e6


def _spent_nonces(replies: Sequence[TaskReply]) -> list[tuple[Any, ...]]:
    return [
        ("SET", nonce.key, OPEN if reply.is_open else ANSWERED, "EX", nonce.keep_s)
        for reply in replies
        if (nonce := reply.taken.proven.nonce)
    ]


def _acknowledgements(tags: Sequence[str]) -> list[tuple[Any, ...]]:
    tags = [tag for tag in tags if tag]
    return [("ZREM", TAKEN_SINCE_KEY, *tags), ("HDEL", TAKEN_KEY, *tags)] if tags else []
