"""Several commands to Redis in one round trip over one connection, without what redis-py does around each: on the lane that would cost more than
the commands."""

from __future__ import annotations

import threading
from typing import Any

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

log = structlog.get_logger(__name__)

TIMEOUT_S = 5.0


class Wire:
    """One connection, opened at first use and anew after it broke. Threads take turns."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )
        self._connection: Any = None
        self._turn = threading.Lock()

    def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """What each command gave. One that Redis refuses gives None and is logged: the others are none the worse for it. Raises `RedisError` or
        `OSError` if the connection broke; what was carried out is not known then."""
        with self._turn:
            try:
                connection = self._open()
                connection.send_packed_command(connection.pack_commands(commands))
                return [_answer(connection, command) for command in commands]
            except (RedisError, OSError):
                self._break()
                raise

    def close(self) -> None:
        with self._turn:
            self._break()
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


def _answer(connection: Any, command: tuple[Any, ...]) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        log.error("command_refused", command=command[0], key=str(command[1]), cause=str(exc))  # noqa: TRY400
        return None
