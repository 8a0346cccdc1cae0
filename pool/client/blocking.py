"""`Pool` and `Worker`: the client for threads."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self, cast

from pool.client import calls
from pool.client.core import log
from pool.client.credentials import key_source
from pool.client.errors import PoolClosed
from pool.client.holding import HeldClaim, Holding
from pool.client.identity import identity, named
from pool.client.session import Session
from pool.core.errors import PoolError
from pool.core.states import Condition


class Pool:
    """Asks for workers, renews what it holds in the background, gives back what it is told to.

        pool = Pool("redis://…")
        with pool.acquire("acme", wait_s=30) as worker:
            requests.get(worker.endpoint, headers=worker.auth)

    Safe to share between threads; one per process is enough. After a fork the child's pool starts anew: what the parent
    holds stays the parent's. A worker is held, and renewed, until it is released, lost, or the pool is closed.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        org_key: str | None = None,
        answer_grace_s: float = calls.ANSWER_GRACE_S,
    ) -> None:
        """`name` shows in Flower and in the name of the reply list. An acquire is given up after wait_s + answer_grace_s. `org_key`, as
        `warmpool org key` prints it, signs every request; without it WARMPOOL_ORG_KEY or the file that WARMPOOL_ORG_KEY_FILE names does."""
        self._url = url
        self._name = named(name)
        self._grace_s = answer_grace_s
        self._source = key_source(org_key)
        # One entry: this process's. A dict, because setdefault needs no lock that a fork could leave locked.
        self._sessions = {os.getpid(): self._new_session()}
        self._closed = False
        self._at_exit = partial(_close_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)
        weakref.finalize(self, _orphan, self._sessions, self._at_exit).atexit = False

    def acquire(
        self,
        org: str,
        profile: str = "default",
        *,
        wait_s: float = 0,
        lease_s: float = 30,
        ttl_s: float | None = None,
        request_id: str | None = None,
    ) -> Worker:
        """A worker, or `Refused`; `BrokerDown` or `AnswerOverdue` if nobody says either.

        A caller that leaves early (timeout, Ctrl-C) leaves nothing behind: the request is cancelled, and should it have
        been granted all the same, it is released.
        """
        wish = calls.wish(org, profile, request_id, wait_s=wait_s, lease_s=lease_s, ttl_s=ttl_s)
        session = self._session()

        def take(result: object) -> Worker:
            holding = Holding(calls.granted(result), lease_s=lease_s, signal=threading.Event())
            return Worker(self, session.core.holdings.hold(holding, session.now()))

        return session.ask(calls.acquire(wish, grace_s=self._grace_s), take)

    def release(self, claim_id: str, condition: str = Condition.CLEAN) -> str:
        """End a claim: "released", "already_released" or "unknown_claim". Repeating it is harmless."""
        session = self._session()
        return session.ask(session.core.release(claim_id, condition), calls.outcome)

    def cancel(self, org: str, request_id: str) -> str:
        """Withdraw a request that waits: "cancelled", "already_answered" or "unknown_request"."""
        return self._session().ask(calls.cancel(org, request_id), calls.outcome)

    def let_go(self, claim_id: str) -> None:
        """Renew it no more, without releasing it: it lives on until its lease ends, or until whoever was given it releases it."""
        self._session().core.holdings.drop(claim_id)

    def holds(self, claim_id: str) -> bool:
        """Whether this pool, in this process, renews that claim."""
        return self._session().core.holdings.holds(claim_id)

    def close(self) -> None:
        """Stop both threads. Claims still held are released without waiting for the answer; if that message is lost,
        their leases end them. Also done at the end of the process."""
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


class Worker(HeldClaim):
    """A worker that is ours: until released, or until the server says that the claim is gone.

    As a context manager it is released on exit, clean also if the block raised: whether the worker is fit to be used
    again is known only to the caller, who says `taint()` if it is not.
    """

    def __init__(self, pool: Pool, holding: Holding) -> None:
        super().__init__(holding)
        self._pool = pool

    def release(self, condition: str = Condition.CLEAN) -> str:
        """Give it back: "released", "already_released" or "unknown_claim". It cannot be used after that."""
        return self._pool.release(self.claim_id, self._giving_back(condition))

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the claim is lost (True) or the time is over (False)."""
        return cast("threading.Event", self._holding.signal).wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Lost, released already, or inherited by a fork: not ours to release.
        try:
            if self._pool.holds(self.claim_id):
                self.release()
        except PoolError as trouble:
            log.warning("release_unanswered claim=%s error=%s", self.claim_id, trouble)


def _close_at_exit(pool: weakref.ref[Pool]) -> None:
    alive = pool()
    if alive is not None:
        alive.close()


def _orphan(sessions: dict[int, Session], at_exit: Callable[[], None]) -> None:
    atexit.unregister(at_exit)
    for session in sessions.values():
        session.orphaned = True
