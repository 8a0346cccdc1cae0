"""Where answers go: to the reply list that the caller named, in one round trip, or else to Celery's
result backend.
"""

from __future__ import annotations

from typing import Any

from celery.backends.redis import RedisBackend
from kombu.utils.encoding import bytes_to_str

from pool.broker import connecting
from pool.core.brokerurl import redacted
from pool.core.names import REPLY_PREFIX

__all__ = ["REPLY_KEPT_S", "REPLY_PREFIX", "Answered", "ReplyBackend"]

# A reply list without a reader expires after this time.
REPLY_KEPT_S = 120
# What the URL contains instead.
_PLACE = frozenset({"host", "port", "db", "username", "password"})


class Answered:
    """An answer for a caller. Its repr, for logs, events and Flower, is readable and without the
    token; its JSON is complete.

    A refusal is an answer, so its task succeeds. In Flower it shows as `refused`; a task in state
    FAILURE is an error of the pool.
    """

    __slots__ = ("_answer", "pk")

    def __init__(self, answer: dict[str, Any], pk: str = "") -> None:
        self._answer = answer
        self.pk = pk

    def __json__(self) -> dict[str, Any]:
        return self._answer

    def __repr__(self) -> str:
        answer = self._answer
        match answer.get("outcome"):
            case "granted":
                whole = "granted {worker_id}, claim {claim_id}, epoch {epoch}, {source}, token ***"
                return whole.format_map(answer)
            case "refused":
                return f"refused {answer.get('reason')}: {answer.get('detail')}"
        return repr({k: "***" if k == "token" else v for k, v in answer.items()})


class ReplyBackend(RedisBackend):
    """Celery's Redis backend, with reply lists, and for every URL of the broker."""

    url: str

    def _params_from_url(self, url: str, defaults: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return {name: value for name, value in defaults.items() if name not in _PLACE and value is not None}

    def _get_pool(self, **params: Any) -> Any:
        return connecting.pool(self.url, **params)

    def as_uri(self, include_password: bool = False) -> str:  # noqa: FBT001, FBT002 - Celery's signature
        return str(self.url) if include_password else redacted(self.url)

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        address = getattr(request, "reply_to", None) or ""
        if not address.startswith(REPLY_PREFIX):
            return super()._store_result(  # type: ignore[misc]
                task_id, result, state, traceback=traceback, request=request, **kwargs
            )
        meta = {
            "task_id": bytes_to_str(task_id),
            "status": state,
            "result": result,
            "traceback": None if traceback is None else str(traceback),
        }
        self.ensure(self._push, (address, self.encode(meta)))
        return result

    def _push(self, address: str, text: str) -> None:
        with self.client.pipeline(transaction=False) as pipe:
            pipe.rpush(address, text)
            pipe.expire(address, REPLY_KEPT_S)
            pipe.execute()
