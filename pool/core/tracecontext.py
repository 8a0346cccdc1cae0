"""The header `traceparent` of W3C Trace Context: which trace a request belongs to. Pure."""

from __future__ import annotations

import re

HEADER = "traceparent"
# Version, trace, parent span, flags. All zeros are no id, and version ff is forbidden.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII
)


def valid(value: object) -> str:
    """Return a `traceparent` of exactly the standard's form, else an empty string."""
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else ""


def of_span(trace_id: int, span_id: int, flags: int) -> str:
    """Return the `traceparent` of a span, or an empty string if its ids are not valid."""
    return valid(f"00-{trace_id:032x}-{span_id:016x}-{flags & 0xFF:02x}")
