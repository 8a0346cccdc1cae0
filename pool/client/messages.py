"""Celery messages as kombu would put them on a Redis list, and the answers that come back. Pure.

A service that has a Celery app of its own needs none of this: `app.send_task("pool.acquire", kwargs={"org": "acme"},
queue="acquire").get()` is the same call, without the renewal and at a few times the latency.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass

from pool.client.errors import TaskFailed
from pool.core.names import ACQUIRE, OUTAGE_ERRORS

# Celery's own limit for what Flower shows of the arguments.
REPR_LIMIT = 1024
_NO_MORE: Mapping[str, str] = {}
# What is the same in every message, as JSON; composing the rest around it takes a third of the time of encoding the whole.
_NO_EMBED = '{"callbacks": null, "errbacks": null, "chain": null, "chord": null}'
_HEADERS = (
    '"lang": "py", "shadow": null, "eta": null, "expires": null, "group": null, "group_index": null, "retries": 0'
    ', "timelimit": [null, null], "parent_id": null, "argsrepr": "()", "replaced_task_nesting": 0, "stamped_headers": null, "stamps": {}'
)
_PROPERTIES = '"delivery_mode": 2, "priority": 0, "body_encoding": "base64"'
_quoted = json.JSONEncoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One task for the server. Without `reply_to` nobody waits for its answer and none is stored."""

    task: str
    kwargs: Mapping[str, object]
    task_id: str
    origin: str
    reply_to: str = ""
    queue: str = ACQUIRE

    def encoded(self, delivery_tag: str, more: Mapping[str, str] = _NO_MORE) -> str:
        """What goes on the list, with `more` headers. Every sending has a tag of its own, or one acknowledgement would end two of them."""
        body = f"[[], {json.dumps(self.kwargs)}, {_NO_EMBED}]"
        task_id, quoted = _quoted(self.task_id), _quoted
        further = "".join(f", {quoted(name)}: {quoted(value)}" for name, value in more.items())
        # Expires is an instant of this host's clock, which the server would compare with its own. Deadlines go as durations.
        return (
            f'{{"body": "{b64encode(body.encode()).decode()}", "content-encoding": "utf-8", "content-type": "application/json"'
            f', "headers": {{"task": {quoted(self.task)}, "id": {task_id}, "root_id": {task_id}'
            f', "kwargsrepr": {quoted(_shown(self.kwargs))}, "origin": {quoted(self.origin)}'
            f', "ignore_result": {"false" if self.reply_to else "true"}, {_HEADERS}{further}}}'
            f', "properties": {{"correlation_id": {task_id}, "reply_to": {quoted(self.reply_to)}'
            f', "delivery_info": {{"exchange": "", "routing_key": {quoted(self.queue)}}}'
            f', "delivery_tag": {quoted(delivery_tag)}, {_PROPERTIES}}}}}'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyMessage:
    """What a task came to, in the form of Celery's result meta."""

    task_id: str
    status: str
    result: object

    @classmethod
    def parse(cls, raw: bytes | str) -> ReplyMessage | None:
        """None if it is not an answer at all. A server that says that it could not reach its database or its broker has not
        answered: it is asked again in due time, which the contract makes harmless."""
        try:
            meta = json.loads(raw)
        except ValueError:
            return None
        if not isinstance(meta, dict) or not isinstance(meta.get("task_id"), str):
            return None
        answer = cls(task_id=meta["task_id"], status=str(meta.get("status")), result=meta.get("result"))
        return None if answer.is_an_outage else answer

    @property
    def is_an_outage(self) -> bool:
        """Whether the task failed only because something it needs did not answer it."""
        return (
            self.status != "SUCCESS"
            and isinstance(self.result, dict)
            and self.result.get("exc_type") in OUTAGE_ERRORS
        )

    def value(self) -> object:
        """The result, or `TaskFailed` with what the task raised."""
        if self.status == "SUCCESS":
            return self.result
        raise TaskFailed(f"task {self.task_id} ended as {self.status}: {self._complaint()}")

    def claim_id(self) -> str | None:
        """The claim that this answer grants, if it grants one."""
        if not isinstance(self.result, dict) or self.result.get("outcome") != "granted":
            return None
        claim_id = self.result.get("claim_id")
        return claim_id if isinstance(claim_id, str) else None

    def _complaint(self) -> str:
        if not isinstance(self.result, dict):
            return _shown(self.result)
        message = self.result.get("exc_message")
        words = " ".join(map(str, message)) if isinstance(message, list | tuple) else str(message)
        return f"{self.result.get('exc_type')}: {words}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= REPR_LIMIT else f"{text[: REPR_LIMIT - 3]}..."
