"""Kombu's Redis transport, where kombu's own would end the process: on what is not even a message (anybody may push to a list), and on a
broker that dies while acknowledgements are on their way."""

from __future__ import annotations

from queue import Empty
from typing import Any

from kombu.transport import redis
from redis.exceptions import ResponseError

from pool.signing import INTERNAL_HEADER
from tasks.app import app
from tasks.letters import Unread, Unreadable, checked
from tasks.options import QUEUES
from tasks.unacked import BrokerTimeQoS


class PatientChannel(redis.Channel):
    """Drops what is not JSON, and says of a connection that was given up that it was."""

    QoS = BrokerTimeQoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except Exception as exc:
            # Kombu's decoder raises whatever the message makes it raise.
            if isinstance(exc, (Empty, *PatientTransport.connection_errors)):
                raise
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
    # A broker that refuses a command (out of memory, read-only, in failover) is away: connect again, as after any outage.
    connection_errors = (*redis.Transport.connection_errors, ResponseError)

    def _deliver(self, message: Any, queue: str | None) -> None:
        """Only what the control plane has signed goes on to Celery, before anything of it is decompressed or decoded."""
        if queue in QUEUES and (refused := _refusal(message)):
            app.dropped.add(refused)
            return
        try:
            super()._deliver(message, queue)
        except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as exc:
            _refused(exc)


def _refusal(message: Any) -> Unread | None:
    letter = checked(message)
    if isinstance(letter, Unreadable):
        return letter.why
    signed = app.internal_tasks.accepts(letter.headers.get(INTERNAL_HEADER), letter.asked)
    return None if signed and not letter.objection else Unread.NOT_INTERNAL


def _refused(exc: Exception) -> None:
    app.dropped.add(Unread.NOT_JSON, cause=f"{type(exc).__name__}: {exc}")
