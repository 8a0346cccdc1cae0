"""Reading messages from a real broker: in turn, within bounds, and never a part of what the broker
refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from redis.exceptions import RedisError

from pool.core.names import TAKEN_KEY, TAKEN_SINCE_KEY
from tasks.lane.exchange import Delivery, Taken, TaskReply
from tasks.lane.following import Following
from tasks.lane.mailbox import LEAST_SHARE, MOST_BYTES, Mailbox
from tasks.lane.wire import RedisWire, ReplyTooLarge
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.unit.test_incoming_messages import envelope, incoming

LIMIT = 100_000
MOST = 100
VISIBILITY_S = 300


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as made:
        yield made


@pytest.fixture
def raw(server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def mailbox(server: RedisServer) -> Iterator[Mailbox]:
    made = another(server)
    yield made
    made.close()


def everything(mailbox: Mailbox, queues: list[str], turns: int) -> list[list[bytes]]:
    return [raws(mailbox.take(MOST, queues)) for _ in range(turns)]


def raws(came: Delivery) -> list[bytes]:
    return [each.raw for each in came.messages]


def test_messages_come_in_their_order_and_with_the_brokers_time(raw: Any, mailbox: Mailbox) -> None:
    for n in range(3):
        raw.lpush("acquire", f"m{n}")
    came = mailbox.take(MOST)
    assert raws(came) == [b"m0", b"m1", b"m2"]
    assert abs(came.now_s - raw.time()[0]) < 60


def test_both_connections_are_replaced_together(raw: Any, mailbox: Mailbox) -> None:
    mailbox.take(MOST)
    mailbox.hand_back([Taken(message=incoming(envelope()))])
    own = {client["id"] for client in raw.client_list()} - {str(raw.client_id())}
    assert len(own) >= 2
    mailbox.reconnect()
    eventually(lambda: not own & {client["id"] for client in raw.client_list()}, within_s=10)
    assert len(mailbox.take(MOST).messages) == 1


def test_flooded_queue_does_not_starve_the_others(raw: Any, mailbox: Mailbox) -> None:
    queues = [f"acquire.org-{n}." for n in range(50)]
    raw.lpush(queues[0], *range(10_000))
    raw.lpush(queues[30], "other")
    first = mailbox.take(MOST, queues)
    assert raws(first).count(b"other") == 1
    assert len(first.messages) == LEAST_SHARE + 1


@pytest.mark.parametrize("count", [11, 22, 33, 50])
def test_every_queue_is_read_when_all_are_full(raw: Any, mailbox: Mailbox, count: int) -> None:
    queues = [f"acquire.org-{n}." for n in range(count)]
    for n, queue in enumerate(queues):
        raw.lpush(queue, *[f"{n}"] * 500)
    came = {message for messages in everything(mailbox, queues, 3 * count) for message in messages}
    assert came == {f"{n}".encode() for n in range(count)}


def test_queue_with_large_messages_does_not_starve_the_next(raw: Any, mailbox: Mailbox) -> None:
    queues = [f"acquire.org-{n}." for n in range(20)]
    raw.lpush(queues[0], *["x" * LIMIT] * 200)
    raw.lpush(queues[1], "next")
    assert any(b"next" in messages for messages in everything(mailbox, queues, 45))


def test_more_queues_than_one_read_takes_are_all_read(raw: Any, mailbox: Mailbox) -> None:
    queues = [f"acquire.org-{n}." for n in range(1000)]
    raw.lpush(queues[0], *range(10_000))
    raw.lpush(queues[999], "last")
    assert any(b"last" in messages for messages in everything(mailbox, queues, 5))


def test_messages_above_the_limit_never_leave_the_broker(raw: Any, mailbox: Mailbox) -> None:
    raw.lpush("acquire", "x" * (LIMIT + 1), "good", "x" * LIMIT)
    came = mailbox.take(MOST)
    assert (raws(came), came.too_large) == ([b"good", b"x" * LIMIT], 1)
    assert not raw.llen("acquire")


def test_large_message_that_ends_a_wait_is_dropped_and_the_next_one_is_taken(
    raw: Any, mailbox: Mailbox
) -> None:
    assert mailbox.take(MOST).messages == []
    raw.lpush("acquire", "x" * 20_000_000)
    came = mailbox.take(MOST)
    assert (came.messages, came.too_large) == ([], 1)
    raw.lpush("acquire", "good")
    assert [b"good"] in everything(mailbox, ["acquire"], 3)


def test_empty_queues_block_and_are_not_polled(raw: Any, mailbox: Mailbox) -> None:
    raw.config_resetstat()
    everything(mailbox, ["acquire", "acquire.acme."], 3)
    calls = {name: stats["calls"] for name, stats in raw.info("commandstats").items()}
    assert (calls["cmdstat_rpop"], calls["cmdstat_brpop"]) == (2, 2)


PLAIN = b'{"properties": {"reply_to": "7d1c", "correlation_id": "%d"}}'
SLIM = b'{"properties": {"reply_to": "warmpool.reply.x"}}'


def taken(raw: Any) -> list[bytes]:
    assert raw.zcard(TAKEN_SINCE_KEY) == raw.hlen(TAKEN_KEY)
    return sorted(raw.hvals(TAKEN_KEY))


@pytest.mark.parametrize("waits", [False, True])
def test_message_of_a_process_that_died_is_put_back_after_the_visibility_timeout(
    server: RedisServer, raw: Any, mailbox: Mailbox, waits: bool
) -> None:
    if waits:
        everything(mailbox, ["acquire"], 1)
    raw.lpush("acquire", PLAIN % 1)
    assert raws(mailbox.take(MOST)) == [PLAIN % 1]
    assert taken(raw) == [PLAIN % 1]
    other = another(server)
    assert raws(other.take(MOST)) == []
    age(raw, VISIBILITY_S + 1)
    # The process that looks has looked a moment ago.
    other.close()
    other = another(server)
    assert raws(other.take(MOST)) == [PLAIN % 1]
    assert taken(raw) == [PLAIN % 1]
    other.close()


def test_only_messages_whose_sender_does_not_send_them_again_are_kept(raw: Any, mailbox: Mailbox) -> None:
    raw.lpush("acquire", SLIM, PLAIN % 1, SLIM, PLAIN % 2)
    came = mailbox.take(MOST).messages
    assert [bool(each.tag) for each in came] == [False, True, False, True]
    assert len({each.tag for each in came}) == 3
    assert taken(raw) == [PLAIN % 1, PLAIN % 2]


def test_answered_and_dropped_messages_are_kept_no_longer(raw: Any, mailbox: Mailbox) -> None:
    raw.lpush("acquire", PLAIN % 1, PLAIN % 2, PLAIN % 3)
    first, second, third = mailbox.take(MOST).messages
    mailbox.forget(second)
    message: Any = incoming(envelope())
    mailbox.post([TaskReply(taken=Taken(message=message, tag=first.tag))])
    assert taken(raw) == [PLAIN % 2, PLAIN % 3]
    mailbox.take(MOST)
    assert taken(raw) == [PLAIN % 3]
    mailbox.hand_back([Taken(message=message, tag=third.tag)])
    assert (taken(raw), raw.llen("acquire")) == ([], 1)


def test_at_most_a_hundred_are_put_back_at_once_oldest_first(
    server: RedisServer, raw: Any, mailbox: Mailbox
) -> None:
    for n in range(150):
        raw.lpush("acquire", PLAIN % n)
        mailbox.take(MOST)
    age(raw, VISIBILITY_S + 1)
    other = another(server)
    assert set(raws(other.take(1000))) == {PLAIN % n for n in range(100)}
    other.close()


def age(raw: Any, seconds: float) -> None:
    for tag, at in raw.zrange(TAKEN_SINCE_KEY, 0, -1, withscores=True):
        raw.zadd(TAKEN_SINCE_KEY, {tag: float(at) - seconds})


def another(server: RedisServer) -> Mailbox:
    return Mailbox(
        server.url,
        celery=(celery := Celery(set_as_current=False)),
        limit_bytes=LIMIT,
        visibility_s=VISIBILITY_S,
        following=Following(celery, ()),
    )


def test_bytes_of_one_turn_are_bounded(raw: Any, mailbox: Mailbox) -> None:
    raw.lpush("acquire", *["x" * LIMIT] * 80)
    turns = everything(mailbox, ["acquire"], 4)
    assert sum(map(len, turns)) == 80
    assert max(sum(map(len, messages)) for messages in turns) <= MOST_BYTES + LIMIT


def test_broker_that_refuses_writes_raises_and_the_connection_is_replaced(
    server: RedisServer, raw: Any
) -> None:
    wire = RedisWire(server.url)
    try:
        raw.config_set("maxmemory", 1)
        with pytest.raises(RedisError):
            wire.ask(("PING",), ("SET", "k", "v"))
        raw.config_set("maxmemory", 0)
        assert wire.ask(("SET", "k", "v"), ("GET", "k")) == [b"OK", b"v"]
    finally:
        raw.config_set("maxmemory", 0)
        wire.close()


def test_broker_that_refuses_the_answer_does_not_acknowledge_the_call(server: RedisServer, raw: Any) -> None:
    raw.zadd("index", {"tag": 1})
    wire = RedisWire(server.url)
    try:
        raw.config_set("maxmemory", 1)
        with pytest.raises(RedisError):
            wire.ask(("MULTI",), ("RPUSH", "reply", "answer"), ("ZREM", "index", "tag"), ("EXEC",))
    finally:
        raw.config_set("maxmemory", 0)
    assert raw.zscore("index", "tag") == 1
    raw.set("text", "x")
    assert wire.ask(("MULTI",), ("RPUSH", "text", "y"), ("GET", "text"), ("EXEC",))[-1] == [None, b"x"]
    wire.close()


def test_one_wrong_command_does_not_affect_the_others(server: RedisServer, raw: Any) -> None:
    raw.set("text", "x")
    wire = RedisWire(server.url)
    assert wire.ask(("RPUSH", "text", "y"), ("GET", "text")) == [None, b"x"]
    wire.close()


def test_reply_above_the_limit_is_not_read_to_its_end(server: RedisServer, raw: Any) -> None:
    raw.set("large", "x" * 1_000_000)
    wire = RedisWire(server.url, limit_bytes=10_000)
    with pytest.raises(ReplyTooLarge):
        wire.ask(("GET", "large"))
    assert wire.ask(("STRLEN", "large")) == [1_000_000]
    wire.close()
