"""The claims that this client holds, and when to renew them. Pure.

A claim is lost only if the server reports it. Unanswered renewals end nothing: while the server
cannot be reached, it does not let leases expire either.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from datetime import datetime

from pool.client import tracing
from pool.client.calls import Grant, PendingCall, Renewal, renew
from pool.client.errors import ClaimLost
from pool.client.http_calls import ClaimHeaders
from pool.client.open_call import Signal
from pool.core import tokens
from pool.core.backoff import Backoff
from pool.core.states import Condition

# The most claims that the server renews in one call.
BATCH = 10_000
# During an outage renewals are retried at this interval, or more often if the lease is short.
RETRY_S = 10.0
PATIENCE_S = 30.0


class HeldLease:
    """One held claim. `signal` is set when the claim is lost."""

    def __init__(self, grant: Grant, *, lease_s: float, signal: Signal, traceparent: str = "") -> None:
        self.grant = grant
        self.lease_s = lease_s
        self.traceparent = traceparent
        self.lease_expires_at: datetime = grant.lease_expires_at
        self.condition = Condition.CLEAN
        self.released = False
        self.let_go = False
        self.cause: str | None = None
        self.leaving: str | None = None
        self.unhealthy: str | None = None
        self.signal = signal

    def lose(self, cause: str) -> None:
        self.cause = cause
        self.signal.set()

    def usable(self) -> Grant:
        """Return the grant, or raise `ClaimLost` with the cause."""
        if self.cause is not None:
            raise ClaimLost(self.grant.claim_id, self.cause)
        if self.released:
            raise ClaimLost(self.grant.claim_id, "it was released here")
        if self.let_go:
            raise ClaimLost(self.grant.claim_id, "it was let go here")
        return self.grant

    def adopted(self, renewal: Renewal) -> HeldLease:
        """Return this lease as it was renewed. Raise `ClaimLost` if the claim has ended."""
        claim_id = self.grant.claim_id
        if claim_id not in renewal.renewed:
            raise ClaimLost(claim_id, renewal.gone.get(claim_id, "the server did not renew it"))
        self.lease_expires_at = renewal.renewed[claim_id]
        self.leaving, self.unhealthy = renewal.leaving.get(claim_id), renewal.unhealthy.get(claim_id)
        return self


class HeldClaim:
    """The attributes of `Worker` and `AsyncWorker` that describe their claim."""

    def __init__(self, lease: HeldLease) -> None:
        self._lease = lease
        self.claim_id = lease.grant.claim_id
        self.worker_id = lease.grant.worker_id
        self.epoch = lease.grant.epoch
        self.pod = lease.grant.pod
        self.source = lease.grant.source
        # The parking time in force, if a longer one was requested than the pool allows.
        self.ttl_s = lease.grant.ttl_s

    @property
    def endpoint(self) -> str:
        """The address of the worker. Raises `ClaimLost` if the claim has ended."""
        return self._lease.usable().endpoint

    @property
    def token(self) -> str:
        """The proof of the claim. Raises `ClaimLost` if the claim has ended."""
        return self._lease.usable().token

    @property
    def auth(self) -> ClaimHeaders:
        """HTTP headers that prove the claim to the worker. Raises `ClaimLost` if the claim has ended.

        A dict for `headers=`; requests and httpx take it as `auth=` too. With tracing it has a
        `traceparent`: that of the current span, else that of the acquire.
        """
        grant = self._lease.usable()
        proof = tokens.headers(grant.claim_id, grant.epoch, grant.token)
        return ClaimHeaders(proof | tracing.header(self._lease.traceparent))

    @property
    def lease_expires_at(self) -> datetime:
        """Expiry as last renewed, by the server's clock. Do not compare it with the clock of this host."""
        return self._lease.lease_expires_at

    @property
    def lost(self) -> bool:
        """Whether the server has reported that the claim has ended."""
        return self._lease.cause is not None

    @property
    def cause(self) -> str | None:
        """Why the claim has ended."""
        return self._lease.cause

    @property
    def leaving(self) -> str | None:
        """Why this worker must leave (such as a drained node). It stays claimed until it is released."""
        return self._lease.leaving

    @property
    def unhealthy(self) -> str | None:
        """Why the pool considers this worker unhealthy (such as failed probes), as of the last renewal.

        It stays claimed until it is released; release it as tainted if it is of no more use.
        """
        return self._lease.unhealthy

    def taint(self) -> None:
        """Mark the worker as not reusable: every release of it is then tainted."""
        self._lease.condition = Condition.TAINTED

    def _giving_back(self, condition: str) -> Condition:
        """Mark the claim as released, whether or not the server receives it. Tainted stays tainted."""
        chosen = max(Condition(condition), self._lease.condition, key=list(Condition).index)
        self._lease.released = True
        return chosen

    def _handing_on(self) -> dict[str, object]:
        """Mark the claim as let go, and return it for the process that adopts it."""
        claim = self._lease.usable().claim(lease_s=self._lease.lease_s)
        self._lease.let_go = True
        return claim

    def __repr__(self) -> str:
        kept = "released" if self._lease.released else "let go" if self._lease.let_go else "held"
        state = f"lost: {self.cause}" if self.lost else kept
        return f"<{type(self).__name__} {self.worker_id} claim={self.claim_id} epoch={self.epoch} {state}>"


class HeldLeases:
    """All held claims. They are renewed together, at a third of the shortest lease, minus some jitter."""

    def __init__(self, sooner: Signal) -> None:
        """Create an empty set. `sooner` is set when the next renewal has been moved forward."""
        self._held: dict[str, HeldLease] = {}
        self._round_at: float | None = None
        self._sooner = sooner
        self._lock = threading.Lock()

    def hold(self, lease: HeldLease, now: float) -> HeldLease:
        """Renew this claim from now on. Return its lease: if the request was made twice, the existing one."""
        with self._lock:
            due = now + _jittered(lease.lease_s / 3)
            # With no claim held, no renewal was scheduled, whatever `_round_at` contains.
            brought_forward = not self._held or self._round_at is None or due < self._round_at
            kept = self._held.setdefault(lease.grant.claim_id, lease)
            if brought_forward:
                self._round_at = due
        if brought_forward:
            self._sooner.set()
        return kept

    def drop(self, claim_id: str) -> None:
        """Stop renewing this claim, and ignore later answers about it."""
        with self._lock:
            self._held.pop(claim_id, None)

    def holds(self, claim_id: str) -> bool:
        return claim_id in self._held

    def all(self) -> list[HeldLease]:
        with self._lock:
            return list(self._held.values())

    def among(self, claim_ids: Collection[str]) -> list[HeldLease]:
        """Return those of these claims that are held."""
        return [lease for lease in self.all() if lease.grant.claim_id in claim_ids]

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next renewal, or None if no claim is held."""
        with self._lock:
            return None if self._round_at is None or not self._held else max(0.0, self._round_at - now)

    def renewals(self) -> list[PendingCall]:
        """Return the calls that renew all held claims."""
        with self._lock:
            ids, patience_s = list(self._held), min(PATIENCE_S, self._third())
        return [renew(ids[i : i + BATCH], patience_s=patience_s) for i in range(0, len(ids), BATCH)]

    def rest(self, now: float) -> None:
        """Schedule the next renewal after one that was answered."""
        with self._lock:
            self._round_at = now + _jittered(self._third()) if self._held else None

    def retry(self, now: float) -> None:
        """Schedule the next renewal after one that was not answered: sooner than usual."""
        with self._lock:
            self._round_at = now + _jittered(min(self._third(), RETRY_S)) if self._held else None

    def learn(self, renewal: Renewal) -> list[HeldLease]:
        """Apply the answer to a renewal. Return the lost claims, which are no longer held."""
        with self._lock:
            for claim_id, at in renewal.renewed.items():
                if claim_id in self._held:
                    self._held[claim_id].lease_expires_at = at
                    self._held[claim_id].unhealthy = renewal.unhealthy.get(claim_id)
                    self._held[claim_id].leaving = renewal.leaving.get(claim_id)
            gone = [(self._held.pop(c), cause) for c, cause in renewal.gone.items() if c in self._held]
        for lease, cause in gone:
            lease.lose(cause)
        return [lease for lease, _ in gone]

    def _third(self) -> float:
        return min((h.lease_s for h in self._held.values()), default=3 * RETRY_S) / 3


def _jittered(seconds: float) -> float:
    return next(Backoff(first_s=seconds, tries=2).pauses())
