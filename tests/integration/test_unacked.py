"""The age of an unacknowledged message is measured by the broker's clock, not the host's. Real
Redis, real processes with wrong clocks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from kombu import Connection

from tests.support.clock_skew import skewed
from tests.support.redis_server import RedisServer

VISIBILITY_S = 300
WRONG = pytest.mark.parametrize("skew_s", [-600.0, 600.0], ids=["slow", "fast"])

_TAKE_AND_DIE = """
import os, sys
from kombu import Connection
connection = Connection(sys.argv[1], transport="tasks.worker.transport:PatientTransport", transport_options={"visibility_timeout": 300})
message = connection.SimpleQueue("q").get(timeout=20)
sys.stdout.write(message.payload["what"])
sys.stdout.flush()
os._exit(0)
"""
_RESTORE = """
import os, sys
from kombu import Connection
connection = Connection(sys.argv[1], transport="tasks.worker.transport:PatientTransport", transport_options={"visibility_timeout": 300})
connection.default_channel.qos.restore_visible(interval=1)
sys.stdout.write("done")
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as made:
        yield made


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, decode_responses=True) as made:
        yield made


def _run(script: str, server: RedisServer, skew_s: float) -> str:
    command = [sys.executable, "-c", script, server.url]
    ended = subprocess.run(
        command, env=skewed(os.environ, skew_s), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _taken_by_one_that_died(server: RedisServer, skew_s: float) -> None:
    with Connection(server.url) as connection:
        connection.SimpleQueue("q").put({"what": "call"})
    assert _run(_TAKE_AND_DIE, server, skew_s) == "call"


def _scores(client: redis.Redis) -> dict[bytes, float]:
    """Return when each message was taken, by its tag."""
    found: Any = client.zrange("unacked_index", 0, -1, withscores=True)
    return dict(found)


def _age_s(client: redis.Redis) -> float:
    (score,) = _scores(client).values()
    seconds, microseconds = client.time()
    return float(seconds) + float(microseconds) / 1e6 - score


@WRONG
def test_unacknowledged_message_is_aged_by_the_brokers_clock(
    server: RedisServer, client: redis.Redis, skew_s: float
) -> None:
    _taken_by_one_that_died(server, skew_s)
    assert -1 < _age_s(client) < 120


@WRONG
def test_unacknowledged_messages_are_restored_by_the_brokers_clock(
    server: RedisServer, client: redis.Redis, skew_s: float
) -> None:
    """A fresh one is left unacknowledged, an old one returns to its queue."""
    _taken_by_one_that_died(server, 0)
    assert _run(_RESTORE, server, skew_s) == "done"
    assert (client.hlen("unacked"), client.llen("q")) == (1, 0)
    ((tag, score),) = _scores(client).items()
    client.zadd("unacked_index", {tag: score - VISIBILITY_S - 1})
    assert _run(_RESTORE, server, skew_s) == "done"
    assert (client.hlen("unacked"), client.zcard("unacked_index"), client.llen("q")) == (0, 0, 1)


def test_acknowledged_message_leaves_nothing(server: RedisServer, client: redis.Redis) -> None:
    with Connection(server.url, transport="tasks.worker.transport:PatientTransport") as connection:
        queue = connection.SimpleQueue("q")
        queue.put({"what": "call"})
        queue.get(timeout=20).ack()
    assert (client.hlen("unacked"), client.zcard("unacked_index"), client.llen("q")) == (0, 0, 0)
