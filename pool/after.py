"""What is to happen once a transaction has committed: messages and answers. All of it can be lost with the process; a pass
finds in the table what was not done."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from pool.deps import Deps
from pool.ids import OrgId, ProfileName, RequestPk, WorkerId
from pool.records import By, Held
from pool.states import State

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class After:
    """Collected while the transaction runs, carried out after it."""

    answers: list[RequestPk] = field(default_factory=list)
    activate: list[Held] = field(default_factory=list)
    stamp: list[WorkerId] = field(default_factory=list)
    retire: list[WorkerId] = field(default_factory=list)
    spawn: list[WorkerId] = field(default_factory=list)
    refill: set[ProfileName] = field(default_factory=set)
    freed: set[OrgId] = field(default_factory=set)
    untaken: set[ProfileName] = field(default_factory=set)
    moves: list[tuple[WorkerId, State, State, By]] = field(default_factory=list)

    def moved(self, worker_id: WorkerId, frm: State, to: State, by: By) -> None:
        self.moves.append((worker_id, frm, to, by))

    def send(self, deps: Deps) -> None:
        """Send the work. Answers are delivered by `pool.answering`, which needs the table again."""
        for worker_id, frm, to, by in self.moves:
            log.info("worker_moved", worker=worker_id, frm=str(frm), to=str(to), why=by.why)
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
