"""Celery messages as kombu puts them on a Redis list, and the answers to them. Pure.

A service with its own Celery app does not need this module: `app.send_task("pool.acquire",
kwargs={"org": "acme"}, queue="acquire").get()` is the same call, without renewal and with several
times the latency.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass

from pool.client.errors import TaskFailed
from pool.core.names import ACQUIRE, OUTAGE_ERRORS
from pool.core.tracecontext import HEADER as TRACE_HEADER

# Celery's limit for the arguments that Flower shows.
REPR_LIMIT = 1024
_NO_MORE: Mapping[str, str] = {}
# The constant parts of a message, as JSON. Building the rest around them takes a third of the time
# of encoding everything.
_NO_EMBED = '{"callbacks": null, "errbacks": null, "chain": null, "chord": null}'
_HEADERS = (
    '"lang": "py", "shadow": null, "eta": null, "expires": null, "group": null'
    ', "group_index": null, "retries": 0'
    ', "timelimit": [null, null], "parent_id": null, "argsrepr": "()", "replaced_task_nesting": 0'
    ', "stamped_headers": null, "stamps": {}'
)
_PROPERTIES = '"delivery_mode": 2, "priority": 0, "body_encoding": "base64"'
_quoted = json.JSONEncoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One task for the server. Without `reply_to` no caller waits for the answer, and none is stored."""

    task: str
    kwargs: Mapping[str, object]
    task_id: str
    origin: str
    reply_to: str = ""
    queue: str = ACQUIRE
    traceparent: str = ""

    def encoded(self, delivery_tag: str, more: Mapping[str, str] = _NO_MORE) -> str:
        """Return the message for the Redis list, with `more` headers.

        Each send needs its own delivery tag; otherwise one acknowledgement would remove two
        messages.
        """
        body = f"[[], {json.dumps(self.kwargs)}, {_NO_EMBED}]"
        task_id, quoted = _quoted(self.task_id), _quoted
        further = "".join(f", {quoted(name)}: {quoted(value)}" for name, value in more.items())
        if self.traceparent:
            further += f', "{TRACE_HEADER}": {quoted(self.traceparent)}'
        # "expires" is a time of this host's clock, and the server would compare it with its own
        # clock. So deadlines are sent as durations.
        return (
            f'{{"body": "{b64encode(body.encode()).decode()}"'
            ', "content-encoding": "utf-8", "content-type": "application/json"'
            f', "headers": {{"task": {quoted(self.task)}, "id": {task_id}, "root_id": {task_id}'
            f', "kwargsrepr": {quoted(_shown(self.kwargs))}, "origin": {quoted(self.origin)}'
            f', "ignore_result": {"false" if self.reply_to else "true"}, {_HEADERS}{further}}}'
            f', "properties": {{"correlation_id": {task_id}, "reply_to": {quoted(self.reply_to)}'
            f', "delivery_info": {{"exchange": "", "routing_key": {quoted(self.queue)}}}'
            f', "delivery_tag": {quoted(delivery_tag)}, {_PROPERTIES}}}}}'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyMessage:
    """The result of a task, in the form of Celery's result metadata."""

    task_id: str
    status: str
    result: object

    @classmethod
    def parse(cls, raw: bytes | str) -> ReplyMessage | None:
        """Return the answer, or None if `raw` is not one.

        A report that the server could not reach its database or its broker is no answer: the
        message is sent again later, which the contract makes harmless.
        """
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
        """Whether the task failed only because the database or the broker was not available."""
        return (
            self.status != "SUCCESS"
            and isinstance(self.result, dict)
            and self.result.get("exc_type") in OUTAGE_ERRORS
        )

    def value(self) -> object:
        """Return the result, or raise `TaskFailed` with the error of the task."""
        if self.status == "SUCCESS":
            return self.result
        raise TaskFailed(f"task {self.task_id} ended as {self.status}: {self._complaint()}")

    def claim_id(self) -> str | None:
        """Return the id of the claim that this answer grants, or None."""
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
