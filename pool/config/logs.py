"""Set up logging: structlog, one event per line, to stderr; as JSON if WARMPOOL_RUN_LOG is `json`.

Lines that libraries log through the standard library look the same. Our own lines do not pass through it: every
claim writes one, and the standard library would make that three times as expensive.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from typing import TextIO

import structlog

from pool.core.names import ENV_LOG_FORMAT, OUTAGE_ERRORS

# A value that stands for itself; any other is quoted, so that it can neither end a line nor look like another value.
_PLAIN = re.compile(r"[^\s='\"\\]+")


def set_up(level: int = logging.INFO) -> None:
    """Configure logging; call once per process. Commands for people use `logging.WARNING`."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    as_json = os.environ.get(ENV_LOG_FORMAT) == "json"
    renderers: list[structlog.typing.Processor] = [
        outages_in_a_line,
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer() if as_json else as_text,
    ]
    handler = logging.StreamHandler(sys.stderr)
    structlog.configure(
        processors=[*shared, *renderers],
        logger_factory=lambda *_: _Lines(handler),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Our formats do not show these, and computing them takes a fifth of the time of a log call.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Passes and moves are logged with more detail than these loggers have about each task and tick.
    for name in ("celery.app.trace", "celery.worker.strategy", "celery.beat", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


class _Lines:
    """Writes finished lines to a handler's stream, in turn with it. As there, what cannot be written ends no caller."""

    def __init__(self, handler: logging.StreamHandler[TextIO]) -> None:
        self._handler = handler

    def msg(self, line: str) -> None:
        with self._handler.lock or contextlib.nullcontext(), contextlib.suppress(OSError, ValueError):
            self._handler.stream.write(f"{line}\n")
            self._handler.flush()

    debug = info = warning = error = critical = msg


def as_text(_: object, __: str, event: structlog.typing.EventDict) -> str:
    """Time, level, event and values; below them the stack, if there is one."""
    stack = event.pop("exception", "")
    at, level, what = event.pop("timestamp"), event.pop("level"), event.pop("event")
    values = [
        f"{key}={value if isinstance(value, str) and _PLAIN.fullmatch(value) else repr(value)}"
        for key, value in sorted(event.items())
    ]
    return "\n".join(
        (" ".join((f"{at} [{level:<8}] {what!s:<30}", *values)).rstrip(), *([stack] if stack else ()))
    )


def outages_in_a_line(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Remove the stack trace of an outage: its cause fits on one line, and the code is not at fault."""
    found = event.get("exc_info")
    kind = found[0] if isinstance(found, tuple) else type(found) if isinstance(found, BaseException) else None
    if kind is not None and any(base.__name__ in OUTAGE_ERRORS for base in kind.__mro__):
        event.pop("exc_info")
    return event
