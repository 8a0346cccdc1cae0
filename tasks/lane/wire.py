"""Several Redis commands in one round trip over one connection, without redis-py's overhead per
command, which would cost more than the commands.

A broker that refuses writes (out of memory, read-only, loading, in failover) counts as down.
"""

from __future__ import annotations

import threading
from typing import Any

import structlog
from redis.backoff import NoBackoff
from redis.connection import DefaultParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from pool.broker import connecting

log = structlog.get_logger(__name__)

TIMEOUT_S = 5.0
NO_LIMIT = 0


class ReplyTooLarge(RedisConnectionError):
    """The broker sent more than this connection accepts. The data is discarded and the connection
    is closed.
    """


class RedisWire:
    """One connection, opened at first use and again after an error. Threads take turns.

    A reply of more than `limit_bytes` is not read to its end.
    """

    def __init__(self, url: str, *, limit_bytes: int = NO_LIMIT) -> None:
        self._redis = connecting.connect(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            parser_class=_bounded(limit_bytes) if limit_bytes else DefaultParser,
        )
        self._connection: Any = None
        self._turn = threading.Lock()

    def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Return the result of each command. If Redis refuses one, its result is None and the error
        is logged.

        Raise `RedisError` or `OSError` if the connection broke or the broker accepts no writes;
        then it is unknown which commands were executed.
        """
        with self._turn:
            try:
                connection = self._open()
                connection.send_packed_command(connection.pack_commands(commands))
                return _answers(connection, commands)
            except (RedisError, OSError):
                self._break()
                raise

    def drop(self) -> None:
        """Close the connection; the next command opens another one."""
        with self._turn:
            self._break()

    def close(self) -> None:
        self.drop()
        self._redis.close()

    def _open(self) -> Any:
        if self._connection is None:
            self._connection = self._redis.connection_pool.get_connection()
        return self._connection

    def _break(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
            self._redis.connection_pool.release(connection)


def _answers(connection: Any, commands: tuple[tuple[Any, ...], ...]) -> list[Any]:
    found: list[Any] = []
    for command in commands:
        try:
            found.append(_without_errors(command, connection.read_response()))
        except ResponseError as exc:
            key = str(command[1:2])
            log.error("command_refused", command=command[0], key=key, cause=str(exc))  # noqa: TRY400
            found.append(None)
    return found


def _without_errors(command: tuple[Any, ...], reply: Any) -> Any:
    """Return the results of a transaction. If Redis refused a command of it, that result is None
    and the error is logged.
    """
    if command[0] != "EXEC" or not isinstance(reply, list):
        return reply
    for each in reply:
        if isinstance(each, ResponseError):
            log.error("command_refused", command="EXEC", cause=str(each))
    return [None if isinstance(each, ResponseError) else each for each in reply]


def _bounded(limit_bytes: int) -> type[Any]:
    """Return a reply parser that raises once more than this has been buffered."""

    class Bounded(DefaultParser):  # type: ignore[misc,valid-type]
        def read_from_socket(self, *args: Any, **kwargs: Any) -> Any:
            more = super().read_from_socket(*args, **kwargs)
            if self._reader.len() > limit_bytes:
                raise ReplyTooLarge(f"the reply has more than {limit_bytes} bytes")
            return more

    return Bounded
