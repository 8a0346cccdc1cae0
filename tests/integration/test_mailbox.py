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

from tasks.lane.mailbox import LEAST_SHARE, MOST_BYTES, Mailbox
from tasks.lane.wire import RedisWire, ReplyTooLarge
from tests.support.redis_server import RedisServer

LIMIT = 100_000
MOST = 100


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
    made = Mailbox(server.url, celery=Celery(set_as_current=False), limit_bytes=LIMIT)
    yield made
    made.close()


def everything(mailbox: Mailbox, queues: list[str], turns: int) -> list[list[bytes]]:
    return [mailbox.take(MOST, queues).messages for _ in range(turns)]


def test_messages_come_in_their_order_and_with_the_brokers_time(raw: Any, mailbox: Mailbox) -> None:
    for n in range(3):
        raw.lpush("acquire", f"m{n}")
    came = mailbox.take(MOST)
    assert came.messages == [b"m0", b"m1", b"m2"]
    assert abs(came.now_s - raw.time()[0]) < 60


def test_flooded_queue_does_not_starve_the_others(raw: Any, mailbox: Mailbox) -> None:
    queues = [f"acquire.org-{n}." for n in range(50)]
    raw.lpush(queues[0], *range(10_000))
    raw.lpush(queues[30], "other")
    first = mailbox.take(MOST, queues)
    assert first.messages.count(b"other") == 1
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
    assert (came.messages, came.too_large) == ([b"good", b"x" * LIMIT], 1)
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
    assert (calls["cmdstat_eval"], calls["cmdstat_brpop"]) == (1, 2)


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
