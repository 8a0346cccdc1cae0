"""Who holds this worker and what they do with it. Safe to use from many threads; knows nothing of HTTP but its status codes.

The epoch only rises. A holder with a lower one is refused from the moment that a higher one was seen, whatever it had open.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pool.core import tokens


class Holder(NamedTuple):
    """A claim that has shown its token."""

    claim_id: str
    epoch: int


class Denial(NamedTuple):
    """Why a request is not served."""

    status: int
    detail: str


class WorkerState:
    """The worker's own word is what `word` says."""

    def __init__(self, key: str, now: Callable[[], float]) -> None:
        self._key = key
        self._now = now
        self._changed = threading.Condition()
        self._holder: Holder | None = None
        # Work counts for the word; answers that are not sent yet count only for leaving, which would cut them.
        self._in_flight = 0
        self._answering = 0
        self._session_open = False
        self._draining = False
        self._used_at: float | None = None
        self._org: str | None = None
        self._activation: Any = None

    @property
    def draining(self) -> bool:
        return self._draining

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """While inside, an answer is owed to somebody."""
        with self._changed:
            self._answering += 1
        try:
            yield
        finally:
            with self._changed:
                self._answering -= 1
                self._changed.notify_all()

    def enter(self, claim_id: str, epoch: str, token: str) -> Holder | Denial:
        """Begin a request of a claim; each that begins must `leave`."""
        presented = self._presented(claim_id, epoch, token)
        if presented is None:
            return Denial(401, "a valid token for this worker is needed")
        with self._changed:
            refusal = self._fence(presented)
            if refusal is None and self._draining and not self._session_open:
                refusal = Denial(503, "this worker is leaving")
            if refusal is not None:
                return refusal
            self._in_flight += 1
            self._used_at = self._now()
            return presented

    def leave(self) -> None:
        with self._changed:
            self._in_flight -= 1
            self._used_at = self._now()

    def open_session(self, holder: Holder) -> Denial | None:
        """Be busy until it is closed or a newer holder comes. Opening it twice is opening it once."""
        with self._changed:
            if self._draining and not self._session_open:
                return Denial(503, "this worker is leaving")
            refusal = self._fence(holder)
            self._session_open = self._session_open or refusal is None
            return refusal

    def close_session(self, holder: Holder) -> Denial | None:
        with self._changed:
            refusal = self._fence(holder)
            if refusal is None:
                self._session_open = False
                self._changed.notify_all()
            return refusal

    def activate(self, holder: Holder, org: str | None, payload: Any) -> Denial | None:
        """Bind an org's configuration, for good: a worker that has served one org never serves another."""
        with self._changed:
            if org is not None and self._org not in (None, org):
                return Denial(409, "this worker is bound to another org")
            refusal = self._fence(holder)
            if refusal is None:
                self._org, self._activation = org or self._org, payload
            return refusal

    def bound(self) -> dict[str, Any]:
        with self._changed:
            return {"org": self._org, "activation": self._activation}

    def word(self) -> dict[str, Any]:
        with self._changed:
            return {
                "open": self._in_flight + self._session_open,
                "claim": self._holder.claim_id if self._holder else None,
                "epoch": self._holder.epoch if self._holder else 0,
                "last_used_s": None if self._used_at is None else round(self._now() - self._used_at, 3),
                "draining": self._draining,
            }

    def drain(self) -> None:
        with self._changed:
            self._draining = True

    def wait_unused(self, within_s: float) -> bool:
        """Wait until no session is open and every answer is sent; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._answering or self._session_open), within_s)

    def _presented(self, claim_id: str, epoch: str, token: str) -> Holder | None:
        # Python reads digits of all scripts and of any length; a claim's epoch is written in plain ones.
        if not (self._key and claim_id and epoch.isascii() and epoch.isdigit() and len(epoch) < 20):
            return None
        holder = Holder(claim_id, int(epoch))
        return holder if tokens.verify(self._key, holder.claim_id, holder.epoch, token) else None

    def _fence(self, holder: Holder) -> Denial | None:
        """Refuse who is not the newest holder; one newer than any before ends what the last one had open."""
        if self._holder is None or holder.epoch > self._holder.epoch:
            self._holder = holder
            self._session_open = False
            self._changed.notify_all()
        if holder != self._holder:
            return Denial(409, f"epoch {holder.epoch} is over; {self._holder.epoch} has begun")
        return None
