"""Readiness and liveness of a process: a file that it touches while it is well, and logs that say one thing a line."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import structlog

READY_FILE = "WARMPOOL_RUN_READY_FILE"


def touch() -> None:
    """Say that this process is well, if somebody wants to know."""
    if path := os.environ.get(READY_FILE):
        Path(path).touch()


def set_up_logging() -> None:
    """structlog over stdlib, to stderr: keys and values on a terminal's line or as JSON, by WARMPOOL_RUN_LOG."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    as_json = os.environ.get("WARMPOOL_RUN_LOG") == "json"
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("celery.app.trace").setLevel(logging.WARNING)
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
