"""Waiters get workers: in the transaction that frees or readies one, by the reconcile pass, and by whoever is about to wait. The org
with the least use for its weight comes first, ties by the oldest wait; within an org the oldest."""

from __future__ import annotations

from pool.after import After
from pool.contract import RefusedAnswer
from pool.deps import Deps
from pool.holding import begin
from pool.ids import OrgId, ProfileName
from pool.records import Claim, Request, Seen
from pool.states import Outcome, Reason, RequestState, State
from pool.store import Tx, lock_profile, lock_profile_shared, orgs, requests, workers
from pool.store.workers import PodFacts

_MOST_PER_CALL = 200


def match(tx: Tx, deps: Deps, after: After, profile: ProfileName) -> int:
    """Serve waiters of this profile with what is claimable, until one or the other runs out. How many were served."""
    served = 0
    while served < _MOST_PER_CALL and _serve_next(tx, deps, after, profile):
        served += 1
    return served


def offer(tx: Tx, deps: Deps, after: After, slot: Seen, pod: PodFacts) -> None:
    """A locked slot whose pod is ready: to a waiter if there is one, else it is warm."""
    lock_profile_shared(tx, slot.profile)
    # Asked first: to order those who wait takes longer, and nearly always nobody does.
    waiting = requests.queue(tx, slot.profile) if requests.anyone_waiting(tx, slot.profile) else []
    for queued in waiting:
        request = requests.next_of(tx, slot.profile, queued.org)
        claim = None if request is None else begin(tx, deps, after, slot, request, pod)
        if claim is not None:
            _tell(after, claim)
            return
    by = deps.by("ready")
    if workers.ready(tx, slot, pod, by) is Outcome.MOVED:
        after.moved(slot.id, slot.state, State.IDLE, by)


def serve(tx: Tx, deps: Deps, after: After, request: Request) -> Claim | None:
    """A worker for this very request: the org's own parked one, else a warm one. An org at its cap does not even look: a worker that
    is looked at is hidden from others meanwhile."""
    org = orgs.get(tx, request.org)
    if org is None or (org.cap and org.in_use >= org.cap):
        return None
    worker = workers.pick_parked(tx, request.org, request.profile) or workers.pick_idle(tx, request.profile)
    return None if worker is None else begin(tx, deps, after, worker, request)


def rebind(tx: Tx, deps: Deps, after: After, ended: Claim, *, cause: str) -> None:
    """The worker of a request that was being bound is no more: try another, a bounded number of times, then say so. Nobody is left who would
    hold another if the claim had been given back meanwhile."""
    pk = ended.request_pk
    request = requests.get(tx, pk)
    if request is None or request.state is not RequestState.BINDING:
        return
    if ended.abandoned:
        if requests.refuse(
            tx, pk, RefusedAnswer(reason=Reason.CANCELLED, detail="released before it was hot")
        ):
            after.answers.append(pk)
        return
    tries_left = request.attempts + 1 < deps.settings.pool.activation_tries
    if tries_left and requests.wait_again(tx, pk):
        claim = serve(tx, deps, after, request)
        if claim is not None:
            after.given.pop(
                pk, None
            )  # it was not locked when it was read: somebody may have asked the same since
            _tell(after, claim)
            return
        if request.wait_s > 0:
            after.untaken.add(request.profile)
            return  # it waits on, until its deadline
    answer = RefusedAnswer(reason=Reason.ACTIVATION_FAILED, detail=cause, retry_after_s=5.0)
    if requests.refuse(tx, pk, answer):
        after.answers.append(pk)


def recheck(deps: Deps, after: After, profile: ProfileName) -> None:
    """Somebody had a worker or a waiter of this profile locked and came to nothing with it, or sat down to wait without the profile's lock: a
    waiter and a worker may have missed each other. Whoever is sitting down is waited for; if that was not enough, so is whoever frees."""
    for lock in (lock_profile_shared, lock_profile):
        after.untaken.discard(profile)
        with deps.store.write() as tx:
            lock(tx, profile)
            match(tx, deps, after, profile)
        if profile not in after.untaken:
            return
    after.untaken.discard(profile)


def match_org(deps: Deps, after: After, org: OrgId) -> None:
    """The org has room again below its cap: its waiters may be served from what is warm. A transaction of its own per profile."""
    with deps.store.read() as tx:
        profiles = requests.profiles_waited_for(tx, org)
    for profile in profiles:
        recheck(deps, after, profile)


def _serve_next(tx: Tx, deps: Deps, after: After, profile: ProfileName) -> bool:
    """Only waiters for whom a worker was seen are locked: one that is looked at in vain is hidden from whoever has a worker for him. If
    somebody took that worker meanwhile, the profile is looked at again after this transaction."""
    for queued in requests.servable(tx, profile):
        request = requests.next_of(tx, profile, queued.org)
        if request is None:
            continue
        worker = workers.pick_parked(tx, request.org, profile) or workers.pick_idle(tx, profile)
        claim = None if worker is None else begin(tx, deps, after, worker, request)
        if claim is not None:
            _tell(after, claim)
            return True
        after.untaken.add(profile)
    return False


def _tell(after: After, claim: Claim) -> None:
    """A claim whose lease runs is an answer; one that is still being bound is not yet."""
    if claim.lease_expires_at is not None:
        after.answers.append(claim.request_pk)
