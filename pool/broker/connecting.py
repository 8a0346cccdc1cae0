"""Connections to the broker, for every kind of URL: the one place that opens them for threads.

A connection whose server refuses for now (read-only, loading, without its primary) is closed, and the
next one is opened by name: after a failover it leads to the server that took over.
"""

from __future__ import annotations

from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool, SentinelManagedConnection

from pool.broker.outages import MasterUnknown, is_outage
from pool.core.brokerurl import BrokerUrl, Host, InvalidUrl, parse

ADDRESS_OF = "SENTINEL GET-MASTER-ADDR-BY-NAME"
# What a Unix socket does not have.
_OF_TCP = ("socket_keepalive", "socket_keepalive_options")
_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")


def connect(url: str, **options: Any) -> redis.Redis:
    """Return a client that connects at first use. `InvalidUrl` if the URL cannot be used."""
    return redis.Redis.from_pool(pool(url, **options))


def pool(url: str, **options: Any) -> redis.ConnectionPool:
    """Return the connections of a client."""
    at = parse(url)
    arguments = arguments_of(url, at, options)
    if at.master:
        kind: Any = _SentinelTls if at.tls else _SentinelTcp
        sentinels = Sentinels(at.hosts, sentinel_arguments(at, arguments))
        made: Any = SentinelConnectionPool(at.master, sentinels, connection_class=kind, **arguments)
    else:
        kind = _Socket if at.path else _Tls if at.tls else _Tcp
        made = redis.ConnectionPool(connection_class=kind, **arguments)
    assert_options(url, made)
    return cast("redis.ConnectionPool", made)


def arguments_of(url: str, at: BrokerUrl, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a connection. Those in the URL take precedence."""
    try:
        given = parse_url(at.server)
    except ValueError as exc:
        raise InvalidUrl(url, f"a URL with valid options: {exc}") from exc
    if at.path:
        place: dict[str, Any] = {"path": at.path}
        options = {name: value for name, value in options.items() if name not in _OF_TCP}
    else:
        place = {} if at.master else dict(zip(("host", "port"), at.hosts[0], strict=True))
    return {**options, **given, **place}


def sentinel_arguments(at: BrokerUrl, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a connection to a sentinel: the same timeouts and certificates, and its
    own user. No retry: another sentinel may answer.
    """
    tls = {name: value for name, value in arguments.items() if name.startswith("ssl_")}
    timeouts = {name: arguments[name] for name in _TIMEOUTS if arguments.get(name) is not None}
    return {"decode_responses": True, **timeouts, **at.sentinel, **({"ssl": True, **tls} if at.tls else {})}


def assert_options(url: str, made: Any) -> None:
    """Raise `InvalidUrl` if redis-py does not accept an option."""
    try:
        made.connection_class(**made.connection_kwargs)
    except (TypeError, ValueError, RedisError) as exc:
        raise InvalidUrl(url, f"a URL with valid options: {exc}") from exc


class Answers:
    """What the sentinels answered to one query."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._refusals: list[Exception] = []
        self._troubles: list[str] = []

    def take(self, found: Any) -> Host | None:
        """Return the address, or None if the sentinel monitors no primary of that name."""
        return None if found is None else (str(found[0]), int(found[1]))

    def failed(self, exc: Exception) -> None:
        if isinstance(exc, (AuthenticationError, NoPermissionError)):
            self._refusals.append(exc)
        else:
            self._troubles.append(str(exc) or "it did not answer in time")

    def none_found(self) -> Exception:
        """Return the error if no sentinel has named a primary."""
        if self._refusals:
            return AuthenticationError(
                f"a sentinel refused sentinel_username or sentinel_password: {self._refusals[0]}"
            )
        if not self._troubles:
            return MasterUnknown(f"the sentinels monitor no primary named {self._name!r}")
        return MasterNotFoundError(
            f"no sentinel answered with the primary {self._name!r}: {'; '.join(self._troubles)}"
        )


def last(host: Host, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Return the hosts with this one at the end."""
    return (*(each for each in hosts if each != host), host)


class Sentinels:
    """Queries the sentinels one after the other, beginning with the one that answered last.

    It queries the address, not the state: a sentinel names the promoted replica before it has finished
    the failover. A connection to a sentinel lives for one query, so none is left stale or open.
    """

    def __init__(self, hosts: tuple[Host, ...], arguments: dict[str, Any]) -> None:
        self._hosts = hosts
        self._arguments = {**arguments, "retry": Retry(NoBackoff(), 0)}

    def discover_master(self, service_name: str) -> Host:
        """Return the address of the primary. Called by redis-py before each connection."""
        answers = Answers(service_name)
        for host in self._hosts:
            found = None
            try:
                with redis.Redis(*host, **self._arguments) as sentinel:
                    found = answers.take(sentinel.execute_command(ADDRESS_OF, service_name))
            except (RedisError, OSError) as exc:
                answers.failed(exc)
            if found is not None:
                return found
            # The next query begins with another one.
            self._hosts = last(host, self._hosts)
        raise answers.none_found()


class _Replaced:
    """A connection that closes itself if its server refuses for now."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)  # type: ignore[misc]
        except (ResponseError, BusyLoadingError) as exc:
            if not is_outage(exc):
                raise
            self.disconnect()  # type: ignore[attr-defined]
            raise RedisConnectionError(str(exc)) from exc


class _Tcp(_Replaced, redis.Connection):
    pass


class _Tls(_Replaced, redis.SSLConnection):
    pass


class _Socket(_Replaced, redis.UnixDomainSocketConnection):
    pass


class _SentinelTcp(_Replaced, SentinelManagedConnection):
    pass


class _SentinelTls(_Replaced, SentinelManagedConnection, redis.SSLConnection):
    pass
