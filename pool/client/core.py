"""What one client knows: the questions it waits for, those it gave up, and the claims it holds. No I/O.

Events go in (an answer arrived, a caller left, a claim was granted), and what is to be told to the server comes out.
The threads driver and the asyncio driver carry that out; they decide nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

from pool.client import calls
from pool.client.asking import Ask, Pace, Signal
from pool.client.calls import PendingCall
from pool.client.credentials import Signer
from pool.client.errors import PoolClosed
from pool.client.holding import Holdings
from pool.client.identity import Identity
from pool.client.messages import Message, ReplyMessage
from pool.core.ids import new_task_id
from pool.core.states import Condition

log = logging.getLogger("warmpool.client")

# A late answer is expected for so long after its caller left, of at most so many callers. Beyond that the lease ends it.
LATE_S = 600.0
LATE_LIMIT = 10_000


class Core:
    """Matches answers to questions, and sees to it that no grant is left without a holder."""

    def __init__(
        self, identity: Identity, pace: Pace, *, sooner: Signal, signer: Signer | None = None
    ) -> None:
        self.identity = identity
        self.signer = signer
        self.pace = pace
        self.holdings = Holdings(sooner)
        self._open: dict[str, Ask] = {}
        self._left: OrderedDict[str, tuple[PendingCall, float]] = OrderedDict()
        self._closed = False
        self._lock = threading.Lock()

    def ask(self, call: PendingCall, signal: Signal, now: float) -> Ask:
        """A question; its answer is matched until `finish` or `abandon`."""
        message = self._message(call, reply_to=self.identity.reply_to)
        ask = Ask(call, message, signal, pace=self.pace, now=now)
        with self._lock:
            if self._closed:
                raise PoolClosed
            self._open[message.task_id] = ask
        return ask

    def sending(self, ask: Ask) -> str:
        """The question as it goes on the list; each sending is the same task."""
        return ask.sending(new_task_id(), self._shown(ask.message))

    def notes(self, told: list[PendingCall]) -> list[str]:
        """Calls as they go on the list when nobody waits for their answer."""
        messages = [self._message(call) for call in told]
        return [message.encoded(new_task_id(), self._shown(message)) for message in messages]

    def answered(self, raw: bytes | str, now: float) -> list[PendingCall]:
        """Wake the one caller concerned. A grant whose caller has left is to be released."""
        answer = ReplyMessage.parse(raw)
        if answer is None:
            return []
        with self._lock:
            ask = self._open.get(answer.task_id)
            if ask is None:
                return self._late(answer, now)
            if ask.answer is None:
                ask.answer = answer
        ask.signal.set()
        return []

    def expects_answers(self, now: float) -> bool:
        """Whether somebody still waits for one, or one may come for somebody who has left."""
        with self._lock:
            self._forget_left(now)
            return bool(self._left) or any(ask.answer is None for ask in self._open.values())

    def is_open(self, ask: Ask) -> bool:
        """Whether its caller still waits."""
        return self._open.get(ask.message.task_id) is ask

    def finish(self, ask: Ask) -> None:
        """Its caller has what it asked for; further answers are duplicates."""
        with self._lock:
            self._open.pop(ask.message.task_id, None)

    def abandon(self, ask: Ask, now: float) -> list[PendingCall]:
        """Its caller leaves, for whatever reason. Of what it asked for nothing is to remain."""
        with self._lock:
            self._open.pop(ask.message.task_id, None)
            request = ask.call.request()
            if request is None:
                return []
            if ask.answer is None:
                self._expect_late(ask, now)
                return [calls.cancel(*request)] if ask.may_have_arrived else []
            claim_id = ask.answer.claim_id()
            if claim_id is None or self._wanted(request):
                return []
        return [self.release(claim_id, Condition.CLEAN)]

    def release(self, claim_id: str, condition: str) -> PendingCall:
        """The call that ends a claim. From here on it is not renewed, and whatever is said about it is no news."""
        call = calls.release(claim_id, condition)
        self.holdings.drop(claim_id)
        return call

    def close(self) -> list[PendingCall]:
        """Wake every caller, take no more questions; what is still held is to be released."""
        with self._lock:
            self._closed = True
            waiting = list(self._open.values())
        for ask in waiting:
            ask.closed = True
            ask.signal.set()
        held = self.holdings.all()
        for holding in held:
            holding.released = True
        return [self.release(holding.grant.claim_id, holding.condition) for holding in held]

    def renewed(self, result: object) -> None:
        """What a renewal said."""
        for holding in self.holdings.learn(calls.renewal(result)):
            log.warning("claim_lost claim=%s cause=%s", holding.grant.claim_id, holding.cause)

    def _late(self, answer: ReplyMessage, now: float) -> list[PendingCall]:
        call, _ = self._left.pop(answer.task_id, (None, now))
        claim_id = answer.claim_id()
        if call is None or claim_id is None:
            log.debug("answer_dropped task=%s", answer.task_id)
            return []
        if self._wanted(call.request()) or self.holdings.holds(claim_id):
            return []
        log.info("late_grant_released claim=%s task=%s", claim_id, answer.task_id)
        return [calls.release(claim_id, Condition.CLEAN)]

    def _wanted(self, request: tuple[object, object] | None) -> bool:
        """Whether the same request was asked again by somebody who still waits: the claim is theirs."""
        return any(ask.call.request() == request for ask in self._open.values())

    def _expect_late(self, ask: Ask, now: float) -> None:
        self._left[ask.message.task_id] = (ask.call, now + LATE_S)
        self._forget_left(now)

    def _forget_left(self, now: float) -> None:
        while self._left and (len(self._left) > LATE_LIMIT or next(iter(self._left.values()))[1] < now):
            self._left.popitem(last=False)

    def _message(self, call: PendingCall, *, reply_to: str = "") -> Message:
        return Message(
            task=call.task,
            kwargs=call.kwargs,
            task_id=self.identity.task_id(),
            origin=self.identity.origin,
            reply_to=reply_to,
            queue=self.identity.queue,
        )

    def _shown(self, message: Message) -> dict[str, str]:
        return {} if self.signer is None else self.signer.headers(message)
