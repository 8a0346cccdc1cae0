"""`warmpool_claim`: warm workers for many fresh requests in one statement.

It serves the common case only: a new request, nobody waiting for the profile, the org below its cap, a worker at hand. What is
not such a case it leaves out of its answer, with nothing written. It waits for no lock: a row that somebody else holds is skipped, so
that nobody's transaction can hold up a whole batch. The moves are those of `pool.holding.begin`; one contract suite runs over
both.
"""

from __future__ import annotations

from pool.store.sql import PG_NOW

# One plan for every size of batch. Not knowing the size, the planner might rather sort the table than walk the index; and what it thinks
# of a scan that it was told not to make would be reason enough for it to compile the query first.
PLANNED_ONCE = "SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off"

_ASKED = """jsonb_to_recordset(p_asked) AS a(n integer, pk text, org text, request_id text, profile text, lease_s integer,
      ttl_s integer, wait_s integer, replies text, claim_id text, activates boolean, why text)"""

FUNCTION = f"""CREATE FUNCTION warmpool_claim(p_asked jsonb, p_who text) RETURNS jsonb LANGUAGE plpgsql
{PLANNED_ONCE} AS $$
DECLARE
  g record;
  o record;
  room integer;
  picked text[];
  any_counted boolean;
  capped text[] := '{{}}';  -- orgs whose row is locked here because their claims are counted
  wanting integer[] := '{{}}';  -- requests that no parked worker was found for
  taker integer[] := '{{}}';  -- requests, and at the same place
  taken text[] := '{{}}';  -- the worker of each
  granted jsonb;
  at timestamptz;
BEGIN
  IF EXISTS (SELECT 1 FROM pool WHERE paused) THEN RETURN '[]'; END IF;

  FOR g IN SELECT a.org, a.profile, array_agg(a.n ORDER BY a.n) AS ns FROM {_ASKED} GROUP BY a.org, a.profile LOOP
    CONTINUE WHEN g.org = ANY(capped)
      OR EXISTS (SELECT 1 FROM requests r WHERE r.profile = g.profile AND r.state = 'waiting');
    SELECT cap > 0 OR hot_idle_floor > 0 OR hot_idle_cap > 0 AS counts, false AS locked INTO o FROM orgs WHERE id = g.org;
    CONTINUE WHEN NOT FOUND;
    room := cardinality(g.ns);
    IF o.counts THEN
      SELECT cap, in_use, true AS locked INTO o FROM orgs WHERE id = g.org FOR UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND;
      IF o.cap > 0 THEN
        capped := capped || g.org;
        room := least(room, o.cap - o.in_use);
        CONTINUE WHEN room <= 0;
      END IF;
    END IF;
    SELECT array_agg(s.id), coalesce(bool_or(s.parked_counted), false) INTO picked, any_counted FROM (
      SELECT w.id, w.parked_counted FROM workers w WHERE w.state = 'hot_idle' AND w.org = g.org AND w.profile = g.profile
        ORDER BY w.hot_idle_since DESC, w.id DESC LIMIT room FOR UPDATE SKIP LOCKED) s;
    CONTINUE WHEN any_counted AND NOT o.locked;
    taken := taken || picked;
    taker := taker || g.ns[1:cardinality(coalesce(picked, '{{}}'))];
    wanting := wanting || g.ns[cardinality(coalesce(picked, '{{}}')) + 1:room];
  END LOOP;

  FOR g IN SELECT a.profile, array_agg(a.n ORDER BY a.n) AS ns FROM {_ASKED} WHERE a.n = ANY(wanting) GROUP BY a.profile LOOP
    room := cardinality(g.ns);
    SELECT array_agg(s.id) INTO picked FROM (
      SELECT w.id FROM workers w WHERE w.state = 'idle' AND w.profile = g.profile
        ORDER BY w.ready_at, w.id LIMIT room FOR UPDATE SKIP LOCKED) s;
    taken := taken || picked;
    taker := taker || g.ns[1:cardinality(coalesce(picked, '{{}}'))];
  END LOOP;
  IF cardinality(taken) = 0 THEN RETURN '[]'; END IF;
  at := {PG_NOW};

  -- In the order of the key, so that two batches with the same requests in them never wait for each other in a circle.
  WITH k AS MATERIALIZED (
    SELECT a.*, w.id AS worker_id, w.epoch + 1 AS epoch, w.endpoint, w.parked_counted, w.state = 'idle' AND a.activates AS binds,
        CASE WHEN w.state = 'hot_idle' THEN 'hot_idle' ELSE 'warm' END AS source, a.org = ANY(capped) AS counted
      FROM unnest(taker, taken) AS t(n, id) JOIN {_ASKED} ON a.n = t.n JOIN workers w ON w.id = t.id
      ORDER BY a.org, a.request_id),
  made AS (
    INSERT INTO requests (pk, org, request_id, profile, lease_s, ttl_s, wait_s, state, claim_id, created_at, deadline_at,
        decided_at, replies)
      SELECT k.pk, k.org, k.request_id, k.profile, k.lease_s, k.ttl_s, k.wait_s, CASE WHEN k.binds THEN 'binding' ELSE 'granted' END,
        k.claim_id, at, at + make_interval(secs => k.wait_s), CASE WHEN k.binds THEN NULL ELSE at END, k.replies FROM k
    ON CONFLICT DO NOTHING RETURNING pk),
  f AS MATERIALIZED (
    SELECT k.*, CASE WHEN k.binds THEN NULL ELSE at + make_interval(secs => k.lease_s) END AS until FROM k JOIN made ON made.pk = k.pk),
  claimed AS (
    INSERT INTO claims (id, worker_id, org, profile, request_pk, epoch, source, lease_s, ttl_s, created_at, hot_at,
        lease_expires_at, counted)
      SELECT f.claim_id, f.worker_id, f.org, f.profile, f.pk, f.epoch, f.source, f.lease_s, f.ttl_s, at,
        CASE WHEN f.binds THEN NULL ELSE at END, f.until, f.counted FROM f),
  counting AS (
    UPDATE orgs b SET in_use = b.in_use + s.used, parked = b.parked - s.left_parking FROM (
      SELECT f.org, count(*) FILTER (WHERE f.counted) AS used, count(*) FILTER (WHERE f.parked_counted) AS left_parking
        FROM f WHERE f.counted OR f.parked_counted GROUP BY f.org) s
    WHERE b.id = s.org),
  moved AS (
    UPDATE workers w SET state = CASE WHEN f.binds THEN 'reserved' ELSE 'hot' END, state_since = at, epoch = f.epoch, org = f.org,
        claim_id = f.claim_id, heartbeat_at = at, hot_idle_since = NULL, hot_idle_until = NULL, parked_counted = false,
        moved_by = p_who, moved_why = f.why
      FROM f WHERE w.id = f.worker_id)
  SELECT coalesce(jsonb_agg(jsonb_build_array(f.n, f.worker_id, f.epoch, f.endpoint, f.source, f.until)), '[]') INTO granted FROM f;
  RETURN granted;
END $$"""
