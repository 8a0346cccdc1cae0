"""Activate a reserved worker: apply the org's configuration, with heartbeats in its row.

`hot` is committed before the caller gets its answer. If it fails, the worker is retired and its
request tries another worker.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from pool.core import profiles, tokens, tracecontext
from pool.core.errors import Refused, Transient
from pool.core.records import Held, SeenWorker
from pool.core.settings import Profile
from pool.core.states import ClaimEnd, MoveReason, Outcome, State
from pool.lifecycle import effects, item_errors, stamping
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import Effects, transaction
from pool.metrics.catalog import Item
from pool.store import Tx, claims, orgs, requests, rules, workers

log = structlog.get_logger(__name__)


def activate(deps: Deps, held: Held) -> Outcome:
    """Make the worker hot for its claim.

    A late or repeated delivery finds another epoch or a recent heartbeat and does nothing.
    """
    worker = _enter(deps, held)
    if worker is None:
        return Outcome.FENCED
    try:
        _prepare(deps, worker, held)
    except (Refused, Transient) as exc:
        return fail(deps, held, str(exc))
    except Exception as exc:  # noqa: BLE001 - its request gets another worker or a refusal
        cause = item_errors.record_skipped(deps.metrics, Item.ACTIVATION, held.worker_id, exc)
        return fail(deps, held, cause)
    found = rules.call(deps.store, "confirm", deps.rule_argument(claim_id=held.claim_id, patient=True))
    if found is None:
        return Outcome.FENCED
    after = Effects()
    after.follow(found)
    effects.finish(deps, after)
    return Outcome.MOVED


def _prepare(deps: Deps, worker: SeenWorker, held: Held) -> None:
    """Do what must be done before the worker is hot: stamp its pod, apply the configuration."""
    profile = deps.profile(worker.profile)
    if profile is None:
        raise Refused("unknown_profile", detail=f"profile {worker.profile} is no longer configured")
    if deps.settings.pool.protect_before_grant and not stamping.stamp(deps, worker.id):
        raise Transient("the pod could not be stamped")
    if profile.activation_path and worker.state is State.ACTIVATING:
        with _heartbeats(deps, held):
            _configure(deps, worker, held, profile)


def give_up(deps: Deps, held: Held, *, silent_for_s: int) -> Outcome:
    """Fail an activation that has no recent heartbeat.

    An activation that was resumed or has finished in the meantime is kept.
    """
    return _end(deps, held, f"no sign of life for {silent_for_s} s", silent_s=silent_for_s)


def fail(deps: Deps, held: Held, cause: str) -> Outcome:
    """Retire the worker. Its request gets another worker or is refused."""
    return _end(deps, held, cause)


def _end(deps: Deps, held: Held, cause: str, **unless: Any) -> Outcome:
    with transaction(deps) as (tx, after):
        by = deps.by(MoveReason.ACTIVATION_FAILED, cause)
        ended = claims.end(tx, deps.rule_argument(**unless), held.claim_id, ClaimEnd.ACTIVATION_FAILED, by)
        if ended is None:
            return Outcome.FENCED
        after.follow(ended)
        deps.metrics.activation_failures.labels(ended["events"][0]["profile"]).inc()
        log.warning("activation_failed", worker=held.worker_id, claim=held.claim_id, cause=cause)
    return Outcome.MOVED


def _enter(deps: Deps, held: Held) -> SeenWorker | None:
    """Start or resume the activation. Return None if it is not this process's turn."""
    with transaction(deps) as (tx, after):
        worker = workers.get_for_update(tx, held.worker_id)
        if worker is None or worker.epoch != held.epoch or worker.claim_id != held.claim_id:
            return None
        if worker.state is State.RESERVED:
            reason = MoveReason.ACTIVATING
            workers.move(tx, workers.Fence.on(worker), State.ACTIVATING, deps.by(reason))
            after.moved(worker.id, worker.state, State.ACTIVATING, reason)
        elif not _may_resume(tx, deps, worker, held):
            return None
        workers.record_heartbeat(tx, held)
        return workers.get(tx, held.worker_id)


def _may_resume(tx: Tx, deps: Deps, worker: SeenWorker, held: Held) -> bool:
    """Return whether a repeated delivery may resume the activation: it has no recent heartbeat, or
    only the stamp is missing.
    """
    if worker.state is State.HOT:
        claim = claims.get(tx, held.claim_id)
        return claim is not None and claim.lease_expires_at is None
    return worker.state is State.ACTIVATING and workers.is_silent(
        tx, worker.id, for_s=deps.settings.pool.activation_stuck_s
    )


def _configure(deps: Deps, worker: SeenWorker, held: Held, profile: Profile) -> None:
    with deps.store.read() as tx:
        org = None if worker.org is None else orgs.get(tx, worker.org)
        trace = _trace_of(tx, held)
    body = profiles.payload(
        profile,
        org=worker.org or "",
        claim_id=held.claim_id,
        worker_id=held.worker_id,
        values={} if org is None else org.values,
    )
    token = tokens.token(deps.worker_key(worker.id), held.claim_id, held.epoch)
    url = (worker.endpoint or "") + profile.activation_path
    budget_s = deps.settings.activation_budget_s(profile)
    headers = tokens.headers(held.claim_id, held.epoch, token) | trace
    deps.worker_api.activate(url, body, headers, budget_s)


def _trace_of(tx: Tx, held: Held) -> dict[str, str]:
    """Return the header with the trace of the request that the claim answers, if it has one."""
    claim = claims.get(tx, held.claim_id)
    request = None if claim is None else requests.get(tx, claim.request_pk)
    if request is None or not request.traceparent:
        return {}
    return {tracecontext.HEADER: request.traceparent}


@contextmanager
def _heartbeats(deps: Deps, held: Held) -> Iterator[None]:
    """Write a heartbeat to the worker's row every few seconds."""
    done = threading.Event()

    def beat() -> None:
        while not deps.clock.wait(done, deps.settings.pool.activation_heartbeat_s):
            try:
                with deps.store.write() as tx:
                    workers.record_heartbeat(tx, held)
            except Exception as exc:  # noqa: BLE001 - the next one may succeed
                log.warning("heartbeat_missed", worker=held.worker_id, cause=item_errors.cause_of(exc))

    thread = threading.Thread(target=beat, name=f"beat {held.worker_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
