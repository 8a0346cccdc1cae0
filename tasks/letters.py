"""Messages of the queue `acquire` as the lane reads them. Pure.

Only what is plain is read here: a task that callers use, with JSON arguments, to be carried out now, and with nothing to follow. Anything
else, the malformed included, is left to Celery's own consumer, which knows what to do with it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pool.signing import Asked
from tasks.replies import REPLY_PREFIX

TASKS = frozenset({"pool.acquire", "pool.renew", "pool.release", "pool.cancel", "pool.canary"})
# Headers that ask for what only Celery does.
_UNUSUAL = ("eta", "expires", "compression", "group", "retries")
_FOLLOWERS = ("callbacks", "errbacks", "chain", "chord")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One call as it came."""

    raw: bytes
    task: str
    task_id: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    address: str
    wants_result: bool
    headers: Mapping[str, Any]

    @property
    def asked(self) -> Asked:
        """What its sender may have signed."""
        return Asked(
            task=self.task, task_id=self.task_id, address=self.address, args=self.args, kwargs=self.kwargs
        )

    @property
    def asks_again(self) -> bool:
        """Whether its sender repeats it if no answer comes. Others rely on the broker, as with any Celery task."""
        return bool(self.address)


def read(raw: bytes) -> Letter | None:
    """None: not plain."""
    try:
        message = json.loads(raw)
        headers, properties = message["headers"], message["properties"]
        if message["content-type"] != "application/json" or message["content-encoding"] != "utf-8":
            return None
        body = message["body"]
        if properties.get("body_encoding") == "base64":
            body = base64.b64decode(body, validate=True)
        args, kwargs, followers = json.loads(body)
    except (ValueError, TypeError, LookupError, AttributeError, binascii.Error, RecursionError):
        return None
    if not _is_plain(headers, args, kwargs, followers):
        return None
    address = properties.get("reply_to")
    return Letter(
        raw=raw,
        task=headers["task"],
        task_id=headers["id"],
        args=args,
        kwargs=kwargs,
        address=address if isinstance(address, str) and address.startswith(REPLY_PREFIX) else "",
        wants_result=not headers.get("ignore_result"),
        headers=headers,
    )


def _is_plain(headers: Any, args: Any, kwargs: Any, followers: Any) -> bool:
    return (
        isinstance(headers, dict)
        and isinstance(args, list)
        and isinstance(kwargs, dict)
        and isinstance(followers, dict)
        and isinstance(headers.get("task"), str)
        and headers["task"] in TASKS
        and isinstance(headers.get("id"), str)
        and headers.get("timelimit") in (None, [None, None])
        and not any(headers.get(name) for name in _UNUSUAL)
        and not any(followers.get(name) for name in _FOLLOWERS)
    )
