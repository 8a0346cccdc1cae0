"""What a request proves about its sender. Pure.

The org is that of the key, never the argument. Times are of the broker's clock, which is one clock
for all. A nonce is kept in Redis for as long as its signature is valid.

A nonce is spent when its request is answered, not when it is taken. So a message that is
redelivered before it was finished is served; a second copy of an answered one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from pool.core import signing
from pool.core.contract import RefusedAnswer
from pool.core.errors import InvalidInput
from pool.core.ids import OrgId
from pool.core.names import END_OF_ORG, NONCE_PREFIX
from pool.core.signing import Proof, SignatureProblem
from pool.core.states import Reason
from tasks.lane.bounds import cleaned
from tasks.lane.messages import IncomingMessage

# The value of a nonce in Redis: its request was answered, or will be.
ANSWERED, OPEN = "answered", "open"
_SHOWN = 80

_SENTENCES = {
    SignatureProblem.UNSIGNED: (
        f"signature is missing: this pool accepts only signed requests (header {signing.HEADER})"
    ),
    SignatureProblem.MALFORMED: "signature is malformed",
    SignatureProblem.UNKNOWN_KEY: (
        "signature was made with a key that is not accepted; `warmpool org key` prints the current key"
    ),
    SignatureProblem.MISMATCH: "signature does not match this task, id, org, arguments and reply address",
    SignatureProblem.EXPIRED: "signature has expired according to the broker's clock; sign the request again",
    SignatureProblem.AHEAD: "signature is valid for longer than signature_limit_s allows",
    SignatureProblem.REPLAYED: "signature was already used; sign each request again before sending it",
    SignatureProblem.FOREIGN_ORG: "org must be the org whose key signed the request",
    SignatureProblem.FOREIGN_ADDRESS: "reply address is outside the keys of this org",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonce:
    """The Redis key of a nonce, and how long to keep it."""

    key: str
    keep_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """A request that may be served: for this org or, if requests are not signed, for the org that
    it names.
    """

    org: OrgId | None = None
    nonce: Nonce | None = None


NOT_SIGNED = Proven()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unproven:
    """A refused request, and whether its caller is answered. It is not if the answer would replace
    another one or reach others.
    """

    trouble: SignatureProblem
    detail: str
    org: str = ""
    task: str = ""
    origin: str = ""
    answered: bool = True

    @property
    def answer(self) -> RefusedAnswer:
        return RefusedAnswer(reason=Reason.INVALID, detail=self.detail)


class ForeignOrg(InvalidInput):
    """The argument names another org than the key."""

    def __init__(self, org: OrgId) -> None:
        super().__init__("org", f"must be {org!r}, the org whose key signed the request, or be omitted")


def refusal(
    trouble: SignatureProblem, message: IncomingMessage, org: str = "", *, answered: bool = True
) -> Unproven:
    return Unproven(
        trouble=trouble,
        detail=_SENTENCES[trouble],
        org=org,
        task=message.task,
        origin=cleaned(message.headers.get("origin"), _SHOWN),
        answered=answered and trouble is not SignatureProblem.FOREIGN_ADDRESS,
    )


def nonce_key(proof: Proof) -> str:
    """Return the Redis key of a nonce. Each org has its own keys, so no org can spend a nonce of another."""
    return f"{NONCE_PREFIX}{proof.org}{END_OF_ORG}{proof.nonce}"
