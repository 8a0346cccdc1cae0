"""Who asks: what a request shows for itself, checked in the same way for Celery's tasks and for the lane. Its org is the key's, never the
argument's. Time is the broker's, which is one clock for all; a nonce is remembered in Redis for as long as its signature could be used again.

A nonce is spent when its request is answered, not when it is taken: what the broker delivers again because nobody finished it is served. A
second copy of what was answered is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import structlog

from pool import signing
from pool.contract import RefusedAnswer
from pool.errors import InvalidInput
from pool.ids import OrgId
from pool.records import By
from pool.signing import Asked, Proof, Trouble
from pool.states import Reason
from pool.store import deeds
from pool.store.schema import REQUEST_REFUSED
from tasks.letters import cleaned

if TYPE_CHECKING:
    from tasks.app import WarmpoolApp

log = structlog.get_logger(__name__)

# What a nonce in Redis says: its request was answered, or will be by whoever decides it.
ANSWERED, OPEN = "answered", "open"
_NONCES = "warmpool.nonce."
_MOST_DEEDS = 5
_SHOWN = 80

_SENTENCES = {
    Trouble.UNSIGNED: f"signature is missing: this pool takes signed requests only (header {signing.HEADER})",
    Trouble.MALFORMED: "signature is not of the form that this pool reads",
    Trouble.UNKNOWN_KEY: "signature is by a key that is not honoured, or no longer; `warmpool org key` prints the one that is",
    Trouble.MISMATCH: "signature does not match this task, id, org, arguments and reply address",
    Trouble.EXPIRED: "signature has expired by the broker's clock; sign anew",
    Trouble.AHEAD: "signature is valid for longer than this pool allows",
    Trouble.REPLAYED: "signature was used before; sign anew for every sending",
    Trouble.FOREIGN_ORG: "org must be the one whose key signed this",
    Trouble.FOREIGN_ADDRESS: "signature is good, but the answer would not go to this org's own keys",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonce:
    """Under what it is remembered, and for how long."""

    key: str
    keep_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """A request that may be served: for this org, or for whichever it names if requests are not signed here."""

    org: OrgId | None = None
    nonce: Nonce | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unproven:
    """A request that is refused, and whether its caller is told. It is not if the answer would take the place of another, or go to others."""

    trouble: Trouble
    detail: str
    org: str = ""
    task: str = ""
    origin: str = ""
    told: bool = True

    @property
    def answer(self) -> RefusedAnswer:
        return RefusedAnswer(reason=Reason.INVALID, detail=self.detail)


class ForeignOrg(InvalidInput):
    """The argument names another org than the key."""

    def __init__(self, org: OrgId) -> None:
        super().__init__("org", f"must be {org!r}, whose key signed this, or be left out")


class Prover:
    """Checks. It remembers nothing itself: nonces are the caller's to look up and to spend."""

    def __init__(self, app: WarmpoolApp) -> None:
        pool = app.settings.pool
        self._app = app
        self.is_on = pool.signed_requests
        self._limit_s = pool.signature_limit_s
        self._at_home_only = pool.queue_per_org

    def prove(self, asked: Asked, headers: Mapping[str, Any], now_s: float) -> Proven | Unproven:
        """Everything but whether its nonce was used before."""
        if not self.is_on:
            return Proven()
        header = headers.get(signing.HEADER)
        proof = Proof.parse(header)
        if proof is None:
            missing = Trouble.UNSIGNED if header is None else Trouble.MALFORMED
            return self.refusal(missing, asked, headers)
        secrets = self._app.tenants.secrets(proof.org, proof.version)
        trouble = signing.trouble_with(proof, asked, secrets, now_s=now_s, limit_s=self._limit_s)
        if trouble is None and self._at_home_only and not signing.is_answered_at_home(proof, asked):
            trouble = Trouble.FOREIGN_ADDRESS
        if trouble is not None:
            return self.refusal(trouble, asked, headers, proof.org)
        keep_s = max(1, ceil(proof.expires_s - now_s) + 1)
        return Proven(org=OrgId(proof.org), nonce=Nonce(key=nonce_key(proof), keep_s=keep_s))

    def replayed(self, asked: Asked, headers: Mapping[str, Any], proven: Proven, said: str) -> Unproven:
        """Its nonce was spent. The copy of a request that is still open is not answered: the answer is still to come, and would look the same."""
        return self.refusal(Trouble.REPLAYED, asked, headers, proven.org or "", told=said == ANSWERED)

    def foreign(
        self, wrong: ForeignOrg, asked: Asked, headers: Mapping[str, Any], proven: Proven
    ) -> Unproven:
        """It names another org than has signed it."""
        refused = self.refusal(Trouble.FOREIGN_ORG, asked, headers, proven.org or "")
        return replace(refused, detail=wrong.detail)

    def refusal(
        self, trouble: Trouble, asked: Asked, headers: Mapping[str, Any], org: str = "", *, told: bool = True
    ) -> Unproven:
        return Unproven(
            trouble=trouble,
            detail=_SENTENCES[trouble],
            org=org,
            task=asked.task,
            origin=cleaned(headers.get("origin"), _SHOWN),
            told=told and trouble is not Trouble.FOREIGN_ADDRESS,
        )

    def write_down(self, refused: Unproven) -> None:
        """Count it, and have it journalled and logged soon."""
        self._app.deps.metrics.requests_unproven.labels(str(refused.trouble)).inc()
        self._app.unproven.add(refused)


def nonce_key(proof: Proof) -> str:
    """Each org has nonces of its own: nobody uses up another's."""
    return f"{_NONCES}{proof.org}{signing.END_OF_ORG}{proof.nonce}"


def journal(app: WarmpoolApp, refused: list[Unproven]) -> None:
    """A few of them with their names and the rest as a number, so that whoever forges requests does not fill the database."""
    with app.deps.store.write() as tx:
        for each in refused[:_MOST_DEEDS]:
            log.warning("request_refused", trouble=str(each.trouble), org=each.org, task=each.task)
            by = By(who=f"unproven caller {each.origin}", why=f"{each.task}: {each.detail}")
            deeds.record(tx, REQUEST_REFUSED, f"org {each.org}" if each.org else "no org", by)
        if len(refused) > _MOST_DEEDS:
            more = f"{len(refused) - _MOST_DEEDS} more like these"
            deeds.record(tx, REQUEST_REFUSED, "others", app.deps.by(more))
