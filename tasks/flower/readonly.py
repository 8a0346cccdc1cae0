"""Flower that only looks: it lives by the events that workers send, and sends them nothing. Whoever gets hold of it, or of its password for
Redis, can stop no worker."""

from __future__ import annotations

from typing import Any

from celery.app.control import Control

from pool.core.errors import PoolError

# What Flower asks by itself, from time to time, to know more than events tell.
_ASKING = frozenset(
    {
        "active", "active_queues", "conf", "enable_events", "heartbeat", "ping", "query_task", "registered", "report", "reserved",
        "revoked", "scheduled", "stats",
    }
)  # fmt: skip


class LookingControl(Control):
    """Broadcasts nothing."""

    def broadcast(self, command: str, *args: Any, reply: bool = False, **kwargs: Any) -> Any:  # noqa: ARG002
        if command not in _ASKING:
            raise PoolError(f"this Flower only looks: it sends no {command} to workers")
        return [] if reply else None
