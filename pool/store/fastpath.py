"""The warm acquire on Postgres: one function call, one round trip, one commit.

It serves the common case only: a fresh request, nobody waiting for the profile, the org below its cap, a worker at hand.
In any other case it writes nothing and returns nothing, and the general path (`pool.claiming`) decides. The moves it makes
are those of `pool.holding.begin`; one contract suite runs over both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from pool.contract import Acquire
from pool.ids import ClaimId, RequestPk, WorkerId
from pool.records import By, ReplyTo
from pool.states import Source
from pool.store.engine import Store
from pool.store.sql import PG_NOW

FUNCTION = f"""CREATE FUNCTION warmpool_claim(
  p_pk text, p_org text, p_request_id text, p_profile text, p_lease_s integer, p_ttl_s integer, p_wait_s integer,
  p_replies text, p_claim_id text, p_activates boolean, p_who text, p_why text,
  OUT worker_id text, OUT epoch integer, OUT endpoint text, OUT source text, OUT lease_expires_at timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
  o record;
  w record;
  t timestamptz;
  bound boolean;
BEGIN
  IF EXISTS (SELECT 1 FROM pool WHERE paused)
    OR EXISTS (SELECT 1 FROM requests r WHERE r.profile = p_profile AND r.state = 'waiting') THEN RETURN; END IF;
  SELECT cap, in_use INTO o FROM orgs WHERE id = p_org;
  IF NOT FOUND OR (o.cap > 0 AND o.in_use >= o.cap) THEN RETURN; END IF;

  SELECT * INTO w FROM workers WHERE state = 'hot_idle' AND org = p_org AND profile = p_profile
    ORDER BY hot_idle_since DESC, id DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    SELECT * INTO w FROM workers WHERE state = 'idle' AND profile = p_profile
      ORDER BY ready_at, id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN; END IF;
  END IF;
  bound := w.state = 'idle' AND p_activates;
  t := {PG_NOW};

  INSERT INTO requests (pk, org, request_id, profile, lease_s, ttl_s, wait_s, state, claim_id, created_at, deadline_at,
      decided_at, replies)
    VALUES (p_pk, p_org, p_request_id, p_profile, p_lease_s, p_ttl_s, p_wait_s,
      CASE WHEN bound THEN 'binding' ELSE 'granted' END, p_claim_id, t, t + make_interval(secs => p_wait_s),
      CASE WHEN bound THEN NULL ELSE t END, p_replies)
    ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN RETURN; END IF;
  IF o.cap > 0 THEN
    UPDATE orgs SET in_use = in_use + 1 WHERE id = p_org AND in_use < cap;
    IF NOT FOUND THEN DELETE FROM requests WHERE pk = p_pk; RETURN; END IF;
  END IF;
  IF w.parked_counted THEN UPDATE orgs SET parked = parked - 1 WHERE id = p_org; END IF;

  source := CASE WHEN w.state = 'hot_idle' THEN 'hot_idle' ELSE 'warm' END;
  worker_id := w.id;
  epoch := w.epoch + 1;
  endpoint := w.endpoint;
  lease_expires_at := CASE WHEN bound THEN NULL ELSE t + make_interval(secs => p_lease_s) END;
  UPDATE workers SET state = CASE WHEN bound THEN 'reserved' ELSE 'hot' END, state_since = t, epoch = w.epoch + 1,
      org = p_org, claim_id = p_claim_id, heartbeat_at = t, hot_idle_since = NULL, hot_idle_until = NULL,
      parked_counted = false, moved_by = p_who, moved_why = p_why
    WHERE id = w.id;
  INSERT INTO claims (id, worker_id, org, profile, request_pk, epoch, source, lease_s, ttl_s, created_at, hot_at,
      lease_expires_at, counted)
    VALUES (p_claim_id, w.id, p_org, p_profile, p_pk, w.epoch + 1, warmpool_claim.source, p_lease_s, p_ttl_s, t,
      CASE WHEN bound THEN NULL ELSE t END, warmpool_claim.lease_expires_at, o.cap > 0);
END $$"""

_CALL = text(
    "SELECT worker_id, epoch, endpoint, source, lease_expires_at FROM warmpool_claim(:pk, :org, :request_id, :profile, "
    ":lease_s, :ttl_s, :wait_s, :replies, :claim_id, :activates, :who, :why)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What the fast path gave. No lease yet: the worker still has to be activated."""

    worker_id: WorkerId
    claim_id: ClaimId
    epoch: int
    endpoint: str
    source: Source
    lease_expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewIds:
    """The ids that the call may use."""

    pk: RequestPk
    claim_id: ClaimId


def claim(
    store: Store, asked: Acquire, reply: ReplyTo, ids: NewIds, *, activates: bool, by: By
) -> Claimed | None:
    """A worker for a fresh request, or None and nothing written."""
    values = {
        "pk": ids.pk,
        "org": asked.org,
        "request_id": asked.request_id,
        "profile": asked.profile,
        "lease_s": asked.lease_s,
        "ttl_s": asked.ttl_s,
        "wait_s": asked.wait_s,
        "replies": json.dumps([[reply.task_id, reply.address]]),
        "claim_id": ids.claim_id,
        "activates": activates,
        "who": by.who,
        "why": by.why,
    }
    with store.read() as tx:
        row = tx.execute(_CALL, values).one()
    if row.worker_id is None:
        return None
    return Claimed(
        worker_id=WorkerId(row.worker_id),
        claim_id=ids.claim_id,
        epoch=row.epoch,
        endpoint=row.endpoint,
        source=Source(row.source),
        lease_expires_at=row.lease_expires_at,
    )
