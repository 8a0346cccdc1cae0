"""Logs: structlog over stdlib, one thing a line, to stderr; as JSON if WARMPOOL_RUN_LOG says so."""

from __future__ import annotations

import logging
import os
import sys

import structlog


def set_up(level: int = logging.INFO) -> None:
    """Once per process, by whoever owns it. Commands that people read say only what goes wrong (`logging.WARNING`)."""
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
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # A line for each task and each tick tells nothing that a pass or a move does not tell better.
    for name in ("celery.app.trace", "celery.worker.strategy", "celery.beat", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
