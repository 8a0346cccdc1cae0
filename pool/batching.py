"""The common case of what services ask, many calls at once: one statement, one commit. It decides what can be decided without waiting for
anybody and leaves the rest, with nothing written, to `pool.claiming`. On SQLite, where there is no such statement, that is everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pool import answering, holding
from pool.after import After
from pool.contract import Acquire, Granted, Pending, Release, Renew, instant
from pool.deps import Deps
from pool.records import Held, ReplyTo
from pool.states import ClaimEnd, Condition, Source, State
from pool.store import fastpath
from pool.store.fastpath import Asks, Batch, Claimed, Fresh, Keeping, Released, Renewed, Served

# A message that renews more than this would hold up those that are served with it, so it is served alone; and more than this are not
# renewed in one statement.
MOST_RENEWALS_TOGETHER = 200
MOST_RENEWALS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """An acquire, and where its answer goes."""

    asked: Acquire
    reply: ReplyTo


Call = Asking | Release | Renew
# None: nothing was decided, the general path does.
Decided = Granted | Pending | dict[str, Any] | None


def can_serve(deps: Deps, call: Call) -> bool:
    """Whether it is worth a try. With `protect_before_grant` every grant waits for a stamp."""
    if not deps.store.is_postgres:
        return False
    if isinstance(call, Asking):
        return not deps.settings.pool.protect_before_grant and deps.profile(call.asked.profile) is not None
    return not isinstance(call, Renew) or 0 < len(call.claim_ids) <= MOST_RENEWALS


def holds_up(call: Call) -> bool:
    """Whether others that are served with it would wait for it."""
    return isinstance(call, Renew) and len(call.claim_ids) > MOST_RENEWALS_TOGETHER


def serve(deps: Deps, calls: Sequence[Call], line: Asks | None = None) -> tuple[list[Decided], After]:
    """What each call came to, in their order, and what is to follow. Raises as the store does; whether something was decided is
    then for the general path to find out, as after any lost answer."""
    served = [call for call in calls if can_serve(deps, call)]
    after = After()
    if not served:
        return [None] * len(calls), after
    fresh = [_fresh(deps, call) for call in served if isinstance(call, Asking)]
    batch = Batch(
        who=deps.who,
        keeping=_keeping(deps),
        acquires=fresh,
        releases=[call for call in served if isinstance(call, Release)],
        renewals=[call for call in served if isinstance(call, Renew)],
    )
    began = deps.clock.monotonic()
    found = fastpath.serve(line or deps.store, batch)
    took_s = deps.clock.monotonic() - began
    decided = _told(deps, calls, fresh, found, after)
    for call, answer in zip(calls, decided, strict=True):
        if isinstance(call, Asking) and isinstance(answer, Granted | Pending):
            after.phases.append(("claim", took_s))
            if isinstance(answer, Granted):
                after.answered.append((call.asked.profile, answer, took_s))
    return decided, after


def _told(
    deps: Deps, calls: Sequence[Call], fresh: Sequence[Fresh], found: Served, after: After
) -> list[Decided]:
    decided: list[Decided] = []
    numbers = iter(range(len(fresh)))
    ended: set[str] = set()
    for call in calls:
        if not can_serve(deps, call):
            decided.append(None)
        elif isinstance(call, Asking):
            n = next(numbers)
            claimed = found.acquires.get(n)
            decided.append(None if claimed is None else _granted(deps, after, fresh[n], claimed))
        elif isinstance(call, Release):
            key = fastpath.key(call.claim_id, call.org)
            released = found.releases.get(key)
            decided.append(
                None if released is None else _released(deps, after, call, released, again=key in ended)
            )
            ended.add(key)
        else:
            decided.append(_renewed(call, found.renewals))
    return decided


def _fresh(deps: Deps, call: Asking) -> Fresh:
    profile = deps.profile(call.asked.profile)
    return Fresh(
        asked=call.asked,
        reply=call.reply,
        pk=deps.ids.request(),
        claim_id=deps.ids.claim(),
        activates=bool(profile and profile.activation_path),
    )


def _keeping(deps: Deps) -> Keeping:
    settings = deps.settings
    ttls = {name: settings.ttl_s(profile, call=None, org=None) for name, profile in settings.profiles.items()}
    return Keeping(ttls_s=ttls, most_s=settings.pool.hot_idle_ttl_max_s)


def _granted(deps: Deps, after: After, fresh: Fresh, claimed: Claimed) -> Granted | Pending:
    held = Held(worker_id=claimed.worker_id, claim_id=claimed.claim_id, epoch=claimed.epoch)
    leased = claimed.lease_expires_at is not None
    holding.follow(after, held, fresh.asked.profile, source=claimed.source, leased=leased)
    frm = State.HOT_IDLE if claimed.source is Source.HOT_IDLE else State.IDLE
    after.moved(
        held.worker_id,
        frm,
        State.HOT if leased else State.RESERVED,
        deps.by(f"claimed for {fresh.asked.org}"),
    )
    if not leased:
        return Pending(pk=fresh.pk, until_s=fresh.asked.wait_s)
    yes = answering.granted(deps, held, claimed.endpoint, claimed.lease_expires_at, claimed.source)
    return yes.numbered(fresh.pk)


def _released(deps: Deps, after: After, call: Release, released: Released, *, again: bool) -> dict[str, Any]:
    if again and released.outcome == "released":
        return {"outcome": "already_released"}
    if released.worker_id is not None:
        why = ClaimEnd.RELEASED if call.condition is Condition.CLEAN else ClaimEnd.TAINTED
        to = State.HOT_IDLE if released.parked else State.DRAINING
        after.ended.append(why)
        after.moved(released.worker_id, State.HOT, to, deps.by(str(why)))
    if released.freed is not None:
        after.freed.add(released.freed)
    if released.worker_id is not None and released.parked:
        after.stamp.append(released.worker_id)
    elif released.worker_id is not None:
        after.retire.append(released.worker_id)
        if released.profile is not None:
            after.refill.add(released.profile)
    return {"outcome": released.outcome}


def _renewed(call: Renew, found: Renewed) -> dict[str, Any] | None:
    """One claim that somebody else has in hand leaves the whole call undecided; renewing the others once more is harmless."""
    keys = {c: fastpath.key(c, call.org) for c in call.claim_ids}
    if any(key not in found.until and key not in found.gone for key in keys.values()):
        return None
    leaving = {c: found.leaving[key] for c, key in keys.items() if key in found.leaving}
    answer: dict[str, Any] = {
        "renewed": {c: instant(found.until[key]) for c, key in keys.items() if key in found.until},
        "gone": {c: found.gone[key] for c, key in keys.items() if key in found.gone},
    }
    return answer | ({"leaving": leaving} if leaving else {})
