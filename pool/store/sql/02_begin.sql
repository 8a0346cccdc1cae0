-- The beginning of claims: the only place where a worker gets a holder. Workers, claims and
-- counters change together; the request is written before, in the same transaction.

-- Lock and return up to `p_most` parked workers of an org, last parked first. Rows that another
-- transaction has locked are skipped.
CREATE FUNCTION warmpool_pick_parked(p_org text, p_profile text, p_most integer)
RETURNS warmpool_pick[] LANGUAGE plpgsql AS $$
BEGIN
  RETURN ARRAY(SELECT ROW(w.id, w.profile, w.state, w.epoch, w.endpoint,
    w.parked_counted)::warmpool_pick FROM workers w
    WHERE w.state = 'hot_idle' AND w.org = p_org AND w.profile = p_profile
      ORDER BY w.hot_idle_since DESC, w.id DESC LIMIT p_most FOR UPDATE SKIP LOCKED);
END $$
;;
-- Lock and return up to `p_most` warm workers, longest ready first. Rows that another transaction
-- has locked are skipped.
CREATE FUNCTION warmpool_pick_warm(p_profile text, p_most integer) RETURNS warmpool_pick[]
LANGUAGE plpgsql AS $$
BEGIN
  RETURN ARRAY(SELECT ROW(w.id, w.profile, w.state, w.epoch, w.endpoint,
    w.parked_counted)::warmpool_pick FROM workers w
    WHERE w.state = 'idle' AND w.profile = p_profile
      ORDER BY w.ready_at, w.id LIMIT p_most FOR UPDATE SKIP LOCKED);
END $$
;;
-- Return whether a claim on this worker becomes hot later: after its activation, or after its pod
-- is stamped if grants wait for the stamp.
CREATE FUNCTION warmpool_binds(c warmpool_call, w warmpool_pick) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT (c.rules ->> 'protect')::boolean OR (w.state <> 'hot_idle' AND c.rules -> 'activates' ? w.profile)
$$
;;
-- Return when the lease of a grant ends; NULL while its worker is being bound.
CREATE FUNCTION warmpool_until(c warmpool_call, g warmpool_grant) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN NOT g.binds THEN c.at + make_interval(secs => g.lease_s) END
$$
;;
-- Return the state in which a worker begins its claim.
CREATE FUNCTION warmpool_enters(g warmpool_grant) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN g.binds AND g.worker_state <> 'hot_idle' THEN 'reserved' ELSE 'hot' END
$$
;;
-- Return the source of a grant's worker.
CREATE FUNCTION warmpool_source(g warmpool_grant) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN g.worker_state = 'hot_idle' THEN 'hot_idle' ELSE 'warm' END
$$
;;
-- Grant locked workers to requests. Their orgs are below their caps, and are locked if they have
-- counters. A lease starts when its worker is hot. Return the grants, in order.
CREATE FUNCTION warmpool_begin(c warmpool_call, p_grants warmpool_grant[]) RETURNS json[]
LANGUAGE plpgsql AS $$
DECLARE
  granted json[];
  g warmpool_grant;
  moved integer;
BEGIN
  FOREACH g IN ARRAY p_grants LOOP
    IF g.counted OR g.parked_counted THEN
      UPDATE orgs SET in_use = in_use + g.counted::int, parked = parked - g.parked_counted::int
        WHERE id = g.org;
    END IF;
    granted := granted || json_build_object('outcome', g.state, 'pk', g.pk, 'claim_id', g.claim_id,
      'worker_id', g.worker_id, 'epoch', g.epoch,
      'endpoint', g.endpoint, 'source', warmpool_source(g), 'until', warmpool_until(c, g),
      'org', g.org, 'profile', g.profile, 'ttl_s', g.ttl_s,
      'from', g.worker_state, 'to', warmpool_enters(g), 'wait_s', g.wait_s,
      'waited_s', extract(epoch FROM c.at - g.created_at), 'replies', g.replies);
  END LOOP;
  INSERT INTO claims (id, worker_id, org, profile, request_pk, epoch, source, lease_s, ttl_s,
      created_at, hot_at, lease_expires_at, counted)
    SELECT x.claim_id, x.worker_id, x.org, x.profile, x.pk, x.epoch, warmpool_source(x), x.lease_s,
        x.ttl_s, c.at, CASE WHEN NOT x.binds THEN c.at END,
        warmpool_until(c, x), x.counted
      FROM unnest(p_grants) x;
  UPDATE workers w SET state = warmpool_enters(x), state_since = c.at, epoch = x.epoch, org = x.org,
      claim_id = x.claim_id, heartbeat_at = c.at,
      hot_idle_since = NULL, hot_idle_until = NULL, parked_counted = false, moved_by = c.who,
      moved_reason = 'claimed', moved_detail = ''
    FROM unnest(p_grants) x WHERE w.id = x.worker_id AND w.profile = x.profile;
  GET DIAGNOSTICS moved = ROW_COUNT;
  IF moved < cardinality(p_grants) THEN
    RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'claim_has_its_workers_profile',
      MESSAGE = format('a request is given a worker of another profile: %s', to_json(granted));
  END IF;
  RETURN granted;
END $$
