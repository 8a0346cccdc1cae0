"""Kombu's Redis transport, hardened where kombu's own would end the process: for data that is not a
message (anyone may push to a list), and for a broker that goes down while acknowledgements are
being sent. It connects as all other parts do, so that every URL of the broker works here, too.

Kombu creates transports by class name and passes no dependencies of ours, so they come from the
app.
"""

from __future__ import annotations

from queue import Empty
from typing import Any

from kombu.transport import redis
from redis.exceptions import ResponseError

from pool.broker import connecting
from pool.core.brokerurl import redacted
from pool.core.signing import INTERNAL_HEADER
from tasks.app import app
from tasks.lane.messages import DropReason, checked
from tasks.options import QUEUES
from tasks.worker.unacked import BrokerTimeQoS

# The options of a channel that its connections get.
_OPTIONS = (
    "max_connections",
    "socket_timeout",
    "socket_connect_timeout",
    "socket_keepalive",
    "health_check_interval",
    "client_name",
)


class PatientChannel(redis.Channel):
    """A channel that drops data that is not JSON, and reports a closed connection as a connection error."""

    QoS = BrokerTimeQoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except Exception as exc:
            # Kombu's decoder may raise anything for a malformed message.
            if isinstance(exc, (Empty, *PatientTransport.connection_errors)):
                raise
            _undecodable(exc)
            return True

    def _get_pool(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        # A late acknowledgement may find the connection closed. Kombu 5.7 then fails on an
        # attribute of None, which does not count as a connection error, so the worker would stop
        # instead of reconnecting.
        if (client := getattr(self.connection, "client", None)) is None:
            raise ConnectionError("the connection to the broker was closed")
        pool = connecting.pool(client.hostname, **{name: getattr(self, name) for name in _OPTIONS})
        self.keyprefix_fanout = self.keyprefix_fanout.format(db=pool.connection_kwargs["db"])
        if asynchronous:
            pool.connection_class = self._polled(pool.connection_class)
        return pool

    def _polled(self, kind: Any) -> Any:
        """Return a kind of connection that leaves kombu's poller when it is closed."""
        channel: Any = self

        class Polled(kind):  # type: ignore[misc]
            def disconnect(self, *args: Any, **kwargs: Any) -> None:
                super().disconnect(*args, **kwargs)
                if channel._registered:  # noqa: SLF001
                    channel._on_connection_disconnect(self)  # noqa: SLF001

        return Polled


class PatientTransport(redis.Transport):
    """A transport that drops JSON that is not a message."""

    Channel = PatientChannel
    # Kombu leaves the URL to us. Its own parser knows neither several hosts nor sentinels.
    can_parse_url = True
    supports_batch_publish = False
    # A broker that refuses a command (out of memory, read-only, in failover) counts as down:
    # reconnect, as after any outage.
    connection_errors = (*redis.Transport.connection_errors, ResponseError)

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:  # noqa: FBT001, FBT002, ARG002
        return uri if include_password else redacted(uri)

    def _deliver(self, message: Any, queue: str | None) -> None:
        """Pass only messages signed by the control plane to Celery, before anything is decompressed
        or decoded.
        """
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
