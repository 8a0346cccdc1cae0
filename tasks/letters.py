"""Messages of the queues that callers write to, bounded and checked before anything else sees them. Pure.

A message that cannot be read, or has no usable id, is `Unreadable`: it is dropped and counted. One that can be read but asks for what is
not served here is a `Letter` with an objection: its caller is answered `invalid` if the caller may be answered at all.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite
from typing import Any, TypeGuard

from pool.signing import HEADER, INTERNAL_HEADER, REPLY_PREFIX, Asked

CANARY = "pool.canary"
TASKS = frozenset({"pool.acquire", "pool.renew", "pool.release", "pool.cancel", CANARY})
_CALLABLE = ", ".join(sorted(TASKS - {CANARY}))
MOST_LEVELS = 32
MOST_DIGITS = 20
MOST_TEXT = 256
# Celery shows up to 1024 characters of arguments.
_MOST_SHOWN = 1024
_FOLLOWERS = ("callbacks", "errbacks", "chain", "chord")
_NAME = re.compile(rf"[!-~]{{1,{MOST_TEXT}}}")
_UNPRINTABLE = re.compile(r"[^ -~]")


class Unread(StrEnum):
    """Why a message was dropped."""

    TOO_LARGE = "too_large"
    NOT_JSON = "not_json"
    TOO_DEEP = "too_deep"
    SHAPE = "shape"
    CONTENT = "content"
    TASK_ID = "id"
    ADDRESS = "address"
    BODY = "body"
    NOT_INTERNAL = "not_internal"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A message that is dropped."""

    why: Unread


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One call as it came, in bounds. `objection` names the field for which it is refused, if it is."""

    raw: bytes
    task: str
    task_id: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    address: str
    wants_result: bool
    headers: Mapping[str, Any]
    body: str = ""
    is_base64: bool = True
    eta: datetime | None = None
    expires: datetime | None = None
    objection: str = ""

    @property
    def asked(self) -> Asked:
        """What its sender may have signed."""
        return Asked(
            task=self.task, task_id=self.task_id, address=self.address, args=self.args, kwargs=self.kwargs
        )

    def kept(self, tag: str, queue: str) -> str:
        """The same call in the form in which kombu keeps what is unacknowledged. Nothing of the frame that a stranger made is in it."""
        times = {
            "eta": self.eta and self.eta.isoformat(),
            "expires": self.expires and self.expires.isoformat(),
        }
        headers = {**self.headers, "lang": "py", "task": self.task, "id": self.task_id, **times}
        frame = {
            "body": self.body,
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {**headers, "ignore_result": not self.wants_result},
            "properties": {
                "correlation_id": self.task_id,
                "reply_to": self.address,
                "body_encoding": "base64" if self.is_base64 else None,
                "delivery_tag": tag,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
            },
        }
        return json.dumps([frame, "", queue])

    @property
    def refusal(self) -> str:
        """Why callers are not served with it, if so: a sentence that begins with the field."""
        if self.task not in TASKS:
            return f"task: {cleaned(self.task, 80)!r} is not a task of this queue; known are {_CALLABLE}"
        return self.objection

    @property
    def asks_again(self) -> bool:
        """Whether its sender repeats it if no answer comes. Others rely on the broker, as with any Celery task."""
        return bool(self.address)


class _Refused(Exception):
    def __init__(self, why: Unread) -> None:
        super().__init__(str(why))
        self.why = why


def read(raw: bytes, limit_bytes: int) -> Letter | Unreadable:
    """The message as a letter, or why it is dropped."""
    if len(raw) > limit_bytes:
        return Unreadable(Unread.TOO_LARGE)
    try:
        return _letter(raw, _json(raw, Unread.NOT_JSON))
    except _Refused as refused:
        return Unreadable(refused.why)


def cleaned(value: object, most: int = MOST_TEXT) -> str:
    """Text of a stranger as it may be written and shown: printable ASCII, of bounded length."""
    return _UNPRINTABLE.sub("?", value[:most]) if isinstance(value, str) else ""


def checked(message: object) -> Letter | Unreadable:
    """The same for a message whose frame was read by others."""
    try:
        return _letter(b"", message)
    except _Refused as refused:
        return Unreadable(refused.why)


def _letter(raw: bytes, message: object) -> Letter:
    if not isinstance(message, dict):
        raise _Refused(Unread.SHAPE)
    headers, properties = message.get("headers"), message.get("properties")
    if not isinstance(headers, dict) or not isinstance(properties, dict):
        raise _Refused(Unread.SHAPE)
    task, task_id = headers.get("task"), headers.get("id")
    if not _is_name(task):
        raise _Refused(Unread.SHAPE)
    if not _is_name(task_id):
        raise _Refused(Unread.TASK_ID)
    if message.get("content-type") != "application/json" or message.get("content-encoding") != "utf-8":
        raise _Refused(Unread.CONTENT)
    args, kwargs, embedded = _body(message, properties)
    letter = Letter(
        raw=raw,
        task=task,
        task_id=task_id,
        args=args,
        kwargs=kwargs,
        address=_address(properties.get("reply_to")),
        wants_result=not headers.get("ignore_result"),
        headers=_known(headers),
        body=message["body"],
        is_base64=_is_base64(properties),
    )
    return _with_options(letter, headers, embedded)


def _with_options(letter: Letter, headers: Mapping[str, Any], embedded: Mapping[str, Any]) -> Letter:
    """Most messages have none of the options that this looks for."""
    objection = _ill_typed(headers)
    if any(embedded.get(name) for name in _FOLLOWERS):
        objection = "link: callbacks, errbacks, chains and chords are not carried out here; send the next task from the caller"
    eta, expires = headers.get("eta"), headers.get("expires")
    if not (objection or eta or expires):
        return letter
    starts, ends = _instant(eta), _instant(expires)
    for name, given, found in (("eta", eta, starts), ("expires", expires, ends)):
        if given and found is None:
            objection = objection or f"{name}: must be an ISO 8601 time, got {cleaned(str(given), 80)!r}"
    return replace(letter, eta=starts, expires=ends, objection=objection)


def _ill_typed(headers: Mapping[str, Any]) -> str:
    """Which of Celery's headers is of a kind that is not taken."""
    if compression := headers.get("compression"):
        return f"compression: {cleaned(str(compression), 80)!r} is not taken; send the message uncompressed"
    if not isinstance(headers.get("retries") or 0, int):
        return "retries: must be a number"
    limits = headers.get("timelimit")
    if limits is not None and not (
        isinstance(limits, list)
        and len(limits) == 2
        and all(isinstance(x, int | float | None) for x in limits)
    ):
        return "timelimit: must be two numbers of seconds"
    return ""


def _body(message: Mapping[str, Any], properties: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    body = message.get("body")
    if not isinstance(body, str):
        raise _Refused(Unread.BODY)
    content: str | bytes = body
    if _is_base64(properties):
        try:
            content = base64.b64decode(body, validate=True)
        except (ValueError, binascii.Error) as exc:
            raise _Refused(Unread.BODY) from exc
    match _json(content, Unread.BODY):
        case [list() as args, dict() as kwargs, dict() as embedded]:
            return args, kwargs, embedded
    raise _Refused(Unread.BODY)


def _is_base64(properties: Mapping[str, Any]) -> bool:
    return bool(properties.get("body_encoding") == "base64")


def _address(given: object) -> str:
    """A reply list of ours, or none: then the answer is stored as Celery's own result."""
    if given is None or (isinstance(given, str) and not given.startswith(REPLY_PREFIX)):
        return ""
    if not _is_name(given):
        raise _Refused(Unread.ADDRESS)
    return given


def _known(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that others may read, each of them clean."""
    known: dict[str, Any] = {name: cleaned(headers.get(name)) for name in ("origin", "root_id", "parent_id")}
    for name in ("argsrepr", "kwargsrepr"):
        known[name] = cleaned(headers.get(name), _MOST_SHOWN)
    for name in (HEADER, INTERNAL_HEADER):
        if headers.get(name) is not None:
            known[name] = cleaned(headers[name], 2 * MOST_TEXT)
    return known


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _instant(given: object) -> datetime | None:
    if not isinstance(given, str) or len(given) > MOST_TEXT:
        return None
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _argument(digits: str) -> int | float:
    """A number of more digits than any field takes becomes a float, which is bounded and which every field refuses."""
    return int(digits) if len(digits) <= MOST_DIGITS else float(digits)


def _in_the_frame(digits: str) -> int:
    """A number around the arguments. Celery and kombu may read it again, which fails for one without bound."""
    if len(digits) > MOST_DIGITS:
        raise ValueError("a number of too many digits")
    return int(digits)


def _fraction(digits: str) -> float:
    found = float(digits)
    if not isfinite(found):
        raise ValueError(f"{digits[:MOST_DIGITS]} is no number of JSON")
    return found


_FRAME = json.JSONDecoder(parse_int=_in_the_frame, parse_float=_fraction, parse_constant=_fraction)
_ARGUMENTS = json.JSONDecoder(parse_int=_argument)


def _json(content: bytes | str, why: Unread) -> Any:
    try:
        text = content if isinstance(content, str) else content.decode()
        found = (_FRAME if why is Unread.NOT_JSON else _ARGUMENTS).decode(text)
    except RecursionError:
        raise _Refused(Unread.TOO_DEEP) from None
    except ValueError as exc:
        raise _Refused(why) from exc
    # A message with so few brackets cannot be deep, and nearly all are of that kind.
    if text.count("[") + text.count("{") > MOST_LEVELS and _is_deep(found):
        raise _Refused(Unread.TOO_DEEP)
    return found


def _is_deep(found: Any) -> bool:
    level = [found]
    for _ in range(MOST_LEVELS):
        level = [
            child
            for each in level
            if isinstance(each, list | dict)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True
