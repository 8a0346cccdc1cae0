"""What a client reports when it cannot use its broker: an outage, refused credentials and a wrong URL
are three errors. And which server it uses after a failover behind one name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from pool.broker import aioconnecting, connecting
from pool.client import AnswerOverdue, AsyncPool, BrokerDenied, BrokerDown, InvalidUrl, Pool
from tests.support.redis_server import RedisServer
from tests.support.sentinels import MASTER, SentinelGroup
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually
from tests.support.write_refusing import failover

ACL = (
    "user default off ~* &* +@all\n"
    "user admin on >admin ~* &* +@all\n"
    "user mute on >pw ~* &* +@all -lpush\n"
    "user deaf on >pw ~* &* +@all -blpop\n"
)
# Far fewer than the attempts that an outage causes within the two seconds of a first send.
FEW = 6


def with_threads(url: str) -> None:
    with Pool(url, answer_grace_s=0.5) as pool:
        pool.acquire("acme", wait_s=60)


def with_asyncio(url: str) -> None:
    async def acquire() -> None:
        async with AsyncPool(url, answer_grace_s=0.5) as pool:
            await pool.acquire("acme", wait_s=60)

    asyncio.run(acquire())


CLIENTS: list[Callable[[str], None]] = [with_threads, with_asyncio]


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    with RedisServer(acl=ACL) as server:
        yield server


@pytest.fixture(scope="module")
def group() -> Iterator[SentinelGroup]:
    with SentinelGroup(password="pw", own_password="own") as made:
        yield made


@pytest.mark.parametrize("acquires", CLIENTS)
@pytest.mark.parametrize("user", ["unknown:pw", "admin:wrong", ":wrong", ""])
def test_refused_credentials_are_reported_at_once_and_not_as_an_outage(
    guarded: RedisServer, acquires: Callable[[str], None], user: str
) -> None:
    url = f"redis://{user}{'@' if user else ''}127.0.0.1:{guarded.port}/0"
    with redis.Redis.from_url(guarded.url_of("admin", "admin")) as admin:
        before = admin.info("stats")["acl_access_denied_auth"]
        with pytest.raises(
            BrokerDenied, match=r"refused the credentials.*check user and password in the URL"
        ):
            acquires(url)
        assert admin.info("stats")["acl_access_denied_auth"] - before <= FEW


@pytest.mark.parametrize("acquires", CLIENTS)
@pytest.mark.parametrize("user", ["mute", "deaf"])
def test_a_missing_right_is_reported_with_the_command_that_prints_the_rights(
    guarded: RedisServer, acquires: Callable[[str], None], user: str
) -> None:
    with pytest.raises(BrokerDenied, match=r"lacks a right: .*warmpool org acl") as caught:
        acquires(guarded.url_of(user, "pw"))
    assert "pw@" not in str(caught.value)


@pytest.mark.parametrize("acquires", CLIENTS)
@pytest.mark.parametrize("url", ["redis//h", "redis://h:port/0", "redis://h?colour=red", "redis+cluster://h"])
def test_malformed_url_is_refused_before_anything_is_sent(acquires: Callable[[str], None], url: str) -> None:
    with pytest.raises(InvalidUrl, match="invalid: url is "):
        acquires(url)


@pytest.mark.parametrize("acquires", CLIENTS)
def test_database_that_the_server_does_not_have_is_a_wrong_url(
    guarded: RedisServer, acquires: Callable[[str], None]
) -> None:
    with pytest.raises(InvalidUrl, match="number of the database"):
        acquires(f"redis://admin:admin@127.0.0.1:{guarded.port}/999")


@pytest.mark.parametrize("acquires", CLIENTS)
def test_node_of_a_redis_cluster_is_a_wrong_url(acquires: Callable[[str], None]) -> None:
    more = {"cluster-enabled": "yes"}
    with RedisServer(more=more) as asked, RedisServer(more=more) as owner:
        with redis.Redis.from_url(owner.url) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", str(asked.port))
        with redis.Redis.from_url(asked.url) as client:
            eventually(
                lambda: "cluster_state:ok" in _text(client.execute_command("CLUSTER", "INFO")), within_s=30
            )
        with pytest.raises(InvalidUrl, match="a Redis Cluster is not supported"):
            acquires(asked.url)


@pytest.mark.parametrize("acquires", CLIENTS)
def test_sentinels_that_refuse_or_do_not_monitor_the_primary_are_no_outage(
    group: SentinelGroup, acquires: Callable[[str], None]
) -> None:
    with pytest.raises(BrokerDenied, match="sentinel_password"):
        acquires(group.url.replace("sentinel_password=own", "sentinel_password=wrong"))
    with pytest.raises(BrokerDenied, match="refused the credentials"):
        acquires(group.url.replace(":pw@", ":wrong@"))
    with pytest.raises(InvalidUrl, match="monitor no primary named 'cold'"):
        acquires(group.url.replace(f"/{MASTER}/", "/cold/"))


def test_a_sentinel_that_is_down_is_skipped(group: SentinelGroup) -> None:
    dead = RedisServer()
    dead.close()
    url = group.url.replace("@", f"@127.0.0.1:{dead.port},")
    with connecting.connect(url) as client:
        assert client.ping()


@pytest.mark.parametrize("acquires", CLIENTS)
def test_an_outage_is_logged_once_with_its_end(
    acquires: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer()
    try:
        with pytest.raises(BrokerDown):
            acquires(server.url)
        assert _events(caplog) == ["broker_away"]
        caplog.clear()
        with Pool(server.url, answer_grace_s=0.5) as pool:
            for _ in range(2):
                with pytest.raises(BrokerDown):
                    pool.acquire("acme")
            server.start()
            with pytest.raises(AnswerOverdue):
                pool.acquire("acme")
            eventually(lambda: "broker_back" in _events(caplog), within_s=10)
        assert _events(caplog) == ["broker_away", "broker_back"]
    finally:
        server.close()


def test_connection_to_a_demoted_server_is_replaced_by_name() -> None:
    """As behind one DNS name: new connections lead to the new primary, and old ones stay open."""
    with RedisServer() as old, RedisServer() as new, TcpProxy(old.port) as name:
        url = f"redis://127.0.0.1:{name.port}/0"

        async def scenario() -> None:
            client = connecting.connect(url, retry=Retry(NoBackoff(), 1))
            aclient = aioconnecting.connect(url, retry=AsyncRetry(NoBackoff(), 1))
            try:
                client.lpush("a", "before")
                await _lpush(aclient, "before")
                with redis.Redis.from_url(old.url) as demoted:
                    demoted.execute_command("REPLICAOF", "127.0.0.1", "1")
                name.lead_to(new.port)
                client.lpush("a", "after")
                await _lpush(aclient, "after")
            finally:
                client.close()
                await aclient.aclose()

        asyncio.run(scenario())
        with redis.Redis.from_url(new.url) as promoted:
            assert promoted.lrange("a", 0, -1) == [b"after", b"after"]


def test_blocked_read_that_a_failover_ends_is_an_outage() -> None:
    with RedisServer() as server, connecting.connect(server.url, retry=None) as client:
        wire = client.connection_pool.get_connection()
        wire.send_command("BLPOP", "nothing", 30)
        failover(server)
        with pytest.raises(redis.ConnectionError):
            wire.read_response()
        client.connection_pool.release(wire)


async def _lpush(client: Any, text: str) -> None:
    await client.lpush("a", text)


def _text(found: Any) -> str:
    return found.decode() if isinstance(found, bytes) else str(found)


def _events(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage().split()[0] for record in records if record.name == "warmpool.client"]


def test_asyncio_client_closes_although_a_cancellation_was_lost() -> None:
    """A library may turn the cancellation of a task into an error that is retried."""
    cancelled = 0

    async def loses_one() -> None:
        nonlocal cancelled
        while cancelled < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1

    async def closes() -> None:
        pool = AsyncPool("redis://127.0.0.1:1/0")
        session = pool._session()
        session._loops = [asyncio.create_task(loses_one())]
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await session.close()

    asyncio.run(closes())
    assert cancelled == 2
