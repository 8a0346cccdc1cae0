"""The beginning and the end of a claim, inside the caller's transaction: the only places where a worker gets or loses a holder.
Counters, claim, request and worker move together or not at all."""

from __future__ import annotations

from enum import StrEnum

from pool.after import After, Given
from pool.contract import RefusedAnswer
from pool.deps import Deps
from pool.errors import BrokenPromise
from pool.ids import ClaimId, ProfileName
from pool.records import By, Claim, Held, Org, Request, Seen
from pool.states import ClaimEnd, Condition, Outcome, Reason, Source, State
from pool.store import Tx, claims, lock_org_shared, orgs, requests, rollouts, workers
from pool.store.workers import Holder, PodFacts

_PARKS = frozenset({ClaimEnd.RELEASED, ClaimEnd.ABANDONED})


def begin(
    tx: Tx, deps: Deps, after: After, worker: Seen, request: Request, pod: PodFacts | None = None
) -> Claim | None:
    """Give a locked, claimable worker to a request. None, and nothing written: its org is at its cap, or its deadline is past."""
    org = orgs.get(tx, request.org)
    counted = None if org is None else orgs.take_claim(tx, org)
    if org is None or counted is None:
        return None
    held = Held(worker_id=worker.id, claim_id=deps.ids.claim(), epoch=worker.epoch + 1)
    to, leased = _entry(deps, worker)
    decide = requests.grant if leased else requests.bind
    if not decide(tx, request.pk, held.claim_id):
        if counted:
            orgs.give_claim(tx, org.id)
        return None
    by = deps.by(f"claimed for {org.id}")
    _must(workers.take(tx, worker, to, Holder(org=org.id, held=held), by, pod), worker, to)
    after.moved(worker.id, worker.state, to, by)
    if worker.parked_counted:
        orgs.give_park(tx, org.id)
    claim = claims.begin(
        tx,
        leased=leased,
        lease_s=request.lease_s,
        id=held.claim_id,
        worker_id=worker.id,
        org=org.id,
        profile=worker.profile,
        request_pk=request.pk,
        epoch=held.epoch,
        source=Source.HOT_IDLE if worker.state is State.HOT_IDLE else Source.WARM,
        ttl_s=request.ttl_s,
        counted=counted,
    )
    if leased:
        endpoint = worker.endpoint if pod is None else pod.endpoint
        after.given[request.pk] = Given(request=request, claim=claim, endpoint=endpoint)
    if request.wait_s > 0:
        after.took("wait", request.created_at, claim.created_at)
    follow(after, held, claim.profile, source=claim.source, leased=leased)
    return claim


def follow(after: After, held: Held, profile: ProfileName, *, source: Source, leased: bool) -> None:
    """What a new claim asks for: protection of its pod, or its activation; and a refill of what was warm."""
    if leased:
        after.stamp.append(held.worker_id)
    else:
        after.activate.append(held)
    if source is Source.WARM:
        after.refill.add(profile)


class Confirmed(StrEnum):
    """What became of a worker that was made hot."""

    SERVING = "serving"
    GIVEN_BACK = "given_back"
    FENCED = "fenced"


def confirm(tx: Tx, deps: Deps, after: After, held: Held) -> Confirmed:
    """The worker is hot: the lease starts and the request is answered. If its requester has gone, the worker is given back at once. Fenced:
    the claim had ended meanwhile."""
    worker = workers.get_for_update(tx, held.worker_id)
    if worker is None or worker.claim_id != held.claim_id:
        return Confirmed.FENCED
    if worker.state is State.ACTIVATING:
        by = deps.by("activated")
        _must(workers.move(tx, workers.Fence.on(worker), State.HOT, by), worker, State.HOT)
        after.moved(worker.id, worker.state, State.HOT, by)
    claim = claims.start_lease(tx, held.claim_id)
    if claim is None:
        return Confirmed.FENCED
    after.took("bind", claim.created_at, claim.hot_at)
    if not claim.abandoned and requests.grant(tx, claim.request_pk, claim.id):
        after.answers.append(claim.request_pk)
        after.stamp.append(worker.id)
        return Confirmed.SERVING
    if requests.refuse(
        tx, claim.request_pk, RefusedAnswer(reason=Reason.CANCELLED, detail="released before it was hot")
    ):
        after.answers.append(claim.request_pk)
    tainted = claim.release_condition == Condition.TAINTED
    end(tx, deps, after, claim.id, ClaimEnd.TAINTED if tainted else ClaimEnd.ABANDONED)
    return Confirmed.GIVEN_BACK


def end(
    tx: Tx,
    deps: Deps,
    after: After,
    claim_id: ClaimId,
    why: ClaimEnd,
    detail: str = "",
) -> Claim | None:
    """End a live claim and send its worker where the cause leads. None: it had ended before, so nothing was touched."""
    claim = claims.get(tx, claim_id)
    if claim is None or claim.ended_at is not None:
        return None
    if claim.counted:
        lock_org_shared(tx, claim.org)
    worker = workers.get_for_update(tx, claim.worker_id)
    ended = claims.end(tx, claim_id, why)
    if ended is None:
        return None
    if worker is None or worker.claim_id != claim_id:
        raise BrokenPromise(f"claim {claim_id} was live, but its worker is {worker}")
    if ended.counted:
        orgs.give_claim(tx, ended.org)
        after.freed.add(ended.org)
    requests.spend(tx, ended.request_pk, ended.id)
    after.ended.append(why)
    _send_off(tx, deps, after, worker, ended, deps.by(f"{why}: {detail}" if detail else str(why)))
    return ended


def _entry(deps: Deps, worker: Seen) -> tuple[State, bool]:
    """The state in which a claim enters, and whether its lease starts there."""
    protect = deps.settings.pool.protect_before_grant
    if worker.state is State.HOT_IDLE:
        return State.HOT, not protect
    profile = deps.profile(worker.profile)
    if protect or (profile is not None and profile.activation_path):
        return State.RESERVED, False
    return State.HOT, True


def _send_off(tx: Tx, deps: Deps, after: After, worker: Seen, claim: Claim, by: By) -> None:
    org = orgs.get(tx, claim.org)
    ttl_s = _ttl_s(deps, worker, claim, org)
    parks = (
        claim.ended_why in _PARKS and worker.state is State.HOT and worker.leaving_since is None and ttl_s > 0
    )
    if parks and rollouts.replaces(tx, worker.profile, worker.revision):
        parks, by = False, deps.by(f"{by.why}; {worker.image} is being replaced")
    if parks and org is not None:
        _must(workers.park(tx, worker, ttl_s, by, counted=orgs.take_park(tx, org)), worker, State.HOT_IDLE)
        after.moved(worker.id, worker.state, State.HOT_IDLE, by)
        after.stamp.append(worker.id)
        return
    to = State.LOST if claim.ended_why == ClaimEnd.WORKER_LOST else State.DRAINING
    _must(workers.leave(tx, worker, to, by), worker, to)
    after.moved(worker.id, worker.state, to, by)
    if to is State.LOST:
        orgs.give_slot(tx)
    else:
        after.retire.append(worker.id)
    after.refill.add(worker.profile)


def _ttl_s(deps: Deps, worker: Seen, claim: Claim, org: Org | None) -> int:
    profile = deps.profile(worker.profile)
    if profile is None:
        return 0  # a profile that was taken out of the configuration keeps nothing
    return deps.settings.ttl_s(profile, call=claim.ttl_s, org=None if org is None else org.hot_idle_ttl_s)


def _must(outcome: Outcome, worker: Seen, to: State) -> None:
    if outcome is not Outcome.MOVED:
        raise BrokenPromise(
            f"worker {worker.id} was locked as {worker.state} and could not move to {to}: {outcome}"
        )
