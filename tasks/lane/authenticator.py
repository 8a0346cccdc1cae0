"""Verify that each message is from the org that it names, and that it was not served before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

from pool.core import signing
from pool.core.clock import Clock
from pool.core.ids import OrgId
from pool.core.settings import PoolSettings
from pool.core.signing import INTERNAL_HEADER, InternalTasks, Proof, SignatureProblem
from tasks.lane import proving
from tasks.lane.exchange import Taken, TaskReply
from tasks.lane.knownorgs import KnownOrgs
from tasks.lane.messages import CANARY, IncomingMessage
from tasks.lane.proving import NOT_SIGNED, ForeignOrg, Nonce, Proven, Unproven, refusal
from tasks.lane.replies import Answered
from tasks.lane.unproven import UnprovenLog
from tasks.routes import INTERNAL_TASKS

# Refusals of unauthenticated requests that are answered, per second.
MOST_ANSWERED_A_SECOND = 100


class Authenticator:
    """Used only by the thread of the lane. It stores no nonces: the caller looks them up and spends them."""

    def __init__(
        self,
        pool: PoolSettings,
        orgs: KnownOrgs,
        internal: InternalTasks,
        refusals: UnprovenLog,
        clock: Clock,
    ) -> None:
        self.is_on = pool.signed_requests
        self._limit_s = pool.signature_limit_s
        self._at_home_only = pool.queue_per_org
        self._orgs = orgs
        self._internal = internal
        self._refusals = refusals
        self._clock = clock
        self._answering_since, self._answered = 0.0, 0

    def is_forged(self, message: IncomingMessage) -> bool:
        """Return whether it is a task of the control plane without a valid internal signature."""
        header = message.headers.get(INTERNAL_HEADER)
        return message.task in INTERNAL_TASKS and not self._internal.accepts(header, message.asked)

    def proven(self, message: IncomingMessage, now_s: float) -> Proven | Unproven:
        """Check everything except whether its nonce was used before."""
        if not self.is_on or message.task == CANARY:
            return NOT_SIGNED
        header, asked = message.headers.get(signing.HEADER), message.asked
        proof = Proof.parse(header)
        if proof is None:
            return refusal(
                SignatureProblem.UNSIGNED if header is None else SignatureProblem.MALFORMED, message
            )
        secrets = self._orgs.secrets(proof.org, proof.version)
        trouble = signing.trouble_with(proof, asked, secrets, now_s=now_s, limit_s=self._limit_s)
        if trouble is None and self._at_home_only and not signing.is_answered_at_home(proof, asked):
            trouble = SignatureProblem.FOREIGN_ADDRESS
        if trouble is not None:
            return refusal(trouble, message, proof.org)
        keep_s = max(1, ceil(proof.expires_s - now_s) + 1)
        return Proven(org=OrgId(proof.org), nonce=Nonce(key=proving.nonce_key(proof), keep_s=keep_s))

    def unspent(
        self, taken: Sequence[Taken], spent: Mapping[str, str]
    ) -> tuple[list[Taken], list[TaskReply]]:
        """Return the messages not served before, and the replies to the others. Of two copies in
        one delivery one is served.
        """
        known, fresh, refused = dict(spent), [], []
        for each in taken:
            nonce = each.proven.nonce
            if nonce is None or nonce.key not in known:
                fresh.append(each)
                if nonce is not None:
                    known[nonce.key] = proving.OPEN
                continue
            # A copy of a request that is still open is not answered: the answer to the original
            # will come, and the caller could not tell them apart.
            answered = known[nonce.key] == proving.ANSWERED
            why = refusal(SignatureProblem.REPLAYED, each.message, each.proven.org or "", answered=answered)
            refused.append(self.refused(each, why))
        return fresh, refused

    def foreign(self, taken: Taken, wrong: ForeignOrg) -> TaskReply:
        """Refuse a message that names another org than the one that signed it."""
        why = refusal(SignatureProblem.FOREIGN_ORG, taken.message, taken.proven.org or "")
        return self.refused(taken, replace(why, detail=wrong.detail))

    def refused(self, taken: Taken, why: Unproven) -> TaskReply:
        """Record a refusal and return the reply. The nonce is not spent."""
        self._refusals.add(why)
        answer = Answered(why.answer.as_dict()) if why.answered and self._may_answer() else None
        return TaskReply(taken=replace(taken, proven=NOT_SIGNED), answer=answer, spare=True)

    def _may_answer(self) -> bool:
        """Return whether a refusal is answered. Each answer is a key in Redis, so their rate is limited."""
        now = self._clock.monotonic()
        if now - self._answering_since >= 1.0:
            self._answering_since, self._answered = now, 0
        self._answered += 1
        return self._answered <= MOST_ANSWERED_A_SECOND
