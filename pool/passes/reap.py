"""reap: what has had its time goes. Parked workers past their TTL, surplus, claims past their lease, overdue waiters, answers that
were decided but not delivered, releases that could not be finished, and pods whose deletion failed."""

from __future__ import annotations

from functools import partial

from pool.core import planning
from pool.core.contract import Release
from pool.core.ids import OrgId, ProfileName, RequestPk, WorkerId
from pool.core.periods import PERIODS_S
from pool.core.records import By, Claim, SeenWorker
from pool.core.states import ClaimEnd, Condition, MoveReason, Outcome, State
from pool.lifecycle import claiming, effects, retiring
from pool.lifecycle.effects import transaction
from pool.passes.running import Pass, Run
from pool.store import Tx, claims, clock_repair, orgs, requests, suspects, targets, workers
from pool.store.canaries import lane_is_open
from pool.store.suspects import SuspectKind

# An answer may be on its way from whoever decided it; a delete may be in a fleet worker's hands.
ANSWER_GRACE_S = 3.0
DELETE_GRACE_S = 15.0
# Answers that may fail in one run before the others are left to the next.
UNDELIVERED_PER_RUN = 3
# So many of those next in turn are looked at for their key; only if one is unknown, more.
LOOKED_AT = 20


def run(run: Run) -> None:
    """Everything, with lease expiry: only ever called for a tick that came through beat and Redis."""
    _send_canary(run)
    without_expiry(run)
    _expire_claims(run)


def without_expiry(run: Run) -> None:
    """The part that is right also while callers may be cut off from renewing."""
    _ahead_of_the_clock(run)
    _count_uncounted(run)
    _parked_past_end(run)
    _parked_above_cap(run)
    _idle_surplus(run)
    _past_their_age(run)
    _of_unknown_keys(run)
    _overdue_waiters(run)
    _unfinished_releases(run)
    _deletes_that_failed(run)
    _unreplied(run)


def _ahead_of_the_clock(run: Run) -> None:
    """The database's clock has stepped back: what was written before counts from now on."""
    if run.dry_run:
        return
    with run.deps.store.write() as tx:
        run.did("clock_restarted", clock_repair.count_from_now(tx, limit=run.limit))


def _parked_past_end(run: Run) -> None:
    with run.deps.store.read() as tx:
        found = workers.parked_past_end(tx, limit=run.limit + 1)
    for worker in run.bounded(found):
        by = run.deps.by(MoveReason.HOT_IDLE_TTL, f"parked for {worker.org} longer than its TTL")
        _drain(run, worker, by, above_floor=True)


def _parked_above_cap(run: Run) -> None:
    with run.deps.store.read() as tx:
        over = orgs.capped_parking(tx)
    for org in run.bounded(over):
        with run.deps.store.read() as tx:
            oldest = workers.oldest_parked(tx, org.id, limit=min(run.limit, org.parked - org.hot_idle_cap))
        detail = f"{org.id} has more parked workers than its hot-idle cap of {org.hot_idle_cap}"
        for worker in oldest:
            _drain(run, worker, run.deps.by(MoveReason.HOT_IDLE_CAP, detail), above_floor=True)


def _idle_surplus(run: Run) -> None:
    pool = run.deps.settings.pool
    for name, profile in run.deps.settings.profiles.items():
        # One moment: those who are taken are the oldest of those who were counted.
        with run.deps.store.snapshot() as tx:
            target = planning.clamped_target(targets.of(tx, profile), pool.max_workers)
            idle = workers.count_idle_since(tx, ProfileName(name), older_than_s=pool.surplus_ttl_s)
            most = min(planning.spare(idle, target), run.limit + 1)
            found = (
                workers.idle_since(tx, ProfileName(name), older_than_s=pool.surplus_ttl_s, limit=most)
                if most
                else []
            )
        detail = f"more than {target} workers were idle for {pool.surplus_ttl_s} s"
        for worker in run.bounded(found):
            _drain(run, worker, run.deps.by(MoveReason.SURPLUS, detail))


def _past_their_age(run: Run) -> None:
    limit_s = run.deps.settings.pool.max_age_s
    if not limit_s:
        return
    with run.deps.store.read() as tx:
        found = workers.older_than(tx, limit_s, limit=run.limit + 1)
    for worker in run.bounded(found):
        _drain(run, worker, run.deps.by(MoveReason.MAX_AGE, f"older than {limit_s} s"))


def _of_unknown_keys(run: Run) -> None:
    """Workers next in turn for which nobody can give a token any more. The newest worker tells which key is in use: a process that was left behind with the
    old one, or was given a wrong one, drains nothing."""
    with run.deps.store.read() as tx:
        if not _unknown_among_next(run, tx, LOOKED_AT):
            return
        newest = workers.newest_like(tx, run.deps.keys.suffix)
        unknown = _unknown_among_next(run, tx, run.limit)
    for worker in run.bounded([w for w in unknown if newest is not None and w.created_at < newest]):
        _drain(run, worker, run.deps.by(MoveReason.UNKNOWN_KEY))


def _unknown_among_next(run: Run, tx: Tx, limit: int) -> list[SeenWorker]:
    """Of so many that are next in turn, those whose key is not given here."""
    found = workers.parked_unlike(tx, run.deps.keys.suffixes, limit=limit)
    for name in run.deps.settings.profiles:
        found += workers.idle_since(tx, ProfileName(name), older_than_s=0, limit=limit)
    return [worker for worker in found if not run.deps.keys.knows(worker.id)]


def _overdue_waiters(run: Run) -> None:
    with run.deps.store.read() as tx:
        found = requests.overdue(tx, limit=run.limit + 1)
    for pk in run.bounded(found):
        run.step("waiter_timed_out", pk, partial(claiming.time_out, run.deps, pk))


def _unreplied(run: Run) -> None:
    with run.deps.store.read() as tx:
        found = requests.unreplied(tx, older_than_s=ANSWER_GRACE_S, limit=run.limit + 1)
    delivered: list[int] = []

    def deliver(pk: RequestPk) -> None:
        delivered.append(effects.deliver_unreplied(run.deps, pk))

    for pk in run.bounded(found):
        run.step("answer_delivered", pk, partial(deliver, pk))
        if delivered.count(0) >= UNDELIVERED_PER_RUN:
            return  # the broker is away, and each try takes its time


def _unfinished_releases(run: Run) -> None:
    with run.deps.store.read() as tx:
        found = claims.unfinished_releases(tx, limit=run.limit + 1)
    for claim in run.bounded(found):
        run.step("release_finished", claim.id, partial(_finish, run, claim))


def _finish(run: Run, claim: Claim) -> None:
    condition = Condition(claim.release_condition or Condition.TAINTED)
    claiming.patiently(run.deps, Release(claim_id=claim.id, condition=condition))


def _deletes_that_failed(run: Run) -> None:
    with run.deps.store.read() as tx:
        found = workers.undeleted(tx, older_than_s=DELETE_GRACE_S, limit=run.limit + 1)
    for worker in run.bounded(found):
        if run.acts("delete_sent_again"):
            run.deps.broker.send("pool.retire", worker_id=worker.id)
    _refusals_that_ended(run)


def _refusals_that_ended(run: Run) -> None:
    """A pod whose deletion was refused is told of until its row has ended."""
    with run.deps.store.read() as tx:
        told = suspects.subjects(tx, SuspectKind.REFUSED, retiring.REFUSED)
        ids = [WorkerId(subject.removeprefix(retiring.REFUSED)) for subject in told]
        rows = workers.get_many(tx, ids) if ids else {}
    over = [i for i in ids if (row := rows.get(i)) is None or row.state is not State.DRAINING]
    if over and run.acts("refusal_ended"):
        with run.deps.store.write() as tx:
            for worker_id in over:
                suspects.forget(tx, SuspectKind.REFUSED, f"{retiring.REFUSED}{worker_id}")


def _count_uncounted(run: Run) -> None:
    with run.deps.store.read() as tx:
        found = orgs.uncounted(tx)
    for org in run.bounded(found):
        run.step("org_recounted", org, partial(_recount, run, org))


def _recount(run: Run, org: OrgId) -> None:
    with run.deps.store.write() as tx:
        orgs.count_uncounted(tx, org)


def _expire_claims(run: Run) -> None:
    with run.deps.store.read() as tx:
        if not lane_is_open(tx, gap_s=2 * PERIODS_S["reap"]):
            return  # callers could not have renewed: nothing expires
        found = claims.expired(tx, limit=run.limit + 1)
    for claim in run.bounded(found):
        run.step("claim_expired", claim.id, partial(_expire, run, claim))


def _expire(run: Run, claim: Claim) -> None:
    """Its holder may still be using the worker, so it drains and is never parked."""
    with transaction(run.deps) as (tx, after):
        by = run.deps.by(MoveReason.LEASE_EXPIRED)
        ended = claims.end(tx, run.deps.asking(), claim.id, ClaimEnd.EXPIRED, by)
        after.follow(ended or {"events": ()})


def _send_canary(run: Run) -> None:
    if not run.dry_run:
        run.deps.broker.send("pool.canary")


def _drain(run: Run, worker: SeenWorker, by: By, *, above_floor: bool = False) -> None:
    def drain() -> None:
        with transaction(run.deps) as (tx, after):
            outcome = retiring.drain(tx, after, worker, by, above_floor=above_floor)
        if outcome is not Outcome.MOVED:
            run.actions["worker_drained"] -= 1

    run.step("worker_drained", worker.id, drain)


REAP = Pass(name="reap", run=run)
