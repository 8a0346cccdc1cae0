"""Celery's configuration, from our settings: JSON only, thread pools, late acknowledgement. Every
task may be repeated.
"""

from __future__ import annotations

from typing import Any

from kombu import Exchange, Queue

from beat_schedule import beat_schedule
from pool import config
from pool.core.names import ACQUIRE, BIND, FLEET, PASSES
from pool.core.settings import Settings
from tasks.routes import ROUTES

# LANE is the queue for callers; the lane reads it. Celery's consumer in an acquire worker reads
# UNUSED, which stays empty, and restores unacknowledged messages of workers that died.
LANE, UNUSED = ACQUIRE, f"{ACQUIRE}.general"
QUEUES = (LANE, UNUSED, FLEET, BIND, PASSES)

# Longest time that the broker may take to answer Celery's consumer, in seconds.
SILENT_S = 5


def consumed(role: str) -> list[str]:
    """Return the queues that Celery's consumer reads in a worker of this role."""
    return [UNUSED] if role == ACQUIRE else [role]


# Options of the tasks that the pool sends to itself.
INTERNAL: dict[str, Any] = {"ignore_result": True, "acks_late": True}


def celery_options(settings: Settings) -> dict[str, Any]:
    """Return the configuration of the Celery app."""
    url, pool = config.broker_url(settings), settings.pool
    return {
        "broker_url": url,
        "broker_transport": "tasks.worker.transport:PatientTransport",
        "result_backend": f"tasks.lane.replies:ReplyBackend+{url}",
        "result_expires": pool.result_expires_s,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "task_queues": [Queue(name, Exchange(name), routing_key=name) for name in QUEUES],
        "task_default_queue": ACQUIRE,
        "task_create_missing_queues": False,
        "task_routes": {task: {"queue": queue} for task, queue in ROUTES.items()},
        "task_acks_late": True,
        "task_send_sent_event": False,
        "task_track_started": False,
        "worker_send_task_events": pool.events,
        "worker_consumer": "tasks.worker.consumer:PatientConsumer",
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            "visibility_timeout": pool.visibility_timeout_s,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_keepalive": True,
            "socket_connect_timeout": 5,
            # A broker that keeps its connections open and answers nothing, as after a partition, is
            # noticed after this time.
            "socket_timeout": SILENT_S,
            "health_check_interval": SILENT_S,
        },
        "redis_socket_connect_timeout": 5,
        "redis_socket_timeout": 10,
        "redis_retry_on_timeout": True,
        "result_backend_transport_options": {"retry_policy": {"timeout": 5.0}},
        "beat_schedule": beat_schedule,
        "beat_scheduler": "tasks.worker.beating:ReportingScheduler",
        "timezone": "UTC",
    }
