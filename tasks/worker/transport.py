"""Kombu's Redis transport, where kombu's own would end the process: on what is not even a message (anybody may push to a list), and on a
broker that dies while acknowledgements are on their way.

Kombu makes transports by the name of their class and gives them no collaborators of ours: they are the app's."""

from __future__ import annotations

from queue import Empty
from typing import Any

from kombu.transport import redis
from redis.exceptions import ResponseError

from pool.core.signing import INTERNAL_HEADER
from tasks.app import app
from tasks.lane.messages import DropReason, checked
from tasks.options import QUEUES
from tasks.worker.unacked import BrokerTimeQoS


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
            _undecodable(exc)
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
        if queue in QUEUES and (why := _refusal(message)):
            app.dropped.add(why)
            return
        try:
            super()._deliver(message, queue)
        except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as exc:
            _undecodable(exc)


def _refusal(frame: Any) -> DropReason | None:
    message = checked(frame)
    if isinstance(message, DropReason):
        return message
    signed = app.internal_tasks.accepts(message.headers.get(INTERNAL_HEADER), message.asked)
    return None if signed and not message.objection else DropReason.NOT_INTERNAL


def _undecodable(exc: Exception) -> None:
    app.dropped.add(DropReason.NOT_JSON, cause=f"{type(exc).__name__}: {exc}")
