"""Kombu's Redis transport, where kombu's own would end the process: on what is not even a message (anybody may push to a list), and on a
broker that dies while acknowledgements are on their way."""

from __future__ import annotations

from json import JSONDecodeError
from typing import Any

import structlog
from kombu.transport import redis

from tasks.unacked import BrokerTimeQoS

log = structlog.get_logger(__name__)


class PatientChannel(redis.Channel):
    """Drops what is not JSON, and says of a connection that was given up that it was."""

    QoS = BrokerTimeQoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except (JSONDecodeError, UnicodeDecodeError) as exc:
            _refused(exc)
            return True

    def _connparams(self, *args: Any, **kwargs: Any) -> Any:
        # A late acknowledgement finds the connection taken apart. Kombu 5.7 then fails on an attribute of None, which is no
        # connection error to anybody, so that the worker gives up instead of connecting again.
        if getattr(self.connection, "client", None) is None:
            raise ConnectionError("the connection to the broker was given up")
        return super()._connparams(*args, **kwargs)  # type: ignore[misc]


class PatientTransport(redis.Transport):
    """Drops JSON that is no message."""

    Channel = PatientChannel

    def _deliver(self, message: Any, queue: str | None) -> None:
        try:
            super()._deliver(message, queue)
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            _refused(exc)


def _refused(exc: Exception) -> None:
    log.error("message_refused", cause=f"{type(exc).__name__}: {exc}")
