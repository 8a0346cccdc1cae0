"""What is to happen once a transaction has committed: messages and answers. All of it can be lost with the process; a pass
finds in the table what was not done."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import structlog

from pool.contract import Granted
from pool.deps import Deps
from pool.ids import OrgId, ProfileName, RequestPk, WorkerId
from pool.metrics import Metrics
from pool.records import By, Claim, Held, Request
from pool.states import ClaimEnd, State

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A grant as it was decided, so that it need not be read again to be told."""

    request: Request
    claim: Claim
    endpoint: str | None


@dataclass(slots=True)
class After:
    """Collected while the transaction runs, carried out after it."""

    answers: list[RequestPk] = field(default_factory=list)
    given: dict[RequestPk, Given] = field(default_factory=dict)
    activate: list[Held] = field(default_factory=list)
    stamp: list[WorkerId] = field(default_factory=list)
    retire: list[WorkerId] = field(default_factory=list)
    spawn: list[WorkerId] = field(default_factory=list)
    refill: set[ProfileName] = field(default_factory=set)
    freed: set[OrgId] = field(default_factory=set)
    untaken: set[ProfileName] = field(default_factory=set)
    moves: list[tuple[WorkerId, State, State, By]] = field(default_factory=list)
    ended: list[ClaimEnd] = field(default_factory=list)
    waits: list[ProfileName] = field(default_factory=list)
    # Acquires that have their answer: the profile, the answer, and the seconds it took.
    answered: list[tuple[ProfileName, Granted, float]] = field(default_factory=list)
    # Phases of acquires that are over, and the seconds they took.
    phases: list[tuple[str, float]] = field(default_factory=list)

    def moved(self, worker_id: WorkerId, frm: State, to: State, by: By) -> None:
        self.moves.append((worker_id, frm, to, by))

    def took(self, phase: str, since: datetime | None, until: datetime | None) -> None:
        """A phase of an acquire is over; both instants are the database's."""
        if since is not None and until is not None:
            self.phases.append((phase, max(0.0, (until - since).total_seconds())))

    def send(self, deps: Deps) -> None:
        """Send the work, and count what was done. Answers are delivered by `pool.answering`, which needs the table again."""
        for worker_id, frm, to, by in self.moves:
            log.info("worker_moved", worker=worker_id, frm=str(frm), to=str(to), why=by.why)
        self._count(deps.metrics)
        for held in self.activate:
            deps.broker.send(
                "pool.activate", worker_id=held.worker_id, claim_id=held.claim_id, epoch=held.epoch
            )
        for worker_id in self.stamp:
            deps.broker.send("pool.stamp", worker_id=worker_id)
        for worker_id in self.retire:
            deps.broker.send("pool.retire", worker_id=worker_id)
        for worker_id in self.spawn:
            deps.broker.send("pool.spawn", worker_id=worker_id)
        for profile in self.refill:
            deps.broker.nudge(profile)

    def _count(self, metrics: Metrics) -> None:
        """Once, however often this is sent."""
        for _, frm, to, by in self.moves:
            metrics.moved(frm, to, by.why)
        for why in self.ended:
            metrics.claims_ended.labels(str(why)).inc()
        for profile in self.waits:
            metrics.waits(profile)
        for phase, seconds in self.phases:
            metrics.phase(phase, seconds)
        for profile, answer, seconds in self.answered:
            metrics.answered(profile, answer, seconds)
        for counted in (self.moves, self.ended, self.waits, self.phases, self.answered):
            counted.clear()
