"""reap: end what is past its time.

Parked workers past their TTL, surplus, claims past their lease, overdue waiters, answers that were
not delivered, releases that were not finished, and pods whose deletion failed.
"""

from __future__ import annotations

from functools import partial

from pool.core import planning
from pool.core.contract import Release
from pool.core.ids import OrgId, ProfileName, RequestPk, WorkerId
from pool.core.periods import UNSEEN_GAP_S
from pool.core.records import By, Claim, SeenWorker
from pool.core.states import ClaimEnd, Condition, MoveReason, Outcome, State
from pool.lifecycle import claiming, effects, retiring
from pool.lifecycle.effects import transaction
from pool.passes.running import Pass, Run
from pool.store import Tx, claims, clock_repair, orgs, requests, suspects, targets, workers
from pool.store.canaries import lane_is_open
from pool.store.suspects import SuspectKind

# The process that decided an answer may still be delivering it; a fleet worker may still be
# deleting a pod.
ANSWER_GRACE_S = 3.0
DELETE_GRACE_S = 15.0
# Number of answers that may fail in one run before the others are left to the next run.
UNDELIVERED_PER_RUN = 3
# Number of workers next in order whose key is checked. More are checked only if one is unknown.
KEYS_CHECKED = 20


def run(run: Run) -> None:
    """Reap everything, including leases. Called only for a tick that came through beat and Redis."""
    _send_canary(run)
    without_expiry(run)
    _expire_claims(run)


def without_expiry(run: Run) -> None:
    """Reap everything but leases: this is correct even if callers cannot renew."""
    _repair_clock_step(run)
    _count_uncounted(run)
    _parked_past_end(run)
    _parked_above_cap(run)
    _idle_surplus(run)
    _over_max_age(run)
    _unknown_keys(run)
    _overdue_waiters(run)
    _unfinished_releases(run)
    _failed_deletes(run)
    _unreplied(run)


def _repair_clock_step(run: Run) -> None:
    """Repair times in the future after the database's clock has stepped back."""
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
        # One snapshot: the workers that are drained are the oldest of those that were counted.
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


def _over_max_age(run: Run) -> None:
    limit_s = run.deps.settings.pool.max_age_s
    if not limit_s:
        return
    with run.deps.store.read() as tx:
        found = workers.older_than(tx, limit_s, limit=run.limit + 1)
    for worker in run.bounded(found):
        _drain(run, worker, run.deps.by(MoveReason.MAX_AGE, f"older than {limit_s} s"))


def _unknown_keys(run: Run) -> None:
    """Drain the next workers in order for whose key this process cannot derive tokens.

    Only workers older than the newest worker of this process's key are drained: a process with an
    old or a wrong key drains nothing.
    """
    with run.deps.store.read() as tx:
        if not _unknown_among_next(run, tx, KEYS_CHECKED):
            return
        newest = workers.newest_like(tx, run.deps.keys.suffix)
        unknown = _unknown_among_next(run, tx, run.limit)
    for worker in run.bounded([w for w in unknown if newest is not None and w.created_at < newest]):
        _drain(run, worker, run.deps.by(MoveReason.UNKNOWN_KEY))


def _unknown_among_next(run: Run, tx: Tx, limit: int) -> list[SeenWorker]:
    """Return those of the next `limit` workers in order whose key this process does not have."""
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
            return  # the broker does not answer, and each attempt takes time


def _unfinished_releases(run: Run) -> None:
    with run.deps.store.read() as tx:
        found = claims.unfinished_releases(tx, limit=run.limit + 1)
    for claim in run.bounded(found):
        run.step("release_finished", claim.id, partial(_finish, run, claim))


def _finish(run: Run, claim: Claim) -> None:
    condition = Condition(claim.release_condition or Condition.TAINTED)
    claiming.serve_one(run.deps, Release(claim_id=claim.id, condition=condition))


def _failed_deletes(run: Run) -> None:
    with run.deps.store.read() as tx:
        found = workers.undeleted(tx, older_than_s=DELETE_GRACE_S, limit=run.limit + 1)
    for worker in run.bounded(found):
        if run.acts("delete_sent_again"):
            run.deps.broker.send("pool.retire", worker_id=worker.id)
    _ended_refusals(run)


def _ended_refusals(run: Run) -> None:
    """Delete the record of a refused pod deletion when the row has ended."""
    with run.deps.store.read() as tx:
        recorded = suspects.subjects(tx, SuspectKind.REFUSED, retiring.REFUSED)
        ids = [WorkerId(subject.removeprefix(retiring.REFUSED)) for subject in recorded]
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
        if not lane_is_open(tx, gap_s=UNSEEN_GAP_S):
            return  # callers could not have renewed: nothing expires
        found = claims.expired(tx, limit=run.limit + 1)
    for claim in run.bounded(found):
        run.step("claim_expired", claim.id, partial(_expire, run, claim))


def _expire(run: Run, claim: Claim) -> None:
    """End a claim whose lease has expired.

    The holder may still use the worker, so it drains and is never parked.
    """
    with transaction(run.deps) as (tx, after):
        by = run.deps.by(MoveReason.LEASE_EXPIRED)
        ended = claims.end(tx, run.deps.rule_argument(), claim.id, ClaimEnd.EXPIRED, by)
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
