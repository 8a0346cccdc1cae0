"""The state of one client: open calls, abandoned calls, and the claims that it holds. No I/O.

Events go in (an answer arrived, a caller left, a claim was granted); calls to send come out. The
sessions for threads and for asyncio carry them out and decide nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

from pool.client import calls
from pool.client.calls import PendingCall
from pool.client.credentials import Signer
from pool.client.errors import PoolClosed
from pool.client.identity import Identity
from pool.client.leases import HeldLease, HeldLeases
from pool.client.messages import Message, ReplyMessage
from pool.client.open_call import OpenCall, Pace, Signal
from pool.core.errors import PoolError, Transient
from pool.core.ids import new_task_id
from pool.core.states import Condition

log = logging.getLogger("warmpool.client")

# How long, and for how many abandoned calls, a late answer is still recognized. A claim granted
# later than that ends with its lease.
LATE_S = 600.0
LATE_LIMIT = 10_000


class Core:
    """Match answers to calls, and release every grant that has no holder."""

    def __init__(
        self, identity: Identity, pace: Pace, *, sooner: Signal, signer: Signer | None = None
    ) -> None:
        self.identity = identity
        self.signer = signer
        self.pace = pace
        self.leases = HeldLeases(sooner)
        self._open: dict[str, OpenCall] = {}
        self._abandoned: OrderedDict[str, tuple[PendingCall, float]] = OrderedDict()
        self._closed = False
        self._lock = threading.Lock()

    def open(self, call: PendingCall, signal: Signal, now: float) -> OpenCall:
        """Open a call. Its answer is matched until `finish` or `abandon`."""
        message = self._message(call, reply_to=self.identity.reply_to)
        open_call = OpenCall(call, message, signal, pace=self.pace, now=now)
        with self._lock:
            if self._closed:
                raise PoolClosed
            self._open[message.task_id] = open_call
        return open_call

    def sending(self, open_call: OpenCall) -> str:
        """Return the encoded message. Every time it is sent, it is the same task."""
        return open_call.sending(new_task_id(), self._shown(open_call.message))

    def notifications(self, unawaited: list[PendingCall]) -> list[str]:
        """Return the encoded messages of calls without a waiting caller."""
        messages = [self._message(call) for call in unawaited]
        return [message.encoded(new_task_id(), self._shown(message)) for message in messages]

    def answered(self, raw: bytes | str, now: float) -> list[PendingCall]:
        """Record an answer and wake its caller. Return the releases to send, for a grant whose
        caller has left.
        """
        answer = ReplyMessage.parse(raw)
        if answer is None:
            return []
        with self._lock:
            open_call = self._open.get(answer.task_id)
            if open_call is None:
                return self._late(answer, now)
            if open_call.answer is None:
                open_call.answer = answer
        open_call.signal.set()
        return []

    def expects_answers(self, now: float) -> bool:
        """Return whether a caller waits for an answer, or a late answer may still arrive."""
        with self._lock:
            self._forget_abandoned(now)
            return bool(self._abandoned) or any(open_call.answer is None for open_call in self._open.values())

    def unreadable(self, error: PoolError) -> None:
        """Record that answers cannot be read. If a retry does not help, every caller gets the error."""
        if isinstance(error, Transient):
            return
        with self._lock:
            waiting = list(self._open.values())
        for open_call in waiting:
            open_call.unreadable(error)
            open_call.signal.set()

    def is_open(self, open_call: OpenCall) -> bool:
        """Return whether its caller still waits."""
        return self._open.get(open_call.message.task_id) is open_call

    def finish(self, open_call: OpenCall) -> None:
        """Close a call whose caller has its answer. Further answers are duplicates."""
        with self._lock:
            self._open.pop(open_call.message.task_id, None)

    def abandon(self, open_call: OpenCall, now: float) -> list[PendingCall]:
        """Close a call whose caller leaves. Return the calls that undo it: a cancel or a release."""
        with self._lock:
            self._open.pop(open_call.message.task_id, None)
            request = open_call.call.request()
            if request is None:
                return []
            if open_call.answer is None:
                self._expect_late(open_call, now)
                return [calls.cancel(*request)] if open_call.may_have_arrived else []
            claim_id = open_call.answer.claim_id()
            if claim_id is None or self._wanted(request):
                return []
        return [self.release(claim_id, Condition.CLEAN)]

    def release(self, claim_id: str, condition: str) -> PendingCall:
        """Return the call that ends a claim. From now on the claim is not renewed, and answers
        about it are ignored.
        """
        call = calls.release(claim_id, condition)
        self.leases.drop(claim_id)
        return call

    def close(self) -> list[PendingCall]:
        """Wake every caller and refuse new calls. Return the releases of the claims still held."""
        with self._lock:
            self._closed = True
            waiting = list(self._open.values())
        for open_call in waiting:
            open_call.closed = True
            open_call.signal.set()
        return self.give_back(self.leases.all())

    def give_back(self, held: list[HeldLease]) -> list[PendingCall]:
        """Return the calls that release these claims."""
        for lease in held:
            lease.released = True
        return [self.release(lease.grant.claim_id, lease.condition) for lease in held]

    def renewed(self, result: object) -> None:
        """Apply the answer to a renewal."""
        for lease in self.leases.learn(calls.renewal(result)):
            log.warning("claim_lost claim=%s cause=%s", lease.grant.claim_id, lease.cause)

    def _late(self, answer: ReplyMessage, now: float) -> list[PendingCall]:
        call, _ = self._abandoned.pop(answer.task_id, (None, now))
        claim_id = answer.claim_id()
        if call is None or claim_id is None:
            log.debug("answer_dropped task=%s", answer.task_id)
            return []
        if self._wanted(call.request()) or self.leases.holds(claim_id):
            return []
        log.info("late_grant_released claim=%s task=%s", claim_id, answer.task_id)
        return [calls.release(claim_id, Condition.CLEAN)]

    def _wanted(self, request: tuple[object, object] | None) -> bool:
        """Return whether an open call makes the same request: then the claim belongs to that call."""
        return any(open_call.call.request() == request for open_call in self._open.values())

    def _expect_late(self, open_call: OpenCall, now: float) -> None:
        self._abandoned[open_call.message.task_id] = (open_call.call, now + LATE_S)
        self._forget_abandoned(now)

    def _forget_abandoned(self, now: float) -> None:
        while self._abandoned and (
            len(self._abandoned) > LATE_LIMIT or next(iter(self._abandoned.values()))[1] < now
        ):
            self._abandoned.popitem(last=False)

    def _message(self, call: PendingCall, *, reply_to: str = "") -> Message:
        return Message(
            task=call.task,
            kwargs=call.kwargs,
            task_id=self.identity.task_id(),
            origin=self.identity.origin,
            reply_to=reply_to,
            queue=self.identity.queue,
            traceparent=call.traceparent,
        )

    def _shown(self, message: Message) -> dict[str, str]:
        return {} if self.signer is None else self.signer.headers(message)
