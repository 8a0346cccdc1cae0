"""Logs: structlog over stdlib, one thing a line, to stderr; as JSON if WARMPOOL_RUN_LOG says so."""

from __future__ import annotations

import logging
import os
import sys

import structlog

# What an outage raises, whoever's exception it is. Its cause is one line; where in the code it was met tells nobody anything.
OUTAGES = frozenset({"Transient", "OperationalError", "ConnectionError", "TimeoutError"})


def set_up(level: int = logging.INFO) -> None:
    """Once per process, by whoever owns it. Commands that people read say only what goes wrong (`logging.WARNING`)."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    as_json = os.environ.get("WARMPOOL_RUN_LOG") == "json"
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()] if as_json else [plain]
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
                outages_in_a_line,
                *renderers,
            ],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # No format of ours shows them, and finding them out is a fifth of what a line costs.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # A line for each task and each tick tells nothing that a pass or a move does not tell better.
    for name in ("celery.app.trace", "celery.worker.strategy", "celery.beat", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


def outages_in_a_line(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """No stack for what is not a mistake in the code."""
    found = event.get("exc_info")
    kind = found[0] if isinstance(found, tuple) else type(found) if isinstance(found, BaseException) else None
    if kind is not None and any(base.__name__ in OUTAGES for base in kind.__mro__):
        event.pop("exc_info")
    return event
