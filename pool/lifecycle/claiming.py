"""Acquire, renew, release, cancel: what services ask, one call or many in one statement and one commit. Each may be repeated by any caller at any time;
the rules in the database (`pool/store/sql`) decide."""

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

# A message that renews more than this would hold up those that are served with it, so it is served alone.
MOST_RENEWALS_TOGETHER = 200
# The first, one for those that are to wait, one for those of orgs that were made meanwhile, and one more.
_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """An acquire, and where its answer goes."""

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
            "reply": [self.reply.task_id, self.reply.address],
        }


Call = Asking | Release | Renew | Cancel
Answer = Granted | RefusedAnswer | Pending
# None: undecided, since another transaction has a row of it.
Decided = Answer | dict[str, Any] | None


class Patience(Enum):
    """Whether a call waits for rows that another transaction has locked. Calls that are served together do not: one org's trouble would delay
    every other."""

    NONE = False
    ROWS = True


def acquire(deps: Deps, asked: Acquire, reply: ReplyTo) -> Answer:
    """A worker, a refusal, or a wait that is decided later."""
    return cast("Answer", patiently(deps, Asking(asked=asked, reply=reply)))


def renew(deps: Deps, asked: Renew) -> dict[str, Any]:
    """Extend the leases of all that live; the cause of each end for those that do not."""
    return cast("dict[str, Any]", patiently(deps, asked))


def release(deps: Deps, asked: Release) -> dict[str, Any]:
    """End a claim; repeating it is harmless. If the worker cannot be parked or drained now, the wish is kept and reap carries it out."""
    try:
        return cast("dict[str, Any]", patiently(deps, asked))
    except (Transient, BrokenPromise) as exc:
        deps.metrics.park_failures.inc()
        log.warning("release_kept_for_the_pass", claim=asked.claim_id, cause=str(exc))
        with deps.store.write() as tx:
            claims.request_release(tx, asked.claim_id, asked.condition, asked.org)
        return {"outcome": "released"}


def cancel(deps: Deps, asked: Cancel) -> dict[str, Any]:
    """Withdraw a request that has no answer yet."""
    return cast("dict[str, Any]", patiently(deps, asked))


def patiently(deps: Deps, call: Call) -> Decided:
    """One call, waiting for rows that another transaction has locked, and all that follows from it."""
    (decided,), after = serve(deps, [call], patience=Patience.ROWS)
    effects.finish(deps, after)
    if decided is None:
        raise Transient("every attempt conflicted with another transaction")
    return decided


def time_out(deps: Deps, pk: RequestPk) -> bool:
    """Answer a waiter whose deadline is past; one that is not overdue by the database's clock is left alone."""
    found = rules.call(deps.store, "time_out", deps.asking(pks=[pk]))
    after = Effects()
    after.follow(found or {"events": ()})
    effects.finish(deps, after)
    return bool(after.decided)


def match(deps: Deps, profile: ProfileName) -> int:
    """Serve waiters of this profile with what is claimable. Returns how many were served."""
    found = rules.call(deps.store, "serve", deps.asking(match=[profile]))
    after = Effects()
    after.follow(found or {"events": ()})
    effects.finish(deps, after)
    return len(after.activate) + len(after.decided)


def holds_up(call: Call) -> bool:
    """Whether others that are served with it would wait for it."""
    return isinstance(call, Renew) and len(call.claim_ids) > MOST_RENEWALS_TOGETHER


def serve(
    deps: Deps, calls: Sequence[Call], where: Asks | None = None, *, patience: Patience = Patience.NONE
) -> tuple[list[Decided], Effects]:
    """What each call came to, in their order, and what is to follow. Raises as the store does; whether something was decided is then for the
    next try to find out, as after any lost answer."""
    serving = _Serving(deps=deps, where=where or deps.store, patience=patience)
    return serving.decide(calls), serving.effects


@dataclass(slots=True, kw_only=True)
class _Serving:
    """One batch on its way. Most are decided in the first round; the others are asked once more for the cause that the rule names."""

    deps: Deps
    where: Asks
    patience: Patience
    effects: Effects = field(default_factory=Effects)
    decided: list[Decided] = field(default_factory=list)
    made: set[OrgId] = field(default_factory=set)
    alone: bool = False

    def decide(self, calls: Sequence[Call]) -> list[Decided]:
        self.decided = [None] * len(calls)
        began = self.deps.clock.monotonic()
        todo = [n for n, call in enumerate(calls) if not self._is_known_in_vain(n, call)]
        for _ in range(_ROUNDS):
            if not todo:
                break
            todo = self._round(calls, todo)
        took_s = self.deps.clock.monotonic() - began
        for call, answer in zip(calls, self.decided, strict=True):
            if isinstance(call, Asking) and answer is not None:
                self.effects.phases.append(("claim", took_s))
                if isinstance(answer, Granted | RefusedAnswer):
                    self.effects.answered.append((call.asked.profile, answer, took_s))
        return self.decided

    def _is_known_in_vain(self, n: int, call: Call) -> bool:
        if not isinstance(call, Asking) or self.deps.profile(call.asked.profile) is not None:
            return False
        known = ", ".join(sorted(self.deps.settings.profiles))
        detail = f"profile {call.asked.profile!r} does not exist; the profiles are {known}"
        self.decided[n] = RefusedAnswer(reason=Reason.UNKNOWN_PROFILE, detail=detail)
        return True

    def _round(self, calls: Sequence[Call], todo: Sequence[int]) -> list[int]:
        """Ask for these; those that are to be asked for once more."""
        asked: dict[str, list[Any]] = {"release": [], "cancel": [], "renew": [], "acquire": []}
        for n in todo:
            match calls[n]:
                case Asking() as call:
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
            self.deps.asking(patient=self.patience.value, alone=self.alone, **given),
        )
        if found is None:
            raise BrokenPromise("the database function that serves calls returned nothing")
        self.effects.follow(found)
        places = {kind: iter(found[kind] or ()) for kind in asked}
        return [n for n in todo if not self._told(n, calls[n], places)]

    def _told(self, n: int, call: Call, places: dict[str, Iterator[Any]]) -> bool:
        """Take over the answer to one call; False if it is to be asked for once more."""
        if isinstance(call, Asking):
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
            case "unknown_org" if self._makes(asked.org):
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

    def _makes(self, org: OrgId) -> bool:
        """Create an org that does not exist, if the settings allow it."""
        if not self.deps.settings.orgs_auto_create:
            return False
        if org not in self.made:
            with self.deps.store.write() as tx:
                orgs.seed(tx, org, self.deps.settings.orgs.get(org, OrgDefaults()))
            self.made.add(org)
        return True


def _renewed(call: Renew, found: Sequence[list[Any] | None]) -> dict[str, Any] | None:
    """One claim that another transaction has locked leaves the whole call undecided; renewing the others once more is harmless."""
    answers = {c: each for c, each in zip(call.claim_ids, found, strict=True) if each is not None}
    if len(answers) < len(call.claim_ids):
        return None
    leases = {c: (until, why) for c, (until, why) in answers.items() if until is not None}
    leaving = {c: why for c, (_, why) in leases.items() if why is not None}
    answer: dict[str, Any] = {
        "renewed": {c: instant(answering.instant_of(until)) for c, (until, _) in leases.items()},
        "gone": {c: why for c, (until, why) in answers.items() if until is None},
    }
    return answer | ({"leaving": leaving} if leaving else {})
