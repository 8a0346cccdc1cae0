"""Where answers go. A caller that named a reply list gets its answer there, in one round trip; any other gets Celery's ordinary result."""

from __future__ import annotations

from typing import Any

from celery.backends.redis import RedisBackend
from kombu.utils.encoding import bytes_to_str

from pool.core.names import REPLY_PREFIX

__all__ = ["REPLY_KEPT_S", "REPLY_PREFIX", "Answered", "ReplyBackend"]

# A list that nobody reads any more goes by itself.
REPLY_KEPT_S = 120


class Answered:
    """An answer on its way to a caller. Shows in words and without its token in logs, events and Flower; JSON carries it whole. A refusal is an
    answer, so its task succeeds: in Flower it reads `refused`, and what reads FAILURE there is an error of ours."""

    __slots__ = ("_answer", "pk")

    def __init__(self, answer: dict[str, Any], pk: str = "") -> None:
        self._answer = answer
        self.pk = pk

    def __json__(self) -> dict[str, Any]:
        return self._answer

    def __repr__(self) -> str:
        told = self._answer
        match told.get("outcome"):
            case "granted":
                whole = "granted {worker_id}, claim {claim_id}, epoch {epoch}, {source}, token ***"
                return whole.format_map(told)
            case "refused":
                return f"refused {told.get('reason')}: {told.get('detail')}"
        return repr({k: "***" if k == "token" else v for k, v in told.items()})


class ReplyBackend(RedisBackend):
    """Celery's Redis backend, with reply lists."""

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
