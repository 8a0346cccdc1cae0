"""The claims that this client holds: what is known of each, and when to renew them. Pure.

A claim is lost only if the server says so. Renewals that go unanswered end nothing: while the server cannot be reached
it does not let leases expire either.
"""

from __future__ import annotations

import threading
from datetime import datetime

from pool.client.asking import Signal
from pool.client.calls import Grant, PendingCall, Renewal, renew
from pool.client.errors import ClaimLost
from pool.core import tokens
from pool.core.backoff import Backoff
from pool.core.states import Condition

# The most that the server takes in one call.
BATCH = 10_000
# During an outage renewals are tried at least so often, whatever the lease.
RETRY_S = 10.0
PATIENCE_S = 30.0


class Holding:
    """What is known of one claim; `signal` is set when it is lost."""

    def __init__(self, grant: Grant, *, lease_s: float, signal: Signal) -> None:
        self.grant = grant
        self.lease_s = lease_s
        self.lease_expires_at: datetime = grant.lease_expires_at
        self.condition = Condition.CLEAN
        self.released = False
        self.cause: str | None = None
        self.leaving: str | None = None
        self.signal = signal

    def lose(self, cause: str) -> None:
        self.cause = cause
        self.signal.set()

    def usable(self) -> Grant:
        """The grant, or `ClaimLost` with the cause."""
        if self.cause is not None:
            raise ClaimLost(self.grant.claim_id, self.cause)
        if self.released:
            raise ClaimLost(self.grant.claim_id, "it was released here")
        return self.grant


class HeldClaim:
    """What `Worker` and `AsyncWorker` show of their claim."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self.claim_id = holding.grant.claim_id
        self.worker_id = holding.grant.worker_id
        self.epoch = holding.grant.epoch
        self.pod = holding.grant.pod
        self.source = holding.grant.source

    @property
    def endpoint(self) -> str:
        """Where the worker listens; `ClaimLost` if it is no longer ours."""
        return self._holding.usable().endpoint

    @property
    def token(self) -> str:
        """The proof of the claim; `ClaimLost` if it is no longer ours."""
        return self._holding.usable().token

    @property
    def auth(self) -> dict[str, str]:
        """HTTP headers that show the claim to the worker; `ClaimLost` if it is no longer ours."""
        grant = self._holding.usable()
        return tokens.headers(grant.claim_id, grant.epoch, grant.token)

    @property
    def lease_expires_at(self) -> datetime:
        """As last renewed, by the server's clock. Not to be compared with this host's."""
        return self._holding.lease_expires_at

    @property
    def lost(self) -> bool:
        """Whether the server has said that the claim is gone."""
        return self._holding.cause is not None

    @property
    def cause(self) -> str | None:
        """Why it is gone."""
        return self._holding.cause

    @property
    def leaving(self) -> str | None:
        """Why this worker is about to go (its node is drained, say); it stays ours until we release it."""
        return self._holding.leaving

    def taint(self) -> None:
        """Give the worker back as not fit to be used again, however it is released."""
        self._holding.condition = Condition.TAINTED

    def _giving_back(self, condition: str) -> Condition:
        """It is not ours from here on, whether or not the server hears of it. Tainted stays tainted."""
        chosen = max(Condition(condition), self._holding.condition, key=list(Condition).index)
        self._holding.released = True
        return chosen

    def __repr__(self) -> str:
        state = f"lost: {self.cause}" if self.lost else "released" if self._holding.released else "held"
        return f"<{type(self).__name__} {self.worker_id} claim={self.claim_id} epoch={self.epoch} {state}>"


class Holdings:
    """All claims held, renewed together: one round at a third of the shortest lease, earlier by some jitter."""

    def __init__(self, sooner: Signal) -> None:
        """`sooner` is set when the next round has been brought forward."""
        self._held: dict[str, Holding] = {}
        self._round_at: float | None = None
        self._sooner = sooner
        self._lock = threading.Lock()

    def hold(self, holding: Holding, now: float) -> Holding:
        """Renew it from now on. A request asked twice is one claim and has one holding: the one that is returned."""
        with self._lock:
            due = now + _jittered(holding.lease_s / 3)
            # With nothing held no round was being waited for, whenever the last one had been due.
            brought_forward = not self._held or self._round_at is None or due < self._round_at
            kept = self._held.setdefault(holding.grant.claim_id, holding)
            if brought_forward:
                self._round_at = due
        if brought_forward:
            self._sooner.set()
        return kept

    def drop(self, claim_id: str) -> None:
        """Renew it no more, and believe nothing that is still said about it."""
        with self._lock:
            self._held.pop(claim_id, None)

    def holds(self, claim_id: str) -> bool:
        return claim_id in self._held

    def all(self) -> list[Holding]:
        with self._lock:
            return list(self._held.values())

    def due_in(self, now: float) -> float | None:
        """Seconds until the next round; None while nothing is held."""
        with self._lock:
            return None if self._round_at is None or not self._held else max(0.0, self._round_at - now)

    def renewals(self) -> list[PendingCall]:
        """The round: one call for all that is held."""
        with self._lock:
            ids, patience_s = list(self._held), min(PATIENCE_S, self._third())
        return [renew(ids[i : i + BATCH], patience_s=patience_s) for i in range(0, len(ids), BATCH)]

    def rest(self, now: float) -> None:
        """The round was answered; the next comes in its time."""
        with self._lock:
            self._round_at = now + _jittered(self._third()) if self._held else None

    def retry(self, now: float) -> None:
        """The round was not answered; try again sooner."""
        with self._lock:
            self._round_at = now + _jittered(min(self._third(), RETRY_S)) if self._held else None

    def learn(self, renewal: Renewal) -> list[Holding]:
        """Take over what was said about claims still held; those lost are returned and held no more."""
        with self._lock:
            for claim_id, at in renewal.renewed.items():
                if claim_id in self._held:
                    self._held[claim_id].lease_expires_at = at
            for claim_id, why in renewal.leaving.items():
                if claim_id in self._held:
                    self._held[claim_id].leaving = why
            gone = [(self._held.pop(c), cause) for c, cause in renewal.gone.items() if c in self._held]
        for holding, cause in gone:
            holding.lose(cause)
        return [holding for holding, _ in gone]

    def _third(self) -> float:
        return min((h.lease_s for h in self._held.values()), default=3 * RETRY_S) / 3


def _jittered(seconds: float) -> float:
    return next(Backoff(first_s=seconds, tries=2).pauses())
