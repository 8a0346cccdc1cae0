"""Kombu's Redis transport, for a list that anybody may push to: what is not even a message is dropped and logged. Kombu's own ends the
process on it."""

from __future__ import annotations

from json import JSONDecodeError
from typing import Any

import structlog
from kombu.transport import redis

log = structlog.get_logger(__name__)


class PatientChannel(redis.Channel):
    """Drops what is not JSON."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except (JSONDecodeError, UnicodeDecodeError) as exc:
            _refused(exc)
            return True


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
