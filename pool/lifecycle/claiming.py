"""Acquire, renew, release, cancel: one or many calls in one statement and one commit.

Any caller may repeat any of them at any time; the rules in the database (`pool/store/sql`) decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

import structlog

from pool.core.contract import Acquire, Cancel, Granted, Pending, RefusedAnswer, Release, Renew, instant
from pool.core.errors import BrokenPromise, Transient
from pool.core.ids import OrgId, ProfileName, RequestPk
from pool.core.records import ReplyTo
from pool.core.settings import OrgDefaults
from pool.core.states import Reason
from pool.lifecycle import answering, effects
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import Effects
from pool.store import claims, orgs, rules
from pool.store.rules import Asks

log = structlog.get_logger(__name__)

# A message that renews more claims than this would delay its whole batch, so it is decided alone.
MOST_RENEWALS_TOGETHER = 200
# One round for all, one for calls that must wait, one for orgs that were just created, and one
# spare.
_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireCall:
    """An acquire with its reply address."""

    asked: Acquire
    reply: ReplyTo

    def as_json(self) -> dict[str, Any]:
        asked = self.asked
        return {
            "org": asked.org,
            "profile": asked.profile,
            "request_id": asked.request_id,
            "lease_s": asked.lease_s,
            "ttl_s": asked.ttl_s,
            "wait_s": asked.wait_s,
            "reply": self.reply.stored(),
        }


Call = AcquireCall | Release | Renew | Cancel
Answer = Granted | RefusedAnswer | Pending
# None: undecided, because another transaction has locked one of its rows.
Decided = Answer | dict[str, Any] | None


class Patience(Enum):
    """Whether a call waits for rows that another transaction has locked.

    Calls in a batch do not wait, because locked rows of one org would delay all others.
    """

    NONE = False
    ROWS = True


def acquire(deps: Deps, asked: Acquire, reply: ReplyTo) -> Answer:
    """Return a worker, a refusal, or a wait that is decided later."""
    return cast("Answer", serve_one(deps, AcquireCall(asked=asked, reply=reply)))


def renew(deps: Deps, asked: Renew) -> dict[str, Any]:
    """Extend the leases of live claims. Return the cause of the end for the others."""
    return cast("dict[str, Any]", serve_one(deps, asked))


def release(deps: Deps, asked: Release) -> dict[str, Any]:
    """End a claim.

    Repeating it is harmless. If the worker cannot be parked or drained now, the request is recorded
    and the pass `reap` carries it out.
    """
    try:
        return cast("dict[str, Any]", serve_one(deps, asked))
    except (Transient, BrokenPromise) as exc:
        deps.metrics.park_failures.inc()
        log.warning("release_kept_for_the_pass", claim=asked.claim_id, cause=str(exc))
        with deps.store.write() as tx:
            claims.request_release(tx, asked.claim_id, asked.condition, asked.org)
        return {"outcome": "released"}


def cancel(deps: Deps, asked: Cancel) -> dict[str, Any]:
    """Cancel a request that has no answer yet."""
    return cast("dict[str, Any]", serve_one(deps, asked))


def serve_one(deps: Deps, call: Call) -> Decided:
    """Decide one call, waiting for rows that another transaction has locked, and carry out its effects."""
    (decided,), after = serve(deps, [call], patience=Patience.ROWS)
    effects.finish(deps, after)
    if decided is None:
        raise Transient("every attempt conflicted with another transaction")
    return decided


def time_out(deps: Deps, pk: RequestPk) -> bool:
    """Refuse a waiter past its deadline by the database's clock. Return whether it was refused."""
    found = rules.call(deps.store, "time_out", deps.rule_argument(pks=[pk]))
    after = Effects()
    after.follow(found or {"events": ()})
    effects.finish(deps, after)
    return bool(after.decided)


def match(deps: Deps, profile: ProfileName) -> int:
    """Grant claimable workers to waiters of this profile. Return the number of waiters served."""
    found = rules.call(deps.store, "serve", deps.rule_argument(match=[profile]))
    after = Effects()
    after.follow(found or {"events": ()})
    effects.finish(deps, after)
    return len(after.activate) + len(after.decided)


def is_large(call: Call) -> bool:
    """Return whether the call is too large to be decided together with others."""
    return isinstance(call, Renew) and len(call.claim_ids) > MOST_RENEWALS_TOGETHER


def serve(
    deps: Deps, calls: Sequence[Call], where: Asks | None = None, *, patience: Patience = Patience.NONE
) -> tuple[list[Decided], Effects]:
    """Decide calls in one batch.

    Return the answers, in the order of the calls, and the effects to carry out. Raises as the store
    does; a call may then have been decided, and the caller must retry it to find out.
    """
    serving = _Serving(deps=deps, where=where or deps.store, patience=patience)
    return serving.decide(calls), serving.effects


@dataclass(slots=True, kw_only=True)
class _Serving:
    """One batch in progress.

    Most calls are decided in the first round; the others are sent again for the reason that the
    rule returns.
    """

    deps: Deps
    where: Asks
    patience: Patience
    effects: Effects = field(default_factory=Effects)
    decided: list[Decided] = field(default_factory=list)
    created: set[OrgId] = field(default_factory=set)
    alone: bool = False

    def decide(self, calls: Sequence[Call]) -> list[Decided]:
        self.decided = [None] * len(calls)
        began = self.deps.clock.monotonic()
        todo = [n for n, call in enumerate(calls) if not self._refuse_unknown_profile(n, call)]
        for _ in range(_ROUNDS):
            if not todo:
                break
            todo = self._round(calls, todo)
        took_s = self.deps.clock.monotonic() - began
        for call, answer in zip(calls, self.decided, strict=True):
            if isinstance(call, AcquireCall) and answer is not None:
                self.effects.phases.append(("claim", took_s))
                if isinstance(answer, Granted | RefusedAnswer):
                    self.effects.answered.append((call.asked.profile, answer, took_s))
        return self.decided

    def _refuse_unknown_profile(self, n: int, call: Call) -> bool:
        if not isinstance(call, AcquireCall) or self.deps.profile(call.asked.profile) is not None:
            return False
        known = ", ".join(sorted(self.deps.settings.profiles))
        detail = f"profile {call.asked.profile!r} does not exist; the profiles are {known}"
        self.decided[n] = RefusedAnswer(reason=Reason.UNKNOWN_PROFILE, detail=detail)
        return True

    def _round(self, calls: Sequence[Call], todo: Sequence[int]) -> list[int]:
        """Send these calls to the rule. Return those that must be sent again."""
        asked: dict[str, list[Any]] = {"release": [], "cancel": [], "renew": [], "acquire": []}
        for n in todo:
            match calls[n]:
                case AcquireCall() as call:
                    asked["acquire"].append(call.as_json())
                case Release(claim_id=claim_id, org=org, condition=condition):
                    asked["release"].append([claim_id, org, condition])
                case Cancel(org=org, request_id=request_id):
                    asked["cancel"].append([org, request_id])
                case Renew(claim_ids=claim_ids, org=org):
                    asked["renew"].extend([c, org] for c in claim_ids)
        given = {kind: items for kind, items in asked.items() if items}
        found = rules.call(
            self.where,
            "serve",
            self.deps.rule_argument(patient=self.patience.value, alone=self.alone, **given),
        )
        if found is None:
            raise BrokenPromise("the database function that serves calls returned nothing")
        self.effects.follow(found)
        places = {kind: iter(found[kind] or ()) for kind in asked}
        return [n for n in todo if not self._store_answer(n, calls[n], places)]

    def _store_answer(self, n: int, call: Call, places: dict[str, Iterator[Any]]) -> bool:
        """Store the answer to one call. Return False if the call must be sent again."""
        if isinstance(call, AcquireCall):
            return self._acquired(n, call.asked, next(places["acquire"]))
        if isinstance(call, Renew):
            self.decided[n] = _renewed(call, [next(places["renew"]) for _ in call.claim_ids])
        else:
            outcome = next(places["release" if isinstance(call, Release) else "cancel"])
            self.decided[n] = None if outcome is None else {"outcome": outcome}
        return self.patience is Patience.NONE or self.decided[n] is not None

    def _acquired(self, n: int, asked: Acquire, found: dict[str, Any] | None) -> bool:
        match found and found["outcome"]:
            case None:
                return self.patience is Patience.NONE
            case "must_wait":
                self.alone = True
                return False
            case "unknown_org" if self._create_org(asked.org):
                return False
            case "unknown_org":
                detail = f"org {asked.org!r} does not exist; create it with `warmpool org set {asked.org}`"
                self.decided[n] = RefusedAnswer(reason=Reason.UNKNOWN_ORG, detail=detail)
            case "paused":
                self.decided[n] = RefusedAnswer(
                    reason=Reason.PAUSED, detail="an operator has paused the pool", retry_after_s=30.0
                )
            case _:
                self.decided[n] = self._decided(cast("dict[str, Any]", found))
        return True

    def _decided(self, found: dict[str, Any]) -> Answer:
        match found["outcome"]:
            case "waiting":
                self.effects.waits.append(ProfileName(found["profile"]))
            case "granted" | "binding":
                self.effects.begun(found)
            case _:
                pass
        if found["outcome"] in {"waiting", "open", "binding"}:
            return Pending(pk=found["pk"], until_s=found["wait_s"])
        return answering.of_event(self.deps, found)

    def _create_org(self, org: OrgId) -> bool:
        """Create an org that does not exist, if the settings allow it. Return whether it exists now."""
        if not self.deps.settings.orgs_auto_create:
            return False
        if org not in self.created:
            with self.deps.store.write() as tx:
                orgs.seed(tx, org, self.deps.settings.orgs.get(org, OrgDefaults()))
            self.created.add(org)
        return True


def _renewed(call: Renew, found: Sequence[list[Any] | None]) -> dict[str, Any] | None:
    """Return the answer to a renewal.

    If another transaction has locked one of its claims, the whole call is undecided; renewing the
    others again is harmless.
    """
    answers = {c: each for c, each in zip(call.claim_ids, found, strict=True) if each is not None}
    if len(answers) < len(call.claim_ids):
        return None
    leases = {c: each for c, each in answers.items() if each[0] is not None}
    told = {
        "leaving": {c: why for c, (_, why, _) in leases.items() if why is not None},
        "unhealthy": {c: why for c, (_, _, why) in leases.items() if why is not None},
    }
    answer: dict[str, Any] = {
        "renewed": {c: instant(answering.instant_of(until)) for c, (until, _, _) in leases.items()},
        "gone": {c: why for c, (until, why, _) in answers.items() if until is None},
    }
    return answer | {kind: workers for kind, workers in told.items() if workers}
