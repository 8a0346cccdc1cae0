"""Connections to the broker for asyncio; the counterpart of `connecting`."""

from __future__ import annotations

from typing import Any

from redis import asyncio as redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedConnection
from redis.backoff import NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from pool.broker.connecting import ADDRESS_OF, Answers, arguments_of, assert_options, last, sentinel_arguments
from pool.broker.outages import is_outage
from pool.core.brokerurl import Host, parse


def connect(url: str, **options: Any) -> redis.Redis:
    """Return a client that connects at first use. `InvalidUrl` if the URL cannot be used."""
    at = parse(url)
    arguments = arguments_of(url, at, options)
    if at.master:
        kind: Any = _AsyncSentinelTls if at.tls else _AsyncSentinelTcp
        sentinels = AsyncSentinels(at.hosts, sentinel_arguments(at, arguments))
        made: Any = _AsyncSentinelPool(  # type: ignore[no-untyped-call]
            at.master, sentinels, connection_class=kind, **arguments
        )
    else:
        kind = _AsyncSocket if at.path else _AsyncTls if at.tls else _AsyncTcp
        made = redis.ConnectionPool(connection_class=kind, **arguments)
    assert_options(url, made)
    return redis.Redis.from_pool(made)


class AsyncSentinels:
    """Queries the sentinels as `connecting.Sentinels` does."""

    def __init__(self, hosts: tuple[Host, ...], arguments: dict[str, Any]) -> None:
        self._hosts = hosts
        self._arguments = {**arguments, "retry": Retry(NoBackoff(), 0)}

    async def discover_master(self, service_name: str) -> Host:
        answers = Answers(service_name)
        for host in self._hosts:
            found = None
            try:
                async with redis.Redis(host=host[0], port=host[1], **self._arguments) as sentinel:
                    found = answers.take(await sentinel.execute_command(ADDRESS_OF, service_name))
            except (RedisError, OSError) as exc:
                answers.failed(exc)
            finally:
                # Also if the caller did not wait longer: the next query begins with another one.
                if found is None:
                    self._hosts = last(host, self._hosts)
            if found is not None:
                return found
        raise answers.none_found()


class _AsyncSentinelPool(SentinelConnectionPool):
    """A pool that leaves idle connections alone when the primary changes: redis-py would also close one
    that another task takes at that moment. They are closed when their server refuses the next command.
    """

    async def get_master_address(self) -> Host:
        found: Host = await self.sentinel_manager.discover_master(self.service_name)
        self.master_address = found
        return found


class _AsyncReplaced:
    """A connection that closes itself if its server refuses for now."""

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read_response(*args, **kwargs)  # type: ignore[misc]
        except (ResponseError, BusyLoadingError) as exc:
            if not is_outage(exc):
                raise
            await self.disconnect()  # type: ignore[attr-defined]
            raise RedisConnectionError(str(exc)) from exc


class _AsyncTcp(_AsyncReplaced, redis.Connection):
    pass


class _AsyncTls(_AsyncReplaced, redis.SSLConnection):
    pass


class _AsyncSocket(_AsyncReplaced, redis.UnixDomainSocketConnection):
    pass


class _AsyncSentinelTcp(_AsyncReplaced, SentinelManagedConnection):
    pass


class _AsyncSentinelTls(_AsyncReplaced, SentinelManagedConnection, redis.SSLConnection):
    pass
