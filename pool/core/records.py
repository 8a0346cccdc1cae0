"""Database rows as values. `Seen` is a worker as it was read; `Held` is the right of a claim to a
worker. An action that needs the right takes a `Held`, so it cannot be called with a worker that was
only read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pool.core.ids import ClaimId, OrgId, ProfileName, RequestPk, WorkerId
from pool.core.states import BOUND, CLAIMED, PODDED, MoveReason, RequestState, Source, State


def with_detail(reason: str, detail: str | None) -> str:
    """Return a reason and its detail on one line, for people."""
    return f"{reason}: {detail}" if detail else str(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class By:
    """The author of a move, its reason, and a detail for people. The journal stores all three."""

    who: str
    reason: MoveReason
    detail: str = ""

    @property
    def text(self) -> str:
        return with_detail(self.reason, self.detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The right of a claim to one worker at one epoch."""

    worker_id: WorkerId
    claim_id: ClaimId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWorker:
    """A worker's row as it was read."""

    id: WorkerId
    profile: ProfileName
    image: str
    revision: str
    state: State
    epoch: int
    grace_s: int
    org: OrgId | None = None
    claim_id: ClaimId | None = None
    endpoint: str | None = None
    pod_uid: str | None = None
    node: str | None = None
    created_at: datetime
    state_since: datetime
    sent_at: datetime | None = None
    ready_at: datetime | None = None
    heartbeat_at: datetime | None = None
    hot_idle_since: datetime | None = None
    hot_idle_until: datetime | None = None
    leaving_since: datetime | None = None
    leaving_reason: MoveReason | None = None
    leaving_detail: str | None = None
    parked_counted: bool = False

    def violations(self) -> list[str]:
        """Return the rules that this row violates; the database enforces the same rules."""
        rules = [
            (
                (self.state in CLAIMED) == (self.claim_id is not None),
                "a worker has a claim exactly in the claimed states",
            ),
            (self.state not in BOUND or self.org is not None, "a bound worker has an org"),
            (self.state is not State.IDLE or self.org is None, "an idle worker has no org"),
            (
                self.state not in PODDED - {State.DRAINING} or self.pod_uid is not None,
                "a worker past spawning has a pod",
            ),
            (
                (self.state is State.HOT_IDLE) == (self.hot_idle_until is not None),
                "exactly a parked worker has hot_idle_until",
            ),
            (
                self.state not in {State.IDLE, State.HOT_IDLE} or self.leaving_since is None,
                "a leaving worker is neither idle nor parked",
            ),
        ]
        return [sentence for holds, sentence in rules if not holds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Org:
    """A tenant's row."""

    id: OrgId
    cap: int = 0
    weight: float = 1.0
    hot_idle_floor: int = 0
    hot_idle_cap: int = 0
    hot_idle_ttl_s: int | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    in_use: int = 0
    parked: int = 0

    @property
    def counts_parked(self) -> bool:
        """Return whether the org's parked workers are counted. An org without floor and cap needs no lock."""
        return self.hot_idle_floor > 0 or self.hot_idle_cap > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim's row."""

    id: ClaimId
    worker_id: WorkerId
    org: OrgId
    profile: ProfileName
    request_pk: RequestPk
    epoch: int
    source: Source
    lease_s: int
    ttl_s: int | None
    lease_expires_at: datetime | None
    ended_at: datetime | None
    ended_why: str | None
    counted: bool
    abandoned: bool
    release_condition: str | None
    created_at: datetime | None = None
    hot_at: datetime | None = None

    @property
    def held(self) -> Held:
        return Held(worker_id=self.worker_id, claim_id=self.id, epoch=self.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyTo:
    """The destination of an answer: a Celery task id and, for the slim client, its reply list.

    `origin` is the program that sent the request, as it names itself: service, pid and host.
    `traceparent` is the trace of the request, if it has one. `followers` is what is sent after the
    answer, as JSON; empty for most. `took_s` is not stored: the seconds from the request to its
    decision.
    """

    task_id: str
    address: str = ""
    origin: str = ""
    traceparent: str = ""
    followers: str = ""
    took_s: float = 0.0

    @classmethod
    def of(
        cls,
        task_id: str,
        address: str,
        origin: str | Sequence[str] = "",
        traceparent: str = "",
        *_later: object,
    ) -> ReplyTo:
        """Return what is stored with a request; rows of an older version have less, of a later one more."""
        origin, followers = (origin, "") if isinstance(origin, str) else origin
        return cls(
            task_id=task_id, address=address, origin=origin, traceparent=traceparent, followers=followers
        )

    def stored(self) -> list[Any]:
        """Return it for the table. Followers are beside the origin, where the previous version reads
        past them: it still delivers the answer.
        """
        origin = [self.origin, self.followers] if self.followers else self.origin
        if self.traceparent:
            return [self.task_id, self.address, origin, self.traceparent]
        return [self.task_id, self.address, *([origin] if origin else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The row of one acquire."""

    pk: RequestPk
    org: OrgId
    request_id: str
    profile: ProfileName
    lease_s: int
    ttl_s: int | None
    wait_s: int
    state: RequestState
    reason: str | None = None
    detail: str | None = None
    retry_after_s: float | None = None
    claim_id: ClaimId | None = None
    attempts: int = 0
    created_at: datetime
    deadline_at: datetime
    decided_at: datetime | None = None
    replied_at: datetime | None = None
    replies: tuple[ReplyTo, ...] = ()

    @property
    def origin(self) -> str | None:
        """The program that sent the request last, as it names itself."""
        return next((to.origin for to in reversed(self.replies) if to.origin), None)

    @property
    def traceparent(self) -> str:
        """The trace that the request was sent in last, or an empty string."""
        return next((to.traceparent for to in reversed(self.replies) if to.traceparent), "")
