"""A worker's own word, asked over HTTP."""

from __future__ import annotations

from pool import boundedhttp
from pool.boundedhttp import Call
from pool.clock import Clock
from pool.drivers.port import Word
from pool.errors import Transient

# Several may be asked one after the other in a run of a pass, and all of them may be silent.
LONGEST_S = 2.0


def ask(endpoint: str, *, timeout_s: float, clock: Clock) -> Word:
    """What `GET /sessions` says. No answer, or one that makes no sense, is silence."""
    call = Call(method="GET", url=f"{endpoint}/sessions")
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
