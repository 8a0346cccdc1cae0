"""Checks of requests before any handler runs: path, query and form must be short UTF-8 text without
control characters; otherwise the answer is 4xx."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, unquote_to_bytes

from starlette.requests import Request
from starlette.types import Scope

from pool.core.errors import PoolError

MOST_PATH_BYTES = 2048
MOST_QUERY_BYTES = 4096
MOST_FORM_BYTES = 8192
_MOST_FIELDS = 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Rejected(PoolError):
    """The request is invalid; `code` is the HTTP status, 4xx."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def check_target(scope: Scope) -> None:
    """Raise `Rejected` unless the path and the query are usable text."""
    path, query = scope.get("raw_path") or scope["path"].encode(), scope["query_string"]
    if len(path) > MOST_PATH_BYTES or len(query) > MOST_QUERY_BYTES:
        raise Rejected(
            414,
            f"the URL is too long: the maximum is {MOST_PATH_BYTES} bytes for the path "
            f"and {MOST_QUERY_BYTES} bytes for the query",
        )
    _text(unquote_to_bytes(path), "path")
    _text(unquote_to_bytes(query), "query")


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form; if a name occurs twice, the last value."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_FORM_BYTES:
            raise Rejected(413, f"the form is too large: the maximum is {MOST_FORM_BYTES} bytes")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError as exc:
        raise Rejected(400, f"the form is not UTF-8, or has more than {_MOST_FIELDS} fields") from exc
    for text in (*fields, *(value for values in fields.values() for value in values)):
        _without_control(text, "form")
    return {name: values[-1] for name, values in fields.items()}


def _text(given: bytes, what: str) -> None:
    try:
        text = given.decode()
    except UnicodeDecodeError as exc:
        raise Rejected(400, f"the {what} is not UTF-8") from exc
    _without_control(text, what)


def _without_control(text: str, what: str) -> None:
    if _CONTROL.search(text):
        raise Rejected(400, f"the {what} contains control characters")
