"""A Celery message in parts, each of which an attacker may replace, and its bytes as a producer would
push them to Redis.

Values that Python's encoder does not write (5,000 digits, 100,000 levels, NaN) are inserted as
text, also with the attacker's own signature.
"""

from __future__ import annotations

import base64
import hmac
import itertools
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pool.core import names, signing
from pool.core.signing import OrgKey

FOLLOWERS = ("callbacks", "errbacks", "chain", "chord")
_MARK = "\x02splice:"


@dataclass(frozen=True, slots=True)
class Splice:
    """JSON text that is inserted into the message unchanged."""

    text: str


def deep(levels: int, opening: str = "[", closing: str = "]") -> Splice:
    return Splice(f"{opening * levels}0{closing * levels}")


def digits(count: int) -> Splice:
    return Splice("7" * count)


# Keys and queues that nothing of a caller may be sent to.
FOREIGN = (
    *("fleet", "bind", "passes", "acquire.general", "acquire.other.", "fleet\x06\x163", "", 5, ["fleet"]),
    *("unacked", "_kombu.binding.fleet", "warmpool.lock.reap", "warmpool.reply.x", "celery-task-meta-x"),
)


def follower(task: Any, **options: Any) -> dict[str, Any]:
    """Return a signature, as Celery puts it into a message."""
    return {
        "task": task,
        "args": [],
        "kwargs": {},
        "options": options,
        "subtask_type": None,
        "immutable": True,
    }


def canvas(kind: Any, *tasks: Any, **options: Any) -> dict[str, Any]:
    """Return a signature of several tasks."""
    body = tasks[0] if tasks else None
    parts = {"header": list(tasks), "body": body} if kind == "chord" else {"tasks": list(tasks)}
    return {**follower(f"celery.{kind}", **options), "kwargs": parts, "subtask_type": kind}


def hostile_followers(task: str, chance: random.Random) -> list[Any]:
    """Return lists of followers, none of which the pool may send. `task` is one of the control plane."""
    own, work = follower(task), follower("shop.work")
    for _ in range(chance.randrange(1, 12)):
        own = chance.choice((
            follower("shop.work", link=[own]), follower("shop.work", chord=own), follower("shop.work", link_error=own),
            canvas("group", work, own), canvas("chord", work, own), canvas("chain", own, work), {**work, "args": [own]},
            {**work, "kwargs": {"deep": own}}, follower("shop.work", chain=[own]),
        ))  # fmt: skip
    return [
        [own], [work] * 1000, [{**work, "args": ["x" * 20_000]}], [canvas("group", *[work] * 60)],
        [follower("shop.work", queue=chance.choice(FOREIGN[:4] + FOREIGN[-5:]))], [follower("x" * 300)], [follower(5)],
        [{**work, "args": {}, "kwargs": []}, own], [{**work, "options": "x"}], [{**work, "subtask_type": "xmap"}],
        [follower("shop.work", task_id=chance.choice(("\x00", 5, "a b", "x" * 300)))],
        [follower("shop.work", countdown="x")], [follower("shop.work", expires=Splice("1e999"))],
        [{**work, "args": [chance.choice((Splice("NaN"), digits(5000), deep(60)))]}],
        [canvas("group")], [canvas("chord", canvas("group", work), work)], [canvas("chain", canvas("chain", work))],
    ]  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Draft:
    """A message of the attacker. `body` and `envelope`, if given, replace what is built from the
    rest.
    """

    task: str
    task_id: Any
    kwargs: dict[str, Any]
    args: list[Any] = field(default_factory=list)
    reply_to: Any = ""
    embed: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    envelope: dict[str, Any] = field(default_factory=dict)
    without: set[str] = field(default_factory=set)
    body: bytes | None = None

    def signed(self, key: OrgKey, *, expires_s: int, nonce: str) -> None:
        """Sign the current content with this org's key."""
        address = self.reply_to if isinstance(self.reply_to, str) else ""
        address = address if address.startswith(names.REPLY_PREFIX) else ""
        head = ["warmpool-request-1", self.task, self.task_id, key.org, key.version, expires_s, nonce]
        text = _text([*head, address, self.args, self.kwargs], sort_keys=True, separators=(",", ":"))
        mac = hmac.digest(bytes.fromhex(key.secret), text.encode(), "sha256").hex()
        self.headers[signing.HEADER] = f"1:{key.org}:{key.version}:{expires_s}:{nonce}:{mac}"

    def raw(self, tag: str) -> bytes:
        """Return the bytes for the queue."""
        body = self.body
        if body is None:
            body = _text([self.args, self.kwargs, dict.fromkeys(FOLLOWERS) | self.embed]).encode()
        headers = {
            "lang": "py", "task": self.task, "id": self.task_id, "root_id": self.task_id, "parent_id": None,
            "shadow": None, "eta": None, "expires": None, "group": None, "group_index": None, "retries": 0,
            "timelimit": [None, None], "argsrepr": "()", "kwargsrepr": "{}", "origin": "attacker@test",
            "ignore_result": False, "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {},
        }  # fmt: skip
        properties = {
            "correlation_id": self.task_id, "reply_to": self.reply_to, "delivery_mode": 2, "priority": 0,
            "delivery_info": {"exchange": "", "routing_key": "acquire"}, "delivery_tag": tag,
            "body_encoding": "base64",
        }  # fmt: skip
        message = {
            "body": base64.b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": self._kept(headers | self.headers),
            "properties": self._kept(properties | self.properties),
        }
        return _text(self._kept(message | self.envelope)).encode("utf-8", "surrogatepass")

    def _kept(self, part: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in part.items() if name not in self.without}


def _text(value: Any, **options: Any) -> str:
    """Return JSON with the splices inserted."""
    spliced: dict[str, str] = {}
    numbers = itertools.count()

    def marked(found: Any) -> Any:
        if isinstance(found, Splice):
            mark = f"{_MARK}{next(numbers)}"
            spliced[json.dumps(mark)] = found.text
            return mark
        if isinstance(found, dict):
            return {name: marked(each) for name, each in found.items()}
        return [marked(each) for each in found] if isinstance(found, list) else found

    text = json.dumps(marked(value), **options)
    for mark, raw in spliced.items():
        text = text.replace(mark, raw)
    return text
