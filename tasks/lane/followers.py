"""What a caller wants sent after the answer: Celery's callbacks, errbacks, chain and chord. Pure.

Celery would send it with the rights of the worker. Here it is bounded and rebuilt from known fields
when its message arrives, and it may name neither a task nor a queue of the control plane.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.lane.bounds import MOST_DIGITS, cleaned, is_name
from tasks.routes import INTERNAL_TASKS, ROUTES

# The most tasks that may follow one call, nested ones included, and their bytes as JSON.
MOST = 50
MOST_BYTES = 16_000
# The most bytes of a chord's body, times the tasks of its header.
MOST_GROWN = 4 * MOST_BYTES
KINDS = ("callbacks", "errbacks", "chain", "chord")
SIGNED = (
    "link: callbacks, errbacks, chains and chords are not part of the signature, so they are not accepted"
    " with signed requests; send the next task from the caller"
)
_TYPES = (None, "chain", "group", "chord")
_TEXT = ("task_id", "root_id", "group_id", "reply_to", "shadow", "eta", "queue")
_NUMBERS = ("countdown", "time_limit", "soft_time_limit", "group_index")
# The options of a signature that are kept. The others choose how a sender publishes.
_KEPT: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(_TEXT, is_name),
    **dict.fromkeys(_NUMBERS, lambda x: isinstance(x, int | float) and not isinstance(x, bool)),
    "expires": lambda x: is_name(x) or (isinstance(x, int | float) and not isinstance(x, bool)),
    "ignore_result": lambda x: isinstance(x, bool),
}
_OF_CALLERS = frozenset(task for task in ROUTES if task not in INTERNAL_TASKS)


class Unfit(ValueError):
    """What follows is refused. The text names the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followers:
    """What follows one call, as JSON text that can be stored, and the queues that it names."""

    text: str
    queues: frozenset[str]

    def objection(self, allowed: Collection[str]) -> str:
        """Return why it may not be sent to its queues; empty if it may."""
        if not allowed:
            return (
                "link: this pool sends no callbacks, errbacks, chains and chords (follower_queues is empty)"
            )
        foreign = sorted(self.queues - set(allowed))
        return (
            f"link: queue {foreign[0]!r} is not in follower_queues, which are {', '.join(allowed)}"
            if foreign
            else ""
        )


def followers(embedded: Mapping[str, Any], headers: Mapping[str, Any], tag: object) -> Followers | None:
    """Return what follows a call, None if nothing does. Raise `Unfit` if it is refused.

    `tag` is the name of this copy of the message: of two deliveries of it one is followed.
    """
    given = {kind: embedded[kind] for kind in KINDS if embedded.get(kind)}
    if not given:
        return None
    tasks = list(_named(given))
    if len(tasks) > MOST:
        raise Unfit(f"{len(tasks)} tasks follow, the maximum is {MOST}")
    for each in tasks:
        if each.get("task") in INTERNAL_TASKS:
            raise Unfit(f"{each['task']!r} is a task of the control plane")
    kept: dict[str, Any] = {kind: _listed(kind, given[kind]) for kind in KINDS[:3] if kind in given}
    if "chord" in given:
        kept["chord"] = _signature(given["chord"])
        kept |= {k: headers[k] for k in ("group", "group_index") if _is_place(k, headers.get(k))}
    if is_name(headers.get("root_id")):
        kept["root_id"] = headers["root_id"]
    kept["tag"] = tag if is_name(tag) else ""
    try:
        text = json.dumps(kept, allow_nan=False, separators=(",", ":"))
    except ValueError as exc:
        raise Unfit("a number is not a JSON number") from exc
    if len(text) > MOST_BYTES:
        raise Unfit(f"what follows has {len(text)} bytes, the maximum is {MOST_BYTES}")
    return Followers(text=text, queues=frozenset(_queues(tasks)))


def _queues(tasks: list[dict[str, Any]]) -> Iterator[str]:
    """Return the queues that they name. Tasks of the contract go to the queue of callers, always."""
    for each in tasks:
        options = each.get("options")
        queue = options.get("queue") if isinstance(options, dict) else None
        if queue is not None and each.get("task") not in _OF_CALLERS:
            yield cleaned(queue, 80) if is_name(queue) else "?"


def _named(given: object) -> Iterator[dict[str, Any]]:
    """Return everything that looks like a signature, at any depth, and check the numbers."""
    if isinstance(given, float) and not abs(given) < 10**MOST_DIGITS:
        raise Unfit(f"a number has more than {MOST_DIGITS} digits")
    if isinstance(given, dict):
        if isinstance(given.get("task"), str):
            yield given
        for each in given.values():
            yield from _named(each)
    elif isinstance(given, list):
        for each in given:
            yield from _named(each)


def _is_place(name: str, value: object) -> bool:
    return is_name(value) if name == "group" else isinstance(value, int) and not isinstance(value, bool)


def _listed(kind: str, given: object) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise Unfit(f"{kind} must be a list of signatures")
    return [_signature(each) for each in given]


def _signature(given: object) -> dict[str, Any]:
    """Return a signature with its known fields only."""
    if not isinstance(given, dict):
        raise Unfit("a signature must be a dict")
    task, kind = given.get("task"), given.get("subtask_type")
    args, kwargs, options = given.get("args"), given.get("kwargs"), given.get("options") or {}
    if not is_name(task):
        raise Unfit("a signature must have a printable task")
    if not (isinstance(args or [], list) and isinstance(kwargs or {}, dict) and isinstance(options, dict)):
        raise Unfit("a signature must have a list of args, a dict of kwargs and a dict of options")
    if kind not in _TYPES or (kind is None and task in {"celery.chain", "celery.group", "celery.chord"}):
        raise Unfit(f"a signature of type {cleaned(str(kind), 80)!r} is not supported")
    return {
        "task": task,
        "args": args or [],
        "kwargs": _parts(kind, kwargs or {}) if kind else kwargs or {},
        "options": _options(options),
        "subtask_type": kind,
        "immutable": bool(given.get("immutable")),
    }


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, is_valid in _KEPT.items():
        if (value := given.get(name)) is not None:
            if not is_valid(value):
                raise Unfit(f"option {name} has a wrong type or value")
            kept[name] = value
    for name in ("link", "link_error", "chain"):
        if value := given.get(name):
            kept[name] = _listed(name, value if isinstance(value, list) else [value])
    if value := given.get("chord"):
        kept["chord"] = _signature(value)
    return kept


def _parts(kind: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a chain, a group or a chord."""
    if kind == "chord":
        header, body = _header(kwargs.get("header")), _signature(kwargs.get("body"))
        if len(header["kwargs"]["tasks"]) * len(json.dumps(body)) > MOST_GROWN:
            raise Unfit("a chord has too large a body for its number of tasks: each task carries it")
        return {"kwargs": {}, "header": header, "body": body}
    tasks = _listed(kind, kwargs.get("tasks"))
    if not tasks:
        raise Unfit(f"a {kind} is empty")
    if kind == "group":
        if any("chord" in each["options"] for each in tasks):
            raise Unfit("a group at the end of a chain in a chord is not supported")
        return {"tasks": _members(kind, kwargs["tasks"])}
    if any(each["subtask_type"] == "chain" for each in tasks):
        raise Unfit("a chain in a chain is not supported")
    if any(each["subtask_type"] == "group" for each in tasks[:-1]):
        raise Unfit("a group that is followed by a task must be sent as a chord")
    return {"tasks": tasks}


def _header(given: object) -> dict[str, Any]:
    """Return the header of a chord as a group, whether it came as a group or as a list."""
    if isinstance(given, dict) and given.get("subtask_type") == "group":
        return _signature(given)
    return _signature(
        {"task": "celery.group", "args": [], "kwargs": {"tasks": given}, "subtask_type": "group"}
    )


def _members(kind: str, given: object) -> list[dict[str, Any]]:
    """Return the tasks that run together: single tasks, and chains of single tasks."""
    found = _listed(kind, given)
    for each in found:
        steps = each["kwargs"]["tasks"] if each["subtask_type"] == "chain" else [each]
        if any(step["subtask_type"] for step in steps):
            raise Unfit(f"a {kind} may have only tasks, and chains of tasks")
    if not found:
        raise Unfit(f"a {kind} is empty")
    return found
