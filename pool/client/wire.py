"""One connection of redis-py, without what redis-py does around each command: that would cost more than the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis


class ReplyWire:
    """Opened at first use and anew after it broke. One thread at a time. Raises what redis-py raises."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._connection: Any = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def send(self, *commands: tuple[Any, ...]) -> None:
        if self._connection is None:
            self._connection = self._client.connection_pool.get_connection()
        try:
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        except BaseException:
            self.drop()
            raise

    def ready(self, within_s: float) -> bool:
        """Whether an answer is there; may be interrupted without harm."""
        try:
            return bool(self._connection.can_read(within_s))
        except Exception:
            self.drop()
            raise

    def read(self) -> Any:
        """One answer. Whatever goes wrong, nobody knows what the next one would belong to."""
        try:
            return self._connection.read_response()
        except BaseException:
            self.drop()
            raise

    def ask(self, *command: Any) -> Any:
        """Send, and read the answer. Interrupted in between, nobody would know what the next answer belongs to."""
        try:
            self.send(command)
            return self.read()
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
            self._client.connection_pool.release(connection)

    def close(self) -> None:
        self.drop()
        self._client.close()
