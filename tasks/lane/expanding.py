"""The messages that follow an answer, as Celery's canvas would send them. Pure.

Each has the task id that its caller gave it; without one, an id that is derived from the id of the
call, so that a repetition has the same id.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from pool.core.names import ACQUIRE
from tasks.routes import INTERNAL_TASKS, ROUTES

# The place of the results of a chord's header in the arguments of its body.
RESULTS = "\x00results\x00"
_IDS = UUID("6f0d5f43-6d1c-4a53-9d1f-6f6f3b4a2c11")
Signature = Mapping[str, Any]
Command = list[str]


class Foreign(ValueError):
    """A follower names a task or a queue that it may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a follower stands: after which call, and what it brings along."""

    parent_id: str
    root_id: str
    path: str
    chain: Sequence[Signature] = ()
    chord: Signature | None = None
    group: str | None = None
    group_index: float | None = None

    def at(self, step: object, **changes: Any) -> Place:
        return replace(self, path=f"{self.path}/{step}", **changes)


@dataclass(frozen=True, slots=True)
class Sent:
    """One message: its queue, and its text around the results of a chord's header."""

    queue: str
    head: str
    body: str
    tail: str
    # Whether the results of a chord's header are still to be inserted.
    is_open: bool

    @property
    def text(self) -> str:
        return f'{self.head}"{b64encode(self.body.encode()).decode()}"{self.tail}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Expander:
    """`queues` are those that followers may be sent to; the first is for tasks that name none."""

    queues: Sequence[str]
    group_key: Callable[[str], str]
    expires_s: int
    now: Callable[[], datetime]
    messages: list[Sent] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)

    def expand(self, each: Signature, argument: str, shown: str, place: Place) -> None:
        """Add the messages of a signature. `argument` is JSON text, `shown` is what Flower shows of it."""
        parts = each["kwargs"]
        match each["subtask_type"]:
            case "chain":
                first, *rest = _steps(each, place)
                self.expand(
                    first, argument, shown, place.at(0, chain=[*place.chain, *reversed(rest)], chord=None)
                )
            case "group":
                gid = each["options"].get("task_id") or _id(place)
                self._members(parts["tasks"], gid, argument, shown, place)
            case "chord":
                self._chord(each, argument, shown, place)
            case _:
                self._task(each, argument, shown, place)

    def _members(self, tasks: Iterable[Signature], gid: str, argument: str, shown: str, place: Place) -> None:
        for index, each in enumerate(tasks):
            here = place.at(index, group=gid, group_index=index)
            if each["subtask_type"] == "chain":
                self.expand(_ending(each, here), argument, shown, replace(here, chord=None, group=None))
            else:
                self.expand(each, argument, shown, here)

    def _chord(self, each: Signature, argument: str, shown: str, place: Place) -> None:
        parts, options = each["kwargs"], each["options"]
        gid = parts["header"]["options"].get("task_id") or options.get("task_id") or _id(place)
        members = parts["header"]["kwargs"]["tasks"]
        body_id = parts["body"]["options"].get("task_id") or _id(place.at("body"))
        more = {"chain": [*place.chain]} if place.chain else {}
        body = _with(parts["body"], task_id=body_id, group_id=gid, **more)
        self.commands.append(["DEL", self.group_key(f"{gid}.c")])
        self.commands.append(
            ["SET", self.group_key(f"{gid}.s"), str(len(members)), "EX", str(self.expires_s)]
        )
        self._members(members, gid, argument, shown, place.at("header", chord=body, chain=()))

    def _task(self, each: Signature, argument: str, shown: str, place: Place) -> None:
        name, options = each["task"], each["options"]
        task_id = options.get("task_id") or _id(place)
        given = [] if each["immutable"] else [argument]
        arguments = f"[{', '.join([*given, *map(json.dumps, each['args'])])}]"
        embed = {
            "callbacks": options.get("link"),
            "errbacks": options.get("link_error"),
            "chain": [*place.chain, *options.get("chain", ())] or None,
            "chord": place.chord or options.get("chord"),
        }
        queue = self._queue(name, options)
        headers = self._times(options) | {
            "lang": "py", "task": name, "id": task_id, "shadow": options.get("shadow"),
            "group": place.group or options.get("group_id"),
            "group_index": options.get("group_index") if place.group is None else place.group_index,
            "retries": 0, "timelimit": [options.get("time_limit"), options.get("soft_time_limit")],
            "root_id": place.root_id, "parent_id": place.parent_id,
            "argsrepr": f"({', '.join([*([] if each['immutable'] else [shown]), *map(repr, each['args'])])})"[:1024],
            "kwargsrepr": repr(each["kwargs"])[:1024], "origin": "warmpool",
            "ignore_result": options.get("ignore_result", False), "replaced_task_nesting": 0,
            "stamped_headers": None, "stamps": {},
        }  # fmt: skip
        properties = {
            "correlation_id": task_id, "reply_to": options.get("reply_to", ""), "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue}, "priority": 0,
            "delivery_tag": str(uuid5(_IDS, f"{task_id} {place.path}")),
        }  # fmt: skip
        is_open = argument == json.dumps(RESULTS) and not each["immutable"]
        properties["body_encoding"] = None if is_open else "base64"
        frame = {"content-encoding": "utf-8", "content-type": "application/json", "headers": headers}
        tail = json.dumps(frame | {"properties": properties})[1:]
        body = f"[{arguments}, {json.dumps(each['kwargs'])}, {json.dumps(embed)}]"
        self.messages.append(Sent(queue, '{"body": ', body, f", {tail}", is_open))

    def _queue(self, task: str, options: Mapping[str, Any]) -> str:
        if task in INTERNAL_TASKS:
            raise Foreign(f"{task} is a task of the control plane")
        if task in ROUTES:
            return ACQUIRE
        queue = str(options.get("queue") or self.queues[0])
        if queue not in self.queues:
            raise Foreign(f"{queue} is not in follower_queues")
        return queue

    def _times(self, options: Mapping[str, Any]) -> dict[str, Any]:
        def at(value: Any) -> Any:
            is_span = isinstance(value, int | float)
            return (self.now() + timedelta(seconds=value)).astimezone(UTC).isoformat() if is_span else value

        return {
            "eta": at(options.get("countdown", options.get("eta"))),
            "expires": at(options.get("expires")),
        }


def _steps(chain: Signature, place: Place) -> list[Signature]:
    """Return the steps of a chain, with the options of the chain on its last step."""
    steps, options = list(chain["kwargs"]["tasks"]), chain["options"]
    ending: dict[str, Any] = {"chord": place.chord} if place.chord else {}
    ending |= {name: options[name] for name in ("task_id", "link", "chord") if name in options}
    found = [_with(each, **_missing_id(each, place.at(n))) for n, each in enumerate(steps)]
    found[-1] = _with(found[-1], **ending)
    if wrong := options.get("link_error"):
        found = [_with(each, link_error=[*each["options"].get("link_error", []), *wrong]) for each in found]
    return found


def _ending(chain: Signature, place: Place) -> Signature:
    """Return a chain whose last step, and not its first, is a member of the group at this place."""
    *steps, last = chain["kwargs"]["tasks"]
    more: dict[str, Any] = {"group_id": place.group, "group_index": place.group_index}
    if place.chord:
        more["chord"] = place.chord
    return {**chain, "kwargs": {"tasks": [*steps, _with(last, **more)]}}


def _missing_id(each: Signature, place: Place) -> dict[str, str]:
    return {} if each["options"].get("task_id") else {"task_id": _id(place)}


def _with(each: Signature, **options: Any) -> Signature:
    return {**each, "options": {**each["options"], **options}}


def _id(place: Place) -> str:
    return str(uuid5(_IDS, place.path))
