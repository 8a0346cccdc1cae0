"""A read-only Flower: it uses the events that workers send, and sends them nothing.

So an attacker who controls it, or has its Redis password, cannot stop a worker.
"""

from __future__ import annotations

from typing import Any

from celery.app.control import Control

from pool.core.errors import PoolError

# Commands that Flower sends by itself, to get more than the events contain.
_QUERIES = frozenset(
    {
        "active", "active_queues", "conf", "enable_events", "heartbeat", "ping", "query_task", "registered",
        "report", "reserved", "revoked", "scheduled", "stats",
    }
)  # fmt: skip


class ReadOnlyControl(Control):
    """A control that broadcasts nothing."""

    def broadcast(self, command: str, *args: Any, reply: bool = False, **kwargs: Any) -> Any:  # noqa: ARG002
        if command not in _QUERIES:
            raise PoolError(f"this Flower is read-only: it does not send {command} to workers")
        return [] if reply else None
