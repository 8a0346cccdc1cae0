"""`Pool`: the client for threads."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, Unpack

from pool.client import calls, running
from pool.client.calls import Limits
from pool.client.core import log
from pool.client.credentials import key_source
from pool.client.defaults import broker_url
from pool.client.defaults import org as org_or_default
from pool.client.errors import PoolClosed
from pool.client.held import Worker, Workers
from pool.client.identity import identity, named
from pool.client.leases import HeldLease
from pool.client.session import Session
from pool.core.errors import PoolError
from pool.core.literals import CancelOutcome, ReleaseCondition, ReleaseOutcome
from pool.core.states import Condition

T = TypeVar("T")


class Pool:
    """Acquire workers, renew their claims in the background, and release them.

    pool = Pool("redis://…")
        with pool.acquire("acme", wait_s=30) as worker:
            requests.get(worker.endpoint, headers=worker.auth)

    Safe to share between threads; one per process is enough. After a fork the child starts a new
    session; the parent keeps its claims. A claim is renewed until its worker is released or lost,
    or the pool is closed.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        org_key: str | None = None,
        answer_grace_s: float = calls.ANSWER_GRACE_S,
    ) -> None:
        """Create a pool. `url` is the broker's; the default is WARMPOOL_BROKER_URL.

        `name` is shown with the claims of this client, and is in the name of its reply list.

        An acquire fails after wait_s + answer_grace_s. `org_key`, as printed by `warmpool org key`,
        signs every request. The default is WARMPOOL_ORG_KEY, or the file named by
        WARMPOOL_ORG_KEY_FILE.
        """
        self._url = broker_url(url)
        self._name = named(name)
        self._grace_s = answer_grace_s
        self._source = key_source(org_key)
        # One entry, for this process. It is a dict because setdefault needs no lock that a fork
        # could leave locked.
        self._sessions = {os.getpid(): self._new_session()}
        self._closed = False
        self._at_exit = partial(_close_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)
        weakref.finalize(self, _orphan, self._sessions, self._at_exit).atexit = False

    def acquire(  # noqa: PLR0913 - the arguments of the task
        self,
        org: str | None = None,
        profile: str = "default",
        *,
        wait_s: float = 0,
        lease_s: float = calls.LEASE_S,
        ttl_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Worker:
        """Return a worker, by default for the org of the key. Raise `Refused`, or `BrokerDown` or `AnswerOverdue` if there is no answer.

        If the caller leaves early (timeout, Ctrl-C), the request is cancelled. If it was granted
        nevertheless, the claim is released.

        `traceparent` is the trace of the request (W3C Trace Context), by default that of the current
        OpenTelemetry span.
        """
        call = calls.acquiring(
            org_or_default(org, self._source),
            profile,
            request_id,
            grace_s=self._grace_s,
            wait_s=wait_s,
            lease_s=lease_s,
            ttl_s=ttl_s,
            traceparent=traceparent,
        )
        session = self._session()
        return session.call(call, self._taking(session, lease_s, call.traceparent))

    def acquire_many(
        self,
        org: str | None = None,
        profile: str = "default",
        *,
        count: int,
        **limits: Unpack[Limits],
    ) -> Workers:
        """Return `count` workers (1 to 100), or none: if one is refused, the others are released and
        `Refused` is raised. `limits` are wait_s, lease_s, ttl_s and traceparent, as in `acquire`.

        These are `count` requests, sent together: each counts against the caps and waits by itself.
        """
        org = org_or_default(org, self._source)
        together = [
            calls.acquiring(org, profile, grace_s=self._grace_s, **limits)
            for _ in range(calls.number_of(count))
        ]
        session, lease_s = self._session(), limits.get("lease_s", calls.LEASE_S)
        take = self._taking(session, lease_s, together[0].traceparent)
        return Workers.of(self, session.call_all(together, take))

    def run(
        self,
        fn: Callable[[Worker], T],
        org: str | None = None,
        profile: str = "default",
        *,
        idempotent: bool = False,
        attempts: int = running.ATTEMPTS,
        **limits: Unpack[Limits],
    ) -> T:
        """Return `fn(worker)`, run with a worker that is released afterwards. `limits` are those of `acquire_many`.

        If `fn` raises and its claim was lost, the error is `ClaimLost`. With `idempotent=True` (it is
        safe to run `fn` twice) it is instead run again on a new worker, up to `attempts` times in
        all. Other errors of `fn` are raised as they are, and never retried.
        """
        for left in reversed(range(running.attempts_of(attempts, idempotent=idempotent))):
            with self.acquire(org, profile, **limits) as worker:
                try:
                    return fn(worker)
                except Exception as error:
                    if not self._is_lost(worker, error, may_run_again=idempotent):
                        raise
                    lost = running.loss(worker, error)
            if not left:
                raise lost
            log.info("run_again claim=%s cause=%s attempts_left=%d", worker.claim_id, worker.cause, left)
        raise AssertionError("unreachable")

    def release(
        self, claim_id: str, condition: ReleaseCondition | Condition = Condition.CLEAN
    ) -> ReleaseOutcome:
        """End a claim: return "released", "already_released" or "unknown_claim". Safe to repeat."""
        session = self._session()
        return session.call(session.core.release(claim_id, condition), calls.released)

    def cancel(self, org: str | None, request_id: str) -> CancelOutcome:
        """Cancel a waiting request: return "cancelled", "already_answered" or "unknown_request".

        None is the org of the key.
        """
        call = calls.cancel(org_or_default(org, self._source), request_id)
        return self._session().call(call, calls.cancelled)

    def adopt(self, claim: Mapping[str, object], *, lease_s: float | None = None) -> Worker:
        """Hold a claim of another process: renew it from now on, and release it on exit.

        `claim` is what `Worker.let_go` returned, or the answer that a Celery app got from
        `pool.acquire`. If that acquire asked for a lease other than 30 s, pass it as `lease_s`.
        Raise `ClaimLost` if the claim has ended, and `Refused` if the answer is a refusal.
        """
        grant = calls.adopted(claim)
        lease = HeldLease(grant, lease_s=calls.lease_of(claim, lease_s), signal=threading.Event())
        session = self._session()

        def take(result: object) -> Worker:
            renewed = lease.adopted(calls.renewal(result))
            return Worker(self, session.core.leases.hold(renewed, session.now()))

        return session.call(calls.renew([grant.claim_id], patience_s=calls.BRIEF_S), take)

    def let_go(self, claim_id: str) -> None:
        """Stop renewing a claim without releasing it: it ends with its lease."""
        self._session().core.leases.drop(claim_id)

    def holds(self, claim_id: str) -> bool:
        """Return whether this pool renews that claim in this process."""
        return self._session().core.leases.holds(claim_id)

    def release_held(self, claim_ids: Collection[str]) -> None:
        """Release those of these claims that this pool still holds, all at once. Failures are only logged."""
        session = self._session()
        together = session.core.give_back(session.core.leases.among(claim_ids))
        try:
            if together:
                session.call_all(together, calls.released)
        except PoolError as trouble:
            log.warning("release_unanswered claims=%d error=%s", len(together), trouble)

    def close(self) -> None:
        """Stop both threads. Release the claims still held, without waiting for the answer.

        If that message is lost, the claims end with their leases. Also called when the process
        exits.
        """
        self._closed = True
        atexit.unregister(self._at_exit)
        session = self._sessions.pop(os.getpid(), None)
        if session is not None:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _taking(self, session: Session, lease_s: float, traceparent: str) -> Callable[[object], Worker]:
        def take(result: object) -> Worker:
            grant, signal = calls.granted(result), threading.Event()
            lease = HeldLease(grant, lease_s=lease_s, signal=signal, traceparent=traceparent)
            return Worker(self, session.core.leases.hold(lease, session.now()))

        return take

    def _is_lost(self, worker: Worker, error: Exception, *, may_run_again: bool) -> bool:
        """Return whether the claim has ended. A renewal finds out, if it is not reported yet."""
        for pause_s in running.looks(error, worker, may_run_again=may_run_again):
            try:
                if worker.wait_lost(pause_s) or not self.holds(worker.claim_id):
                    break
                session = self._session()
                session.call(running.question(worker), session.core.renewed)
            except PoolError:  # the server cannot be reached: it stays an error of `fn`
                break
        return worker.lost

    def _new_session(self) -> Session:
        key = None if self._source is None else self._source()
        return Session(self._url, identity(self._name, key), self._source)

    def _session(self) -> Session:
        if self._closed:
            raise PoolClosed
        here = os.getpid()
        session = self._sessions.get(here)
        if session is None:
            for elsewhere in [pid for pid in self._sessions if pid != here]:
                self._sessions.pop(elsewhere, None)
            session = self._sessions.setdefault(here, self._new_session())
        return session


def _close_at_exit(pool: weakref.ref[Pool]) -> None:
    alive = pool()
    if alive is not None:
        alive.close()


def _orphan(sessions: dict[int, Session], at_exit: Callable[[], None]) -> None:
    atexit.unregister(at_exit)
    for session in sessions.values():
        session.orphaned = True
