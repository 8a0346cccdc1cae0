"""Calls that are not decided in a batch. They wait for rows locked by other transactions, in
threads that orgs share, and delay no other org.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

import structlog
from redis.exceptions import RedisError

from pool.core.backoff import Backoff, retrying
from pool.core.contract import Cancel, Release, Renew
from pool.core.errors import Transient
from pool.core.periods import UNSEEN_GAP_S
from pool.lifecycle import claiming
from pool.lifecycle.claiming import AcquireCall
from pool.lifecycle.deps import Deps
from pool.store.canaries import canary_answered
from tasks.lane.arguments import Canary, LaneCall, org_of
from tasks.lane.exchange import Failure, Taken, TaskReply
from tasks.lane.posting import Posting
from tasks.lane.replies import Answered
from tasks.lane.sharing import SharedThreads
from tasks.lane.waits import Waits

log = structlog.get_logger(__name__)

# The most calls in progress here. Further messages stay in Redis, where other workers can take
# them.
MOST_OPEN = 10_000
# How long to retry during an outage before the caller gets the error.
_PATIENCE = Backoff(first_s=0.05, factor=2.0, limit_s=1.0, tries=10)


def failed(taken: Taken, exc: Exception) -> TaskReply:
    """Return the reply of a task that raised, as Celery stores it."""
    message = taken.message
    log.error("call_failed", task=message.task, task_id=message.task_id, cause=f"{type(exc).__name__}: {exc}")
    return TaskReply(taken=taken, failure=Failure("FAILURE", exc))


class SlowPath:
    """Runs any number of calls at once. Each is answered, or handed back when the process stops."""

    def __init__(
        self,
        deps: Deps,
        waits: Waits,
        posting: Posting,
        threads: SharedThreads,
        aside: Executor,
        stopping: threading.Event,
    ) -> None:
        self._deps = deps
        self._waits = waits
        self._posting = posting
        self._aside = aside
        self._stopping = stopping
        self._threads = threads
        self._open = 0
        self._fewer = threading.Condition()

    def submit(self, taken: Taken, call: LaneCall) -> bool:
        """Run a call. Return False if its org has reached its limit."""
        with self._fewer:
            self._open += 1
        carry_out = partial(self._carry_out, taken, call)
        if isinstance(call, Canary):
            self._aside.submit(carry_out)
            return True
        if self._threads.submit(org_of(taken, call), carry_out, len(taken.message.raw)):
            return True
        self._closed_one()
        return False

    def wait_for_room(self, turned: Callable[[], None]) -> None:
        """Return once more calls may be submitted, or the process stops. Call `turned` while waiting."""
        with self._fewer:
            while self._open >= MOST_OPEN and not self._stopping.is_set():
                self._fewer.wait(0.2)
                turned()

    def close(self) -> None:
        """Wait for all submitted calls."""
        self._threads.shutdown()
        self._aside.shutdown(wait=True)

    def _closed_one(self) -> None:
        with self._fewer:
            self._open -= 1
            self._fewer.notify()

    def _carry_out(self, taken: Taken, call: LaneCall) -> None:
        """Run a call. An exception goes to its caller only."""
        try:
            if self._stopping.is_set():
                self._posting.hand_back([taken])
                return
            try:
                decide = partial(self._decided, call)
                answer = retrying(decide, policy=_PATIENCE, clock=self._deps.clock, stop=self._stopping)
                reply = TaskReply(taken=taken, answer=answer)
            except Exception as exc:  # noqa: BLE001 - as Celery does for a task
                if self._stopping.is_set() and isinstance(exc, Transient):
                    self._posting.hand_back([taken])  # another process runs it
                    return
                reply = failed(taken, exc)
            self._posting.post([reply])
        except (RedisError, OSError) as exc:
            log.warning("answer_not_posted", task_id=taken.message.task_id, cause=str(exc))
        finally:
            self._closed_one()

    def _decided(self, call: LaneCall) -> Answered | None:
        """Return the answer, or None if it is decided later."""
        deps = self._deps
        match call:
            case AcquireCall():
                return self._waits.answered(claiming.acquire(deps, call.asked, call.reply))
            case Renew():
                return Answered(claiming.renew(deps, call))
            case Release():
                return Answered(claiming.release(deps, call))
            case Cancel():
                return Answered(claiming.cancel(deps, call))
            case Canary():
                with deps.store.write() as tx:
                    canary_answered(tx, gap_s=UNSEEN_GAP_S)
                return Answered({})
