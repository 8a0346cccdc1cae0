"""A pool in memory that answers the calls of a client, for `warmpool.testing`.

It keeps the task contract: the same request gives the same answer, a claim ends once, a worker of one
org never goes to another, waiters are served in order. What it does not have is pods, leases that
end, and shares.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pool.client import calls
from pool.client.calls import PendingCall, Renewal
from pool.client.errors import BrokerDown
from pool.core import tokens
from pool.core.clock import SystemClock
from pool.core.contract import Acquire, instant
from pool.core.errors import InvalidInput
from pool.core.ids import RandomIds
from pool.core.literals import RefusalReason
from pool.core.states import Condition

KEY = tokens.worker_key(b"a key that only tests know", "w-fake")
ENDPOINT = "http://127.0.0.1:9"
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
Wake = Callable[[], object]
Learn = Callable[[Renewal], None]


@dataclass(slots=True, eq=False)
class _FakeWorker:
    id: str
    profile: str
    org: str | None = None
    epoch: int = 0
    claim_id: str | None = None


@dataclass(slots=True, eq=False)
class _FakeRequest:
    asked: Acquire
    state: str = "refused"
    answer: dict[str, Any] | None = None
    wakes: list[Wake] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _FakeClaim:
    id: str
    org: str
    worker: _FakeWorker
    lease_s: int
    ttl_s: int | None
    ended: str | None = None


@dataclass(slots=True)
class _Refusal:
    reason: str
    detail: str
    retry_after_s: float | None
    left: float


class FakeServer:
    """The server of `FakePool` and `FakeAsyncPool`. Several pools may share one. Thread-safe.

    Every acquire is granted, until a test orders otherwise.
    """

    def __init__(
        self, *, workers: int | None = None, profiles: Iterable[str] = ("default",), endpoint: str = ENDPOINT
    ) -> None:
        """Create a pool with up to `workers` workers (None: any number), all at the address `endpoint`.

        Their tokens are valid for `warmpool.testing.KEY`.
        """
        self.endpoint = endpoint
        # Every call that arrived, in order: the task and its arguments.
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._most = workers
        self._profiles = tuple(profiles)
        self._workers: list[_FakeWorker] = []
        self._claims: dict[str, _FakeClaim] = {}
        self._requests: dict[tuple[str, str], _FakeRequest] = {}
        self._refusals: list[_Refusal] = []
        self._delays: list[float] = []
        self._is_down = False
        self._caps: dict[str, int] = {}
        self._listeners: list[Learn] = []
        self._clock, self._ids = SystemClock(), RandomIds()
        self._lock = threading.RLock()

    # What a test may order.

    def refuse(
        self,
        reason: RefusalReason,
        *,
        detail: str = "refused by the test",
        retry_after_s: float | None = None,
        times: int | None = 1,
    ) -> None:
        """Refuse the next `times` acquires, or with None all of them until `grant`."""
        left = float("inf") if times is None else times
        with self._lock:
            if left > 0:
                self._refusals.append(_Refusal(reason, detail, retry_after_s, left))

    def grant(self) -> None:
        """Grant again: forget the refusals, delays and the outage that were ordered."""
        with self._lock:
            self._refusals.clear()
            self._delays.clear()
            self._is_down = False

    def set_cap(self, org: str, cap: int) -> None:
        """Let an org hold at most `cap` workers; 0 removes the cap."""
        with self._lock:
            self._caps[org] = cap
            self._serve_waiters()

    def delay(self, seconds: float, *, times: int = 1) -> None:
        """Decide the next `times` acquires only after some seconds."""
        with self._lock:
            self._delays += [seconds] * times

    def go_down(self) -> None:
        """Be away: every call raises `BrokerDown`, until `grant`."""
        with self._lock:
            self._is_down = True

    def lose(self, claim_id: str, cause: str = "pod_gone") -> None:
        """End a claim, as if its pod had died. Its holder is informed at once."""
        with self._lock:
            claim = self._live(claim_id)
            claim.ended = cause
            self._workers.remove(claim.worker)
            self._serve_waiters()
            listeners = list(self._listeners)
        self._tell(listeners, gone={claim_id: cause})

    def leave(self, claim_id: str, why: str = "its node is being drained") -> None:
        """Inform the holder that its worker must leave. The claim stays."""
        with self._lock:
            renewed = {claim_id: self._until(self._live(claim_id).lease_s)}
            listeners = list(self._listeners)
        self._tell(listeners, renewed=renewed, leaving={claim_id: why})

    @property
    def held(self) -> list[str]:
        """The live claims, oldest first. Empty if the code under test has released all of them."""
        with self._lock:
            return [claim.id for claim in self._claims.values() if claim.ended is None]

    @property
    def waiting(self) -> int:
        """The number of acquires that wait for a worker."""
        with self._lock:
            return sum(request.state == "waiting" for request in self._requests.values())

    # What the sessions of pools call.

    def listen(self, learn: Learn) -> None:
        with self._lock:
            self._listeners.append(learn)

    def forget(self, learn: Learn) -> None:
        with self._lock:
            self._listeners.remove(learn)

    def delay_of(self, call: PendingCall) -> float:
        """Return how long this call is delayed, in seconds."""
        with self._lock:
            return self._delays.pop(0) if call.task == calls.ACQUIRE and self._delays else 0.0

    def answer(self, call: PendingCall, wake: Wake = lambda: None) -> dict[str, Any] | None:
        """Return the answer. None: it waits; `wake` is called when the same call has its answer."""
        with self._lock:
            if self._is_down:
                raise BrokerDown("the fake broker is away, as the test ordered")
            kwargs: dict[str, Any] = dict(call.kwargs)
            self.calls.append((call.task, kwargs))
            match call.task:
                case calls.ACQUIRE:
                    return self._acquire(kwargs, wake)
                case calls.RENEW:
                    return self._renew(kwargs["claim_ids"])
                case calls.RELEASE:
                    return self._release(kwargs["claim_id"], kwargs["condition"])
                case _:
                    return self._cancel(kwargs["org"], kwargs["request_id"])

    def settle(self, call: PendingCall) -> dict[str, Any]:
        """Return the answer to a call that waited; refuse it if it still waits."""
        with self._lock:
            request = self._requests[str(call.kwargs["org"]), str(call.kwargs["request_id"])]
            if request.answer is None:
                wait_s = request.asked.wait_s
                self._decide(
                    request, _refused("wait_timeout", f"no worker became available within {wait_s} s")
                )
            assert request.answer is not None  # noqa: S101 - for the type checker
            return request.answer

    def _acquire(self, kwargs: dict[str, Any], wake: Wake) -> dict[str, Any] | None:
        try:
            asked = Acquire.parse(kwargs, task_id=self._ids.request())
        except InvalidInput as exc:
            return _refused("invalid", exc.detail)
        if asked.profile not in self._profiles:
            return _refused("unknown_profile", f"profile {asked.profile!r} does not exist")
        request = self._requests.setdefault((asked.org, asked.request_id), _FakeRequest(asked))
        if request.asked != asked:
            return _refused("invalid", "request_id was used before with other arguments")
        if request.state == "refused":
            self._evaluate(request)
        elif request.state == "granted" and self._ended(request):
            return _refused("request_spent", "this request was granted before, and its claim has ended")
        if request.state == "waiting":
            request.wakes.append(wake)
        return request.answer

    def _evaluate(self, request: _FakeRequest) -> None:
        request.answer = None
        if self._refusals:
            ordered = self._refusals[0]
            ordered.left -= 1
            if ordered.left <= 0:
                self._refusals.pop(0)
            self._decide(request, _refused(ordered.reason, ordered.detail, ordered.retry_after_s))
        elif (worker := self._available(request.asked)) is not None:
            self._begin(request, worker)
        elif request.asked.wait_s:
            request.state = "waiting"
        else:
            self._decide(request, self._miss(request.asked.org))

    def _miss(self, org: str) -> dict[str, Any]:
        if self._is_at_cap(org):
            return _refused("org_cap", f"org {org} is at its cap of {self._caps[org]} workers", 1.0)
        return _refused("pool_cap", f"the pool is at its cap of {self._most} workers", 2.0)

    def _is_at_cap(self, org: str) -> bool:
        used = sum(claim.org == org and claim.ended is None for claim in self._claims.values())
        return 0 < self._caps.get(org, 0) <= used

    def _available(self, asked: Acquire) -> _FakeWorker | None:
        if self._is_at_cap(asked.org):
            return None
        unused = [w for w in self._workers if w.claim_id is None]
        for worker in reversed(unused):
            if worker.org == asked.org and worker.profile == asked.profile:
                return worker
        if self._most is not None and len(self._workers) >= self._most:
            if not unused:
                return None
            self._workers.remove(unused[0])  # parked for another org
        worker = _FakeWorker(id=f"w-fake{len(self._claims)}", profile=asked.profile)
        self._workers.append(worker)
        return worker

    def _begin(self, request: _FakeRequest, worker: _FakeWorker) -> None:
        asked, source = request.asked, "warm" if worker.org is None else "hot_idle"
        claim_id = f"c-fake{len(self._claims) + 1}"
        worker.org, worker.epoch, worker.claim_id = asked.org, worker.epoch + 1, claim_id
        self._claims[claim_id] = _FakeClaim(claim_id, asked.org, worker, asked.lease_s, asked.ttl_s)
        answer = {
            "outcome": "granted",
            "claim_id": claim_id,
            "worker_id": worker.id,
            "epoch": worker.epoch,
            "pod": worker.id,
            "endpoint": self.endpoint,
            "token": tokens.token(KEY, claim_id, worker.epoch),
            "lease_expires_at": instant(self._until(asked.lease_s)),
            "source": source,
        }
        self._decide(request, answer)

    def _decide(self, request: _FakeRequest, answer: dict[str, Any]) -> None:
        request.state, request.answer = answer["outcome"], answer
        wakes, request.wakes = request.wakes, []
        for wake in wakes:
            wake()

    def _ended(self, request: _FakeRequest) -> bool:
        return request.answer is not None and self._claims[request.answer["claim_id"]].ended is not None

    def _renew(self, claim_ids: list[str]) -> dict[str, Any]:
        known = {c: self._claims.get(c) for c in claim_ids}
        return {
            "renewed": {
                c: instant(self._until(claim.lease_s))
                for c, claim in known.items()
                if claim is not None and claim.ended is None
            },
            "gone": {
                c: "unknown_claim" if claim is None else claim.ended
                for c, claim in known.items()
                if claim is None or claim.ended is not None
            },
        }

    def _release(self, claim_id: str, condition: str) -> dict[str, Any]:
        claim = self._claims.get(claim_id)
        if claim is None:
            return {"outcome": "unknown_claim"}
        if claim.ended is not None:
            return {"outcome": "already_released"}
        claim.ended = "released"
        claim.worker.claim_id = None
        if condition == Condition.TAINTED or claim.ttl_s == 0:
            self._workers.remove(claim.worker)
        self._serve_waiters()
        return {"outcome": "released"}

    def _cancel(self, org: str, request_id: str) -> dict[str, Any]:
        request = self._requests.get((org, request_id))
        if request is None:
            return {"outcome": "unknown_request"}
        if request.state != "waiting":
            return {"outcome": "already_answered"}
        self._decide(request, _refused("cancelled", "cancelled by its caller"))
        return {"outcome": "cancelled"}

    def _serve_waiters(self) -> None:
        for request in [r for r in self._requests.values() if r.state == "waiting"]:
            worker = self._available(request.asked)
            if worker is not None:
                self._begin(request, worker)

    def _live(self, claim_id: str) -> _FakeClaim:
        claim = self._claims.get(claim_id)
        if claim is None or claim.ended is not None:
            raise InvalidInput("claim_id", f"must be a live claim, got {claim_id!r}; live are {self.held}")
        return claim

    def _until(self, lease_s: float) -> datetime:
        return _BEGAN + timedelta(seconds=self._clock.monotonic() + lease_s)

    @staticmethod
    def _tell(
        listeners: list[Learn],
        *,
        renewed: dict[str, datetime] | None = None,
        gone: dict[str, str] | None = None,
        leaving: dict[str, str] | None = None,
    ) -> None:
        news = Renewal(renewed=renewed or {}, gone=gone or {}, leaving=leaving or {}, unhealthy={})
        for learn in listeners:
            learn(news)


def _refused(reason: str, detail: str, retry_after_s: float | None = None) -> dict[str, Any]:
    return {"outcome": "refused", "reason": reason, "detail": detail, "retry_after_s": retry_after_s}
