"""The common case on Postgres: many calls in one function call, one round trip and one commit.

Fresh acquires with a worker at hand, releases that nobody waits for, renewals. Whatever is not such a case is left out of the answer
with nothing written, and the general path (`pool.claiming`) decides it. No lock is waited for, so one caller's trouble delays nobody else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from pool.contract import Acquire, Release, Renew
from pool.ids import ClaimId, OrgId, ProfileName, RequestPk, WorkerId
from pool.records import ReplyTo
from pool.states import ClaimEnd, Condition, Source
from pool.store.fastpath.serve_sql import FUNCTIONS

__all__ = [
    "FUNCTIONS",
    "Asks",
    "Batch",
    "Claimed",
    "Fresh",
    "Keeping",
    "Released",
    "Renewed",
    "Served",
    "key",
    "serve",
]

_CALL = "SELECT warmpool_serve(%s::jsonb)::text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """An acquire that may be new, with the ids that it may use."""

    asked: Acquire
    reply: ReplyTo
    pk: RequestPk
    claim_id: ClaimId
    activates: bool

    def as_json(self, number: int) -> dict[str, Any]:
        asked = self.asked
        return {
            "n": number,
            "pk": self.pk,
            "org": asked.org,
            "request_id": asked.request_id,
            "profile": asked.profile,
            "lease_s": asked.lease_s,
            "ttl_s": asked.ttl_s,
            "wait_s": asked.wait_s,
            "replies": json.dumps([[self.reply.task_id, self.reply.address]]),
            "claim_id": self.claim_id,
            "activates": self.activates,
            "why": f"claimed for {asked.org}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How long a released worker is kept if neither its call nor its org says so, by profile; and at most."""

    ttls_s: Mapping[str, int]
    most_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Calls that are served together."""

    who: str
    keeping: Keeping
    acquires: Sequence[Fresh] = ()
    releases: Sequence[Release] = ()
    renewals: Sequence[Renew] = ()

    def as_json(self) -> str:
        asked: dict[str, Any] = {"who": self.who}
        if self.acquires:
            asked["acquire"] = [fresh.as_json(n) for n, fresh in enumerate(self.acquires)]
        if self.releases:
            # One end for each claim, the first that asks for it.
            ends = {key(r.claim_id, r.org): r for r in reversed(self.releases)}
            asked["release"] = [
                {"id": r.claim_id, "why": _WHY[r.condition], **_shown(r.claim_id, r.org)}
                for r in ends.values()
            ]
            asked |= {"ttls": dict(self.keeping.ttls_s), "most_ttl_s": self.keeping.most_s}
        if self.renewals:
            claims = {key(c, r.org): (c, r.org) for r in self.renewals for c in r.claim_ids}
            asked["renew"] = [c if org is None else {"id": c, **_shown(c, org)} for c, org in claims.values()]
        return json.dumps(asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What an acquire was given. No lease yet: the worker still has to be activated."""

    worker_id: WorkerId
    claim_id: ClaimId
    epoch: int
    endpoint: str
    source: Source
    lease_expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """What a release came to. The worker is named if it was freed by this very call; `freed` is the org that has room again below its cap."""

    outcome: str
    worker_id: WorkerId | None = None
    profile: ProfileName | None = None
    parked: bool = False
    freed: OrgId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """Leases that go on, claims that are gone and why, and those of the former whose workers must leave; each by its `key`."""

    until: Mapping[str, datetime] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    leaving: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What was decided: acquires by their place in the batch, releases by their `key`. What is not here, the general path decides."""

    acquires: Mapping[int, Claimed] = field(default_factory=dict)
    releases: Mapping[str, Released] = field(default_factory=dict)
    renewals: Renewed = field(default_factory=Renewed)


def key(claim_id: ClaimId, org: OrgId | None) -> str:
    """What an answer about a claim is found by. Two orgs may name one claim in one batch; it is the claim of one of them at most."""
    return claim_id if org is None else f"{org}|{claim_id}"


def _shown(claim_id: ClaimId, org: OrgId | None) -> dict[str, str]:
    return {} if org is None else {"org": org, "key": key(claim_id, org)}


_WHY = {Condition.CLEAN: str(ClaimEnd.RELEASED), Condition.TAINTED: str(ClaimEnd.TAINTED)}


class Asks(Protocol):
    """A store, or a line to it."""

    def ask(self, statement: str, argument: str) -> str: ...


def serve(where: Asks, batch: Batch) -> Served:
    """Decide what can be decided at once."""
    found = json.loads(where.ask(_CALL, batch.as_json()))
    claimed = {n: _claimed(batch.acquires[n].claim_id, *rest) for n, *rest in found["acquire"]}
    released = {str(c): _released(*rest) for c, *rest in found["release"]}
    renewals = _renewed(**found["renew"]) if found["renew"] else Renewed()
    return Served(acquires=claimed, releases=released, renewals=renewals)


def _claimed(
    claim_id: ClaimId, worker_id: str, epoch: int, endpoint: str, source: str, until: str | None
) -> Claimed:
    return Claimed(
        worker_id=WorkerId(worker_id),
        claim_id=claim_id,
        epoch=epoch,
        endpoint=endpoint,
        source=Source(source),
        lease_expires_at=None if until is None else _instant(until),
    )


def _released(outcome: str, *freed: Any) -> Released:
    if not freed:
        return Released(outcome=outcome)
    worker_id, profile, parked, org = freed
    return Released(outcome=outcome, worker_id=worker_id, profile=profile, parked=parked, freed=org)


def _renewed(renewed: list[list[Any]], gone: list[list[str]]) -> Renewed:
    return Renewed(
        until={c: _instant(at) for c, at, _ in renewed},
        gone={c: why for c, why in gone},  # noqa: C416 - pairs come as lists
        leaving={c: why for c, _, why in renewed if why is not None},
    )


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
