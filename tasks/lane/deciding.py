"""Decide the calls of a delivery in one statement and one commit. The rest goes to the slow path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import structlog

from pool.core.contract import Cancel, Release, Renew
from pool.core.errors import BrokenPromise, InvalidInput, Transient
from pool.lifecycle import claiming, item_errors
from pool.lifecycle.answering import Decision
from pool.lifecycle.claiming import AcquireCall, Decided
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import Effects
from pool.metrics.catalog import Item
from pool.store.rule_connection import RuleConnection
from tasks.lane.arguments import LaneCall, parsed
from tasks.lane.authenticator import Authenticator
from tasks.lane.exchange import LateReply, Replies, Taken, TaskReply
from tasks.lane.proving import ForeignOrg
from tasks.lane.replies import Answered
from tasks.lane.slowpath import SlowPath, failed
from tasks.lane.waits import Waits

log = structlog.get_logger(__name__)


class Deciding:
    """Used only by the thread of the lane."""

    def __init__(
        self,
        deps: Deps,
        line: RuleConnection,
        authenticator: Authenticator,
        waits: Waits,
        slow_path: SlowPath,
    ) -> None:
        self._deps = deps
        self._line = line
        self._authenticator = authenticator
        self._waits = waits
        self._slow_path = slow_path

    def decide(self, taken: Sequence[Taken], replies: Replies) -> None:
        """Add the replies that can be given now, and the effects."""
        calls: list[tuple[Taken, LaneCall]] = []
        for each in taken:
            if each.message.has_invalid_trace:
                self._deps.metrics.items_left_out.labels(str(Item.TRACEPARENT)).inc()
            call = self._parsed(each)
            if isinstance(call, TaskReply):
                replies.now.append(call)
            else:
                calls.append((each, call))
        decided, replies.effects = self._decided([call for _, call in calls])
        for (each, call), what in zip(calls, decided, strict=True):
            if what is not None:
                replies.now.append(TaskReply(taken=each, answer=self._waits.answered(what)))
            elif not self._slow_path.submit(each, call):
                too_many = Transient("this org has too many calls in progress; try again later")
                replies.now.append(failed(each, too_many))
        for decision in replies.effects.decided:
            replies.late += self._answers(decision)

    def _parsed(self, taken: Taken) -> LaneCall | TaskReply:
        """Return the call, or the reply to a refused one."""
        try:
            return parsed(taken)
        except ForeignOrg as exc:
            return self._authenticator.foreign(taken, exc)
        except InvalidInput as exc:
            return TaskReply.invalid(taken, exc.detail)
        except Exception as exc:  # noqa: BLE001 - one call must not affect the others
            return failed(taken, exc)

    def _decided(self, calls: Sequence[LaneCall]) -> tuple[list[Decided], Effects]:
        together = [call for call in calls if _is_batched(call)]
        try:
            found, effects = claiming.serve(self._deps, together, self._line)
        except (Transient, BrokenPromise) as exc:
            log.warning("batch_left_to_the_threads", calls=len(together), cause=str(exc))
            return [None] * len(calls), Effects()
        except Exception:  # callers must be answered even if the batch has a bug
            log.exception("batch_failed", calls=len(together))
            return [None] * len(calls), Effects()
        places = iter(found)
        return [next(places) if _is_batched(call) else None for call in calls], effects

    def _answers(self, decision: Decision) -> list[LateReply]:
        """Return the replies to waiters. If a reply cannot be built, the reap records it."""
        try:
            answer = decision.answer(self._deps)
            if decision.waited_s is not None:
                self._deps.metrics.answered(decision.profile, answer, decision.waited_s)
            answered = Answered(answer.as_dict(), decision.pk)
            return [LateReply(to=to, answer=answered) for to in decision.replies]
        except Exception as exc:  # noqa: BLE001 - the others are answered all the same
            item_errors.record_skipped(self._deps.metrics, Item.ANSWER, decision.pk, exc)
            return []


def _is_batched(call: LaneCall) -> TypeGuard[AcquireCall | Release | Renew | Cancel]:
    return isinstance(call, AcquireCall | Release | Renew | Cancel) and not claiming.is_large(call)
