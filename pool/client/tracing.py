"""The trace of a request: given by the caller, else that of the current span of OpenTelemetry.

Nothing is imported. A program that has a current span has imported OpenTelemetry.
"""

from __future__ import annotations

import sys

from pool.core.tracecontext import HEADER, of_span, valid


def traceparent(given: str | None = None) -> str:
    """Return the `traceparent` for a request, or an empty string.

    A malformed one is ignored, as the standard requires: a service may pass on what it received.
    """
    return _current() if given is None else valid(given)


def header(otherwise: str) -> dict[str, str]:
    """Return the header for a call to a worker: the current span's, else that of the acquire."""
    found = _current() or otherwise
    return {HEADER: found} if found else {}


def _current() -> str:
    # None also while another thread is in the middle of importing it.
    current_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if current_span is None:
        return ""
    context = current_span().get_span_context()
    return of_span(context.trace_id, context.span_id, context.trace_flags)
