"""The holder of a worker and its sessions, as the worker itself tracks them. Thread-safe; independent
of HTTP except for status codes. The reference worker, the middleware and the proxy share it.

The epoch only grows. Once a higher epoch was seen, holders with a lower one are refused, even if
they have a session open.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pool.core import tokens


class Holder(NamedTuple):
    """A claim whose token was verified."""

    claim_id: str
    epoch: int


class Denial(NamedTuple):
    """Why a request is refused."""

    status: int
    detail: str


class WorkerState:
    """The state of a worker. `self_report` is its answer to `GET /sessions`."""

    def __init__(self, key: str, now: Callable[[], float]) -> None:
        self._key = key
        self._now = now
        self._changed = threading.Condition()
        self._holder: Holder | None = None
        # Requests in progress count as use. Answers not sent yet only delay the exit, which would
        # cut them off.
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
        """Count an answer as owed while inside."""
        with self._changed:
            self._answering += 1
        try:
            yield
        finally:
            with self._changed:
                self._answering -= 1
                self._changed.notify_all()

    def enter(self, claim_id: str, epoch: str, token: str) -> Holder | Denial:
        """Begin a request of a claim. Each request that begins must call `leave`."""
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
        """Open a session: the worker is busy until it is closed or a newer holder arrives. Safe to
        repeat.
        """
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
        """Bind the configuration of an org permanently: a worker that has served an org never
        serves another.
        """
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

    def self_report(self) -> dict[str, Any]:
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
        """Wait until no session is open and every answer is sent. Return False after `within_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._answering or self._session_open), within_s)

    def _presented(self, claim_id: str, epoch: str, token: str) -> Holder | None:
        # Python's int() accepts digits of all scripts and of any length. Accept only ASCII digits.
        if not (self._key and claim_id and epoch.isascii() and epoch.isdigit() and len(epoch) < 20):
            return None
        holder = Holder(claim_id, int(epoch))
        return holder if tokens.verify(self._key, holder.claim_id, holder.epoch, token) else None

    def _fence(self, holder: Holder) -> Denial | None:
        """Refuse all holders but the newest one. A newer holder closes the session of the previous one."""
        if self._holder is None or holder.epoch > self._holder.epoch:
            self._holder = holder
            self._session_open = False
            self._changed.notify_all()
        if holder != self._holder:
            return Denial(409, f"epoch {holder.epoch} has ended; the current epoch is {self._holder.epoch}")
        return None
