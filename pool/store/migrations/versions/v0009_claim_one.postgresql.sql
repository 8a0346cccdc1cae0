CREATE FUNCTION warmpool_claim_one(p jsonb, p_who text) RETURNS jsonb LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  asker text := p ->> 'org';
  shape text := p ->> 'profile';
  request text := p ->> 'pk';
  claim text := p ->> 'claim_id';
  lease integer := p ->> 'lease_s';
  ttl integer := p ->> 'ttl_s';
  wait integer := p ->> 'wait_s';
  o record;
  w record;
  came_from text := 'hot_idle';
  binds boolean := false;
  at timestamptz;
  until timestamptz;
BEGIN
  SELECT b.cap > 0 OR b.hot_idle_floor > 0 OR b.hot_idle_cap > 0 AS counts INTO o FROM orgs b WHERE b.id = asker
    AND NOT EXISTS (SELECT 1 FROM pool WHERE paused)
    AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.profile = shape AND r.state = 'waiting');
  IF NOT FOUND OR o.counts THEN RETURN NULL; END IF;

  SELECT x.id, x.epoch, x.endpoint, x.parked_counted INTO w FROM workers x
    WHERE x.state = 'hot_idle' AND x.org = asker AND x.profile = shape
    ORDER BY x.hot_idle_since DESC, x.id DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    SELECT x.id, x.epoch, x.endpoint, x.parked_counted INTO w FROM workers x
      WHERE x.state = 'idle' AND x.profile = shape
      ORDER BY x.ready_at, x.id LIMIT 1 FOR UPDATE SKIP LOCKED;
    came_from := 'warm';
    binds := (p ->> 'activates')::boolean;
  END IF;
  IF w.id IS NULL OR w.parked_counted THEN RETURN NULL; END IF;
  at := (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock);
  IF NOT binds THEN until := at + make_interval(secs => lease); END IF;

  INSERT INTO requests (pk, org, request_id, profile, lease_s, ttl_s, wait_s, state, claim_id, created_at, deadline_at, decided_at,
      replies)
    VALUES (request, asker, p ->> 'request_id', shape, lease, ttl, wait, CASE WHEN binds THEN 'binding' ELSE 'granted' END, claim, at,
      at + make_interval(secs => wait), CASE WHEN binds THEN NULL ELSE at END, p ->> 'replies')
    ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN RETURN NULL; END IF;
  INSERT INTO claims (id, worker_id, org, profile, request_pk, epoch, source, lease_s, ttl_s, created_at, hot_at, lease_expires_at,
      counted)
    VALUES (claim, w.id, asker, shape, request, w.epoch + 1, came_from, lease, ttl, at, CASE WHEN binds THEN NULL ELSE at END, until,
      false);
  UPDATE workers x SET state = CASE WHEN binds THEN 'reserved' ELSE 'hot' END, state_since = at, epoch = w.epoch + 1, org = asker,
      claim_id = claim, heartbeat_at = at, hot_idle_since = NULL, hot_idle_until = NULL, parked_counted = false, moved_by = p_who,
      moved_why = p ->> 'why'
    WHERE x.id = w.id;
  RETURN jsonb_build_array(jsonb_build_array((p ->> 'n')::integer, w.id, w.epoch + 1, w.endpoint, came_from, until));
END $$
;;
CREATE OR REPLACE FUNCTION warmpool_serve(p jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  released jsonb := '[]';
  renewed jsonb;
  granted jsonb;
BEGIN
  IF p ? 'release' THEN released := warmpool_release(p -> 'release', p -> 'ttls', (p ->> 'most_ttl_s')::integer, p ->> 'who'); END IF;
  IF p ? 'renew' THEN renewed := warmpool_renew(p -> 'renew'); END IF;
  IF p ? 'acquire' THEN
    IF jsonb_array_length(p -> 'acquire') = 1 THEN granted := warmpool_claim_one(p -> 'acquire' -> 0, p ->> 'who'); END IF;
    IF granted IS NULL THEN granted := warmpool_claim(p -> 'acquire', p ->> 'who'); END IF;
  END IF;
  RETURN jsonb_build_object('acquire', coalesce(granted, '[]'), 'release', released, 'renew', renewed);
END $$
