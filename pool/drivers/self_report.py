"""Read a worker's self-report over HTTP."""

from __future__ import annotations

from pool.core.clock import Clock
from pool.core.errors import Transient
from pool.drivers import boundedhttp
from pool.drivers.boundedhttp import HttpCall
from pool.drivers.port import Word

# A run of a pass may query several workers in sequence, and all of them may be silent.
LONGEST_S = 2.0


def read_self_report(endpoint: str, *, timeout_s: float, clock: Clock) -> Word:
    """Return what `GET /sessions` reports. No answer or an invalid answer is SILENT."""
    call = HttpCall(method="GET", url=f"{endpoint}/sessions")
    try:
        reply = boundedhttp.fetch(call, timeout_s=min(timeout_s, LONGEST_S), clock=clock)
        return _word(boundedhttp.parsed(reply.body)) if reply.status == 200 else Word.SILENT
    except (Transient, ValueError):
        return Word.SILENT


def _word(answer: object) -> Word:
    sessions = answer.get("open") if isinstance(answer, dict) else None
    if not isinstance(sessions, int) or isinstance(sessions, bool) or sessions < 0:
        return Word.SILENT
    return Word.BUSY if sessions else Word.UNUSED
