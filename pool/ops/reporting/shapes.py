"""Rows as plain dicts, with times as text and ages in seconds: the JSON of the CLI and the board."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from pool.core.contract import instant
from pool.core.records import Claim, Org, Request, SeenWorker
from pool.store.audit import AuditEntry
from pool.store.journal import Entry


def entry(e: Entry) -> dict[str, Any]:
    """Return a journal entry."""
    return {**asdict(e), "at": instant(e.at)}


def deed(d: AuditEntry) -> dict[str, Any]:
    """Return an audit entry: an action that is not a move of a worker."""
    return {**asdict(d), "at": instant(d.at)}


def worker(w: SeenWorker, at: datetime) -> dict[str, Any]:
    """Return a worker's row. Its endpoint is no secret: the worker accepts only requests with a claim's
    token."""
    return {
        "id": w.id,
        "profile": w.profile,
        "state": str(w.state),
        "org": w.org,
        "claim_id": w.claim_id,
        "epoch": w.epoch,
        "node": w.node,
        "age_s": seconds(at - w.created_at),
        "in_state_s": seconds(at - w.state_since),
        "endpoint": w.endpoint,
        "pod_uid": w.pod_uid,
        "image": w.image,
        "revision": w.revision,
        "created_at": instant(w.created_at),
        "state_since": instant(w.state_since),
        "ready_at": maybe(w.ready_at),
        "hot_idle_until": maybe(w.hot_idle_until),
        "leaving_since": maybe(w.leaving_since),
        "leaving_reason": w.leaving_reason,
        "leaving_detail": w.leaving_detail,
    }


def claim(c: Claim, at: datetime, origin: str | None = None) -> dict[str, Any]:
    """Return a claim's row. `origin` is the program that holds it, as it names itself."""
    left = None if c.lease_expires_at is None else seconds(c.lease_expires_at - at)
    return {
        "id": c.id,
        "org": c.org,
        "worker_id": c.worker_id,
        "profile": c.profile,
        "epoch": c.epoch,
        "source": str(c.source),
        "lease_s": c.lease_s,
        "lease_left_s": left,
        "lease_expires_at": maybe(c.lease_expires_at),
        "ttl_s": c.ttl_s,
        "ended_at": maybe(c.ended_at),
        "ended_why": c.ended_why,
        "request_pk": c.request_pk,
        "origin": origin,
    }


def request(r: Request, at: datetime) -> dict[str, Any]:
    """Return a request's row, with the Celery tasks that made it."""
    return {
        "pk": r.pk,
        "org": r.org,
        "request_id": r.request_id,
        "profile": r.profile,
        "state": str(r.state),
        "waited_s": seconds((r.decided_at or at) - r.created_at),
        "wait_s": r.wait_s,
        "reason": r.reason,
        "detail": r.detail,
        "claim_id": r.claim_id,
        "attempts": r.attempts,
        "created_at": instant(r.created_at),
        "deadline_at": instant(r.deadline_at),
        "decided_at": maybe(r.decided_at),
        "replied_at": maybe(r.replied_at),
        "task_ids": [reply.task_id for reply in r.replies],
        "origin": r.origin,
        "traceparent": r.traceparent or None,
    }


def org(o: Org, *, in_use: int, parked: int) -> dict[str, Any]:
    """Return an org's row; `in_use` and `parked` are counted, because orgs without a cap have no counter."""
    return {
        "id": o.id,
        "in_use": in_use,
        "cap": o.cap,
        "weight": o.weight,
        "parked": parked,
        "hot_idle_floor": o.hot_idle_floor,
        "hot_idle_cap": o.hot_idle_cap,
        "hot_idle_ttl_s": o.hot_idle_ttl_s,
    }


def maybe(at: datetime | None) -> str | None:
    """Return a time as text; None if there is none."""
    return None if at is None else instant(at)


def seconds(delta: Any) -> float:
    """Return a time difference in seconds, rounded to milliseconds."""
    return round(float(delta.total_seconds()), 3)
