"""What follows a committed transaction: messages, answers, metrics.

All of it can be lost with the process; a pass finds in the table what was not done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from pool.core.contract import Granted, RefusedAnswer
from pool.core.errors import Transient
from pool.core.ids import ClaimId, ProfileName, RequestPk, WorkerId
from pool.core.records import Held
from pool.core.states import ClaimEnd, MoveReason, Source, State
from pool.lifecycle import answering, item_errors
from pool.lifecycle.answering import Decision
from pool.lifecycle.deps import Deps
from pool.metrics import Metrics
from pool.metrics.catalog import Item
from pool.store import Tx, audit, requests, rules

log = structlog.get_logger(__name__)

UNDELIVERABLE = "answer_undeliverable"
# How often profiles are matched again before it is left to the reconcile pass.
_REMATCHES = 2


@dataclass(frozen=True, slots=True)
class Move:
    """A worker's move, as in the journal."""

    worker_id: WorkerId
    frm: State
    to: State
    reason: MoveReason
    detail: str


@dataclass(slots=True)
class Effects:
    """Effects that a transaction collects. They are carried out after the commit."""

    decided: list[Decision] = field(default_factory=list)
    activate: list[Held] = field(default_factory=list)
    stamp: list[WorkerId] = field(default_factory=list)
    retire: list[WorkerId] = field(default_factory=list)
    spawn: list[WorkerId] = field(default_factory=list)
    refill: set[ProfileName] = field(default_factory=set)
    # Profiles whose waiters and workers may have missed each other.
    again: set[ProfileName] = field(default_factory=set)
    moves: list[Move] = field(default_factory=list)
    ended: list[ClaimEnd] = field(default_factory=list)
    waits: list[ProfileName] = field(default_factory=list)
    # Answered acquires: the profile, the answer, and the seconds it took.
    answered: list[tuple[ProfileName, Granted | RefusedAnswer, float]] = field(default_factory=list)
    # Finished phases of acquires, and the seconds they took.
    phases: list[tuple[str, float]] = field(default_factory=list)

    def moved(self, worker_id: str, frm: str, to: str, reason: str, detail: str = "") -> None:
        self.moves.append(Move(WorkerId(worker_id), State(frm), State(to), MoveReason(reason), detail))

    def follow(self, found: Mapping[str, Any]) -> None:
        """Add the events that a rule returns, and the profiles that must be matched again."""
        self.again.update(map(ProfileName, found.get("again", ())))
        for event in found["events"]:
            match event["outcome"]:
                case "granted" | "binding":
                    self.begun(event)
                    if event["until"] is not None:
                        self.decided.append(answering.decision(event))
                case "refused":
                    self.decided.append(answering.decision(event))
                case "ended":
                    self._ended(event)
                case "again":
                    self.again.add(ProfileName(event["profile"]))
                case _:
                    self.moved(event["worker_id"], event["from"], event["to"], event["moved_reason"])

    def begun(self, event: Mapping[str, Any]) -> None:
        """Add the effects of a claim that has begun or become hot: stamp the pod or activate the
        worker, and refill if the worker was warm.
        """
        worker_id, profile = WorkerId(event["worker_id"]), ProfileName(event["profile"])
        if "from" in event:
            self.moved(worker_id, event["from"], event["to"], MoveReason.CLAIMED)
            if event["source"] == Source.WARM:
                self.refill.add(profile)
            if event["wait_s"] > 0:
                self.phases.append(("wait", max(0.0, event["waited_s"])))
        if "bound_s" in event:
            self.phases.append(("bind", max(0.0, event["bound_s"])))
        if event["until"] is not None:
            self.stamp.append(worker_id)
        else:
            self.activate.append(
                Held(worker_id=worker_id, claim_id=ClaimId(event["claim_id"]), epoch=event["epoch"])
            )

    def _ended(self, event: Mapping[str, Any]) -> None:
        worker_id = WorkerId(event["worker_id"])
        self.ended.append(ClaimEnd(event["why"]))
        self.moved(worker_id, event["from"], event["to"], event["moved_reason"], event["moved_detail"])
        if event["to"] == State.HOT_IDLE:
            self.stamp.append(worker_id)
            return
        if event["to"] == State.DRAINING:
            self.retire.append(worker_id)
        self.refill.add(ProfileName(event["profile"]))


@contextmanager
def transaction(deps: Deps) -> Iterator[tuple[Tx, Effects]]:
    """Run a transaction and, after its commit, carry out its effects.

    If the block raises, there are no effects.
    """
    effects = Effects()
    with deps.store.write() as tx:
        yield tx, effects
    finish(deps, effects)


def finish(deps: Deps, effects: Effects) -> None:
    """Carry out the effects of a committed transaction.

    A failure of one does not prevent the others.
    """
    rematch(deps, effects)
    send(deps, effects)
    if deps.keys.are_given:
        deliver(deps, effects.decided)


def rematch(deps: Deps, effects: Effects) -> None:
    """Match profiles again whose waiters and workers may have missed each other.

    The second attempt takes the profile's lock exclusively, so that all concurrent transactions
    have ended.
    """
    for alone in range(_REMATCHES):
        for profile in sorted(effects.again):
            effects.again.discard(profile)
            asked = deps.rule_argument(match=[profile], alone=bool(alone))
            try:
                found = rules.call(deps.store, "serve", asked)
            except Transient as exc:
                log.warning("matching_left_to_the_pass", profile=profile, cause=str(exc))
            except Exception as exc:  # noqa: BLE001 - one profile does not delay the answers
                item_errors.record_skipped(deps.metrics, Item.MATCH, profile, exc)
            else:
                effects.follow(found or {"events": ()})
    effects.again.clear()


def send(deps: Deps, effects: Effects) -> None:
    """Send the tasks, and count what was done."""
    for move in effects.moves:
        moved = {"frm": str(move.frm), "to": str(move.to), "reason": str(move.reason), "detail": move.detail}
        log.info("worker_moved", worker=move.worker_id, **moved)
    _count(deps.metrics, effects)
    for held in effects.activate:
        deps.broker.send("pool.activate", worker_id=held.worker_id, claim_id=held.claim_id, epoch=held.epoch)
    for task, worker_ids in (
        ("pool.stamp", effects.stamp),
        ("pool.retire", effects.retire),
        ("pool.spawn", effects.spawn),
    ):
        for worker_id in worker_ids:
            deps.broker.send(task, worker_id=worker_id)
    for profile in effects.refill:
        deps.broker.nudge(profile)


def _count(metrics: Metrics, effects: Effects) -> None:
    for move in effects.moves:
        metrics.moved(move.frm, move.to, move.reason)
    for why in effects.ended:
        metrics.claims_ended.labels(str(why)).inc()
    for profile in effects.waits:
        metrics.waits(profile)
    for phase, seconds in effects.phases:
        metrics.phase(phase, seconds)
    for profile, answer, seconds in effects.answered:
        metrics.answered(profile, answer, seconds)


@dataclass(slots=True)
class _Delivered:
    """Requests that are done, and the reason for each address to which no answer can be delivered."""

    done: list[RequestPk] = field(default_factory=list)
    undeliverable: list[tuple[str, str]] = field(default_factory=list)


def deliver(deps: Deps, decisions: Iterable[Decision]) -> int:
    """Deliver answers to every recorded address and mark them as delivered.

    Answers that fail in an outage are left to the pass `reap`; those that can never be delivered
    are marked with an audit entry. Return how many are done.
    """
    delivered = _Delivered()
    for decision in decisions:
        try:
            _deliver(deps, delivered, decision)
        except Transient as exc:
            log.warning("answer_left_to_the_pass", request=decision.pk, cause=str(exc))
        except Exception as exc:  # noqa: BLE001 - a retry would not help; deliver the others
            cause = item_errors.record_skipped(deps.metrics, Item.ANSWER, decision.pk, exc)
            delivered.undeliverable.append((f"request {decision.pk}", cause))
            delivered.done.append(decision.pk)
    if delivered.done:
        try:
            _mark(deps, delivered)
        except Transient as exc:
            log.warning("answers_unmarked", count=len(delivered.done), cause=str(exc))
    return len(delivered.done)


def deliver_unreplied(deps: Deps, pk: RequestPk) -> int:
    """Deliver an answer from the table.

    Return 0 if that failed or there is no answer. An unreadable row is marked as delivered, with an
    audit entry.
    """
    try:
        with deps.store.read() as tx:
            request = requests.get(tx, pk)
            found = None if request is None else answering.of_row(tx, request)
    except Transient:
        raise
    except Exception as exc:  # noqa: BLE001 - a retry would not help
        cause = item_errors.record_skipped(deps.metrics, Item.ANSWER, pk, exc)
        _mark(deps, _Delivered(done=[pk], undeliverable=[(f"request {pk}", cause)]))
        return 1
    return 0 if found is None else deliver(deps, [found])


def _deliver(deps: Deps, delivered: _Delivered, decision: Decision) -> None:
    answer = decision.answer(deps)
    wrong: list[tuple[str, str]] = []
    for to in decision.replies:
        try:
            deps.broker.reply(to, answer.as_dict())
        except Transient:
            raise
        except Exception as exc:  # noqa: BLE001 - the other addresses get their answer
            cause = item_errors.record_skipped(deps.metrics, Item.ANSWER, decision.pk, exc)
            wrong.append(
                (f"request {decision.pk}", f"task id {to.task_id!r}, address {to.address!r}: {cause}")
            )
    delivered.done.append(decision.pk)
    delivered.undeliverable += wrong
    if decision.waited_s is not None:
        deps.metrics.answered(decision.profile, answer, decision.waited_s)


def _mark(deps: Deps, delivered: _Delivered) -> None:
    with deps.store.write() as tx:
        requests.mark_replied(tx, delivered.done)
        for subject, why in delivered.undeliverable:
            audit.record(tx, UNDELIVERABLE, subject, who=deps.who, why=why)
