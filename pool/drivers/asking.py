"""A worker's own word, asked over HTTP."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

from pool.drivers.port import Word

_LONGEST_ANSWER = 65_536


def ask(endpoint: str, *, timeout_s: float) -> Word:
    """What `GET /sessions` says. No answer, or one that makes no sense, is silence."""
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=timeout_s)
    try:
        connection.request("GET", "/sessions", headers={"Connection": "close"})
        response = connection.getresponse()
        body = response.read(_LONGEST_ANSWER)
        return _word(json.loads(body)) if response.status == http.client.OK else Word.SILENT
    except (OSError, http.client.HTTPException, ValueError):
        return Word.SILENT
    finally:
        connection.close()


def _word(answer: object) -> Word:
    sessions = answer.get("open") if isinstance(answer, dict) else None
    if not isinstance(sessions, int) or isinstance(sessions, bool) or sessions < 0:
        return Word.SILENT
    return Word.BUSY if sessions else Word.UNUSED
