"""Bytes from outside, bounded and checked before any handler sees them: a path, a query and a form are short UTF-8 text without control
characters, or the answer is 4xx."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, unquote_to_bytes

from starlette.requests import Request
from starlette.types import Scope

from pool.errors import PoolError

MOST_PATH_BYTES = 2048
MOST_QUERY_BYTES = 4096
MOST_FORM_BYTES = 8192
_MOST_FIELDS = 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Rejected(PoolError):
    """The caller's request cannot be carried out as it is; `code` is the HTTP status, 4xx."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def check_target(scope: Scope) -> None:
    """Raise `Rejected` unless the path and the query are usable text."""
    path, query = scope.get("raw_path") or scope["path"].encode(), scope["query_string"]
    if len(path) > MOST_PATH_BYTES or len(query) > MOST_QUERY_BYTES:
        raise Rejected(
            414, f"the path takes {MOST_PATH_BYTES} bytes at most, the query {MOST_QUERY_BYTES} bytes"
        )
    _text(unquote_to_bytes(path), "path")
    _text(unquote_to_bytes(query), "query")


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; of a name that is there twice, the last."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_FORM_BYTES:
            raise Rejected(413, f"the form is too large: it takes {MOST_FORM_BYTES} bytes at most")
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
        raise Rejected(400, f"the {what} has control characters")
