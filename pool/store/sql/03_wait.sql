-- Waiting: which requests wait, which is served next, and how a wait ends without a worker.

-- Return the number of live claims of an org.
CREATE FUNCTION warmpool_used(o orgs) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN (o).cap > 0 THEN (o).in_use
    ELSE (SELECT count(*) FROM claims k WHERE k.org = (o).id AND k.ended_at IS NULL) END
$$
;;
-- Return the rank of an org's next claim; the lowest is served first. Below the pool's cap (0) it is
-- the use divided by the weight. At the cap it is what that would be with the claim, so that the org
-- stays within its share. An org whose share is less than one worker would then never get one:
-- while it holds none, its rank falls each time that its first waiter is passed over.
CREATE FUNCTION warmpool_rank(p_used bigint, p_weight float8, p_passed integer, p_cap integer)
RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_cap = 0 THEN p_used / p_weight
    WHEN p_used = 0 THEN 1 / (p_weight * (1 + p_passed::float8 / p_cap))
    ELSE (p_used + 1) / p_weight END
$$
;;
-- Return the orgs that have an eligible waiter for a profile: not past its deadline, and the org
-- below its cap. They are in the order of service: lowest rank first, then the oldest wait. The
-- index is read once per org, so the cost does not depend on the number of waiters of an org.
-- `p_cap` is the pool's cap if the pool is at it, otherwise 0.
CREATE FUNCTION warmpool_line(p_profile text, p_at timestamptz, p_cap integer)
RETURNS TABLE (org text, usage float8, since timestamptz) LANGUAGE sql STABLE AS $$
  WITH RECURSIVE names AS (
    (SELECT q.org FROM requests q WHERE q.profile = p_profile AND q.state = 'waiting' ORDER BY q.org LIMIT 1)
    UNION ALL
    SELECT (SELECT q.org FROM requests q WHERE q.profile = p_profile AND q.state = 'waiting'
          AND q.org > n.org ORDER BY q.org LIMIT 1)
      FROM names n WHERE n.org IS NOT NULL)
  SELECT o.id, warmpool_rank(warmpool_used(o), o.weight, oldest.passed, p_cap), oldest.created_at
    FROM names n JOIN orgs o ON o.id = n.org CROSS JOIN LATERAL (
      SELECT q.created_at, q.passed FROM requests q
        WHERE q.profile = p_profile AND q.state = 'waiting' AND q.org = n.org AND q.deadline_at > p_at
        ORDER BY q.created_at, q.pk LIMIT 1) oldest
    WHERE o.cap = 0 OR o.in_use < o.cap
    ORDER BY 2, 3, 1
$$
;;
-- Return whether an eligible waiter exists for a profile. Without any waiter, the common case, this
-- reads one index entry.
CREATE FUNCTION warmpool_anyone_waits(p_profile text, p_at timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM requests q WHERE q.profile = p_profile AND q.state = 'waiting') THEN
    RETURN false;
  END IF;
  RETURN EXISTS (SELECT 1 FROM warmpool_line(p_profile, p_at, 0));
END $$
;;
-- Return whether an eligible waiter of this org exists for a profile. The org is below its cap.
CREATE FUNCTION warmpool_org_waits(p_org text, p_profile text, p_at timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (SELECT 1 FROM requests q WHERE q.profile = p_profile AND q.state = 'waiting'
    AND q.org = p_org AND q.deadline_at > p_at);
END $$
;;
-- Lock and return up to `p_most` eligible waiters of an org, oldest first. Rows that another
-- transaction has locked are skipped.
CREATE FUNCTION warmpool_next(p_org text, p_profile text, p_at timestamptz, p_most integer)
RETURNS requests[] LANGUAGE plpgsql AS $$
DECLARE
  found requests[];
BEGIN
  SELECT array_agg(s.q) INTO found FROM (
    SELECT q FROM requests q WHERE q.profile = p_profile AND q.state = 'waiting' AND q.org = p_org AND q.deadline_at > p_at
      ORDER BY q.created_at, q.pk LIMIT p_most FOR UPDATE SKIP LOCKED) s;
  RETURN coalesce(found, '{}');
END $$
;;
-- Grant locked workers to locked waiters.
CREATE FUNCTION warmpool_begin_waiters(c warmpool_call, p_grants warmpool_grant[]) RETURNS json[]
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE requests q SET state = g.state, claim_id = g.claim_id,
      decided_at = CASE WHEN NOT g.binds THEN c.at END, replied_at = NULL
    FROM unnest(p_grants) g WHERE q.pk = g.pk;
  RETURN warmpool_begin(c, p_grants);
END $$
;;
-- Return the grant of a locked worker to a locked waiter.
CREATE FUNCTION warmpool_pair(c warmpool_call, r requests, w warmpool_pick, o orgs)
RETURNS warmpool_grant LANGUAGE plpgsql AS $$
DECLARE
  binds boolean := warmpool_binds(c, w);
BEGIN
  RETURN ROW(r.pk, true, r.org, r.request_id, r.profile, r.lease_s, r.ttl_s, r.wait_s, r.created_at,
    r.replies,
    CASE WHEN binds THEN 'binding' ELSE 'granted' END, NULL, NULL, NULL, warmpool_id('c-'), o.cap > 0, binds,
    w.id, w.state, w.epoch + 1, w.endpoint, w.parked_counted)::warmpool_grant;
END $$
;;
-- Refuse a locked request.
CREATE FUNCTION warmpool_refuse(c warmpool_call, r requests, p_reason text, p_detail text,
  p_retry_after_s float8) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
  UPDATE requests SET state = 'refused', reason = p_reason, detail = p_detail,
      retry_after_s = p_retry_after_s, claim_id = NULL,
      decided_at = c.at, replied_at = NULL
    WHERE pk = r.pk;
  RETURN json_build_object('outcome', 'refused', 'pk', r.pk, 'reason', p_reason, 'detail', p_detail,
    'retry_after_s', p_retry_after_s,
    'profile', r.profile, 'waited_s', extract(epoch FROM c.at - r.created_at), 'replies', r.replies);
END $$
;;
-- Refuse those of the given waiters that are past their deadline.
CREATE FUNCTION warmpool_time_out(p jsonb) RETURNS json LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  c warmpool_call := warmpool_call(p);
  r requests;
  refused json[] := '{}';
BEGIN
  FOR r IN SELECT q.* FROM requests q WHERE q.pk = ANY (SELECT jsonb_array_elements_text(p -> 'pks')) AND q.state = 'waiting' AND q.deadline_at <= c.at
      ORDER BY q.pk FOR UPDATE LOOP
    refused := refused || warmpool_refuse(c, r, 'wait_timeout',
      format('no %s worker became available within %s s', r.profile, r.wait_s), 1.0);
  END LOOP;
  RETURN json_build_object('events', to_json(refused));
END $$
;;
-- Cancel a request that has no answer yet. A worker that is being bound for it is released when the
-- binding ends. Return no outcome if another transaction has locked one of its rows.
CREATE FUNCTION warmpool_cancel(c warmpool_call, p_org text, p_request_id text, OUT outcome text,
  OUT event json) LANGUAGE plpgsql AS $$
DECLARE
  r requests;
BEGIN
  SELECT * INTO r FROM requests q WHERE q.org = p_org AND q.request_id = p_request_id;
  IF NOT FOUND THEN
    outcome := 'unknown_request';
    RETURN;
  END IF;
  IF r.state = 'binding' THEN
    -- Lock the claim before its request, in the same order as the end of a claim.
    IF cardinality(warmpool_hold(c, ARRAY[r.claim_id])) = 0
        AND EXISTS (SELECT 1 FROM claims WHERE id = r.claim_id AND ended_at IS NULL) THEN
      RETURN;
    END IF;
  END IF;
  r := warmpool_lock_request(c, r.pk);
  IF r.pk IS NULL THEN
    RETURN;
  END IF;
  IF r.state NOT IN ('waiting', 'binding') THEN
    outcome := 'already_answered';
    RETURN;
  END IF;
  IF r.state = 'binding' THEN
    UPDATE claims SET abandoned = true, release_condition = 'clean' WHERE id = r.claim_id
      AND ended_at IS NULL;
  END IF;
  outcome := 'cancelled';
  event := warmpool_refuse(c, r, 'cancelled', 'cancelled by its caller', NULL);
END $$
