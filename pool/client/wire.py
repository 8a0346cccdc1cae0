"""One connection of redis-py without its overhead per command, which is more than the command's cost."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis


class ReplyWire:
    """A connection that opens at first use and again after an error. Raises the errors of redis-py.

    Only one thread at a time may use it.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._connection: Any = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def send(self, *commands: tuple[Any, ...]) -> None:
        if self._connection is None:
            self._connection = self._take()
        try:
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        except BaseException:
            self.drop()
            raise

    def ready(self, within_s: float) -> bool:
        """Return whether an answer has arrived. May be interrupted safely."""
        try:
            return bool(self._connection.can_read(within_s))
        except Exception:
            self.drop()
            raise

    def read(self) -> Any:
        """Read one answer. After an error the connection is dropped: the next answer could belong
        to any command.
        """
        try:
            return self._connection.read_response()
        except BaseException:
            self.drop()
            raise

    def execute(self, *command: Any) -> Any:
        """Send a command and read the answer. An interrupt in between drops the connection, for the
        same reason.
        """
        try:
            self.send(command)
            return self.read()
        except BaseException:
            self.drop()
            raise

    def _take(self) -> Any:
        take = self._client.connection_pool.get_connection
        # Before redis-py 5.3 the name of a command is needed; later it is deprecated.
        needs_a_name = signature(take).parameters["command_name"].default is Parameter.empty
        return take("_") if needs_a_name else take()

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
            self._client.connection_pool.release(connection)

    def close(self) -> None:
        self.drop()
        self._client.close()
