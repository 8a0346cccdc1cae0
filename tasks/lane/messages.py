"""Parse messages of callers' queues. They are bounded and checked before any other code uses them. Pure.

A message that cannot be parsed, or has no valid id, is dropped and counted. A valid message that
requests something unsupported has an objection: its caller gets the answer `invalid`, if it may be
answered.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pool.core import tracecontext
from pool.core.names import REPLY_PREFIX
from pool.core.signing import HEADER, INTERNAL_HEADER, Asked
from tasks.lane.bounds import ARGUMENTS, FRAME, MOST_TEXT, TooDeep, cleaned, decoded, is_name
from tasks.lane.followers import KINDS, Followers, Unfit, followers
from tasks.routes import INTERNAL_TASKS

CANARY = "pool.canary"
TASKS = frozenset({"pool.acquire", "pool.renew", "pool.release", "pool.cancel", CANARY})
_CALLABLE = ", ".join(sorted(TASKS - {CANARY}))
# Celery's limit for the arguments that Flower shows.
_MOST_SHOWN = 1024


class DropReason(StrEnum):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingMessage:
    """One call as received, within bounds. `objection` names the field for which it is refused, if any."""

    raw: bytes
    task: str
    task_id: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    address: str
    wants_result: bool
    headers: Mapping[str, Any]
    eta: datetime | None = None
    expires: datetime | None = None
    objection: str = ""
    # Whether anything is to follow, and what, if it is accepted.
    is_followed: bool = False
    followers: Followers | None = None

    @property
    def asked(self) -> Asked:
        """The part of the call that its sender may have signed."""
        return Asked(
            task=self.task, task_id=self.task_id, address=self.address, args=self.args, kwargs=self.kwargs
        )

    @property
    def has_invalid_trace(self) -> bool:
        """Whether its `traceparent` is malformed and therefore ignored."""
        return self.headers.get(tracecontext.HEADER) == ""

    @property
    def refusal(self) -> str:
        """Why the message is refused, as a sentence that begins with the field; empty if it is not."""
        if self.task not in TASKS:
            return f"task: {cleaned(self.task, 80)!r} is not a task of this queue; the tasks are {_CALLABLE}"
        return self.objection


class _Refused(Exception):
    def __init__(self, why: DropReason) -> None:
        super().__init__(str(why))
        self.why = why


def read(raw: bytes, limit_bytes: int) -> IncomingMessage | DropReason:
    """Return the message, or why it is dropped."""
    if len(raw) > limit_bytes:
        return DropReason.TOO_LARGE
    try:
        return _message(raw, _json(raw, FRAME, DropReason.NOT_JSON))
    except _Refused as refused:
        return refused.why


def checked(frame: object) -> IncomingMessage | DropReason:
    """Return the message whose frame kombu has parsed, or why it is dropped."""
    try:
        return _message(b"", frame)
    except _Refused as refused:
        return refused.why


def _message(raw: bytes, frame: object) -> IncomingMessage:
    if not isinstance(frame, dict):
        raise _Refused(DropReason.SHAPE)
    headers, properties = frame.get("headers"), frame.get("properties")
    if not isinstance(headers, dict) or not isinstance(properties, dict):
        raise _Refused(DropReason.SHAPE)
    task, task_id = headers.get("task"), headers.get("id")
    if not is_name(task):
        raise _Refused(DropReason.SHAPE)
    if not is_name(task_id):
        raise _Refused(DropReason.TASK_ID)
    if frame.get("content-type") != "application/json" or frame.get("content-encoding") != "utf-8":
        raise _Refused(DropReason.CONTENT)
    args, kwargs, embedded = _body(frame, properties)
    message = IncomingMessage(
        raw=raw,
        task=task,
        task_id=task_id,
        args=args,
        kwargs=kwargs,
        address=_address(properties.get("reply_to")),
        wants_result=not headers.get("ignore_result"),
        headers=_known(headers),
    )
    message = _with_options(message, headers)
    if any(embedded.get(kind) for kind in KINDS):
        return _with_followers(message, headers, embedded, properties.get("delivery_tag"))
    return message


def _with_followers(
    message: IncomingMessage, headers: Mapping[str, Any], embedded: Mapping[str, Any], tag: object
) -> IncomingMessage:
    """Return the message with what is to be sent after its answer, or with an objection to that."""
    if message.task in INTERNAL_TASKS:
        return replace(
            message, is_followed=True, objection="link: nothing may follow a task of the control plane"
        )
    try:
        return replace(message, is_followed=True, followers=followers(embedded, headers, tag))
    except Unfit as exc:
        return replace(message, is_followed=True, objection=f"link: {exc}")


def _with_options(message: IncomingMessage, headers: Mapping[str, Any]) -> IncomingMessage:
    """Return the message with its options applied. Most messages have none."""
    objection = _ill_typed(headers)
    eta, expires = headers.get("eta"), headers.get("expires")
    if not (objection or eta or expires):
        return message
    starts, ends = _instant(eta), _instant(expires)
    for name, given, found in (("eta", eta, starts), ("expires", expires, ends)):
        if given and found is None:
            objection = objection or f"{name}: must be an ISO 8601 time, got {cleaned(str(given), 80)!r}"
    return replace(message, eta=starts, expires=ends, objection=objection)


def _ill_typed(headers: Mapping[str, Any]) -> str:
    """Return an objection to a Celery header that has an unsupported type or value."""
    if compression := headers.get("compression"):
        return (
            f"compression: {cleaned(str(compression), 80)!r} is not supported; send the message uncompressed"
        )
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


def _body(frame: Mapping[str, Any], properties: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    body = frame.get("body")
    if not isinstance(body, str):
        raise _Refused(DropReason.BODY)
    content: str | bytes = body
    if _is_base64(properties):
        try:
            content = base64.b64decode(body, validate=True)
        except (ValueError, binascii.Error) as exc:
            raise _Refused(DropReason.BODY) from exc
    match _json(content, ARGUMENTS, DropReason.BODY):
        case [list() as args, dict() as kwargs, dict() as embedded]:
            return args, kwargs, embedded
    raise _Refused(DropReason.BODY)


def _is_base64(properties: Mapping[str, Any]) -> bool:
    return bool(properties.get("body_encoding") == "base64")


def _address(given: object) -> str:
    """Return the reply list, or "" if it is not one of ours: then the answer is stored as a Celery
    result.
    """
    if given is None or (isinstance(given, str) and not given.startswith(REPLY_PREFIX)):
        return ""
    if not is_name(given):
        raise _Refused(DropReason.ADDRESS)
    return given


def _known(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers that other code may read, cleaned."""
    known: dict[str, Any] = {name: cleaned(headers.get(name)) for name in ("origin", "root_id", "parent_id")}
    for name in ("argsrepr", "kwargsrepr"):
        known[name] = cleaned(headers.get(name), _MOST_SHOWN)
    for name in (HEADER, INTERNAL_HEADER):
        if headers.get(name) is not None:
            known[name] = cleaned(headers[name], 2 * MOST_TEXT)
    if (trace := headers.get(tracecontext.HEADER)) is not None:
        known[tracecontext.HEADER] = tracecontext.valid(trace)
    return known


def _instant(given: object) -> datetime | None:
    if not isinstance(given, str) or len(given) > MOST_TEXT:
        return None
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _json(content: bytes | str, decoder: json.JSONDecoder, why: DropReason) -> Any:
    try:
        return decoded(content, decoder)
    except TooDeep:
        raise _Refused(DropReason.TOO_DEEP) from None
    except ValueError as exc:
        raise _Refused(why) from exc
