DROP FUNCTION warmpool_claim(text, text, text, text, integer, integer, integer, text, text, boolean, text, text)
;;
CREATE FUNCTION warmpool_claim(p_asked jsonb, p_who text) RETURNS jsonb LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  g record;
  o record;
  room integer;
  picked text[];
  any_counted boolean;
  capped text[] := '{}';  -- orgs whose row is locked here because their claims are counted
  wanting integer[] := '{}';  -- requests that no parked worker was found for
  taker integer[] := '{}';  -- requests, and at the same place
  taken text[] := '{}';  -- the worker of each
  granted jsonb;
  at timestamptz;
BEGIN
  IF EXISTS (SELECT 1 FROM pool WHERE paused) THEN RETURN '[]'; END IF;

  FOR g IN SELECT a.org, a.profile, array_agg(a.n ORDER BY a.n) AS ns FROM jsonb_to_recordset(p_asked) AS a(n integer, pk text, org text, request_id text, profile text, lease_s integer,
      ttl_s integer, wait_s integer, replies text, claim_id text, activates boolean, why text) GROUP BY a.org, a.profile LOOP
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
    taker := taker || g.ns[1:cardinality(coalesce(picked, '{}'))];
    wanting := wanting || g.ns[cardinality(coalesce(picked, '{}')) + 1:room];
  END LOOP;

  FOR g IN SELECT a.profile, array_agg(a.n ORDER BY a.n) AS ns FROM jsonb_to_recordset(p_asked) AS a(n integer, pk text, org text, request_id text, profile text, lease_s integer,
      ttl_s integer, wait_s integer, replies text, claim_id text, activates boolean, why text) WHERE a.n = ANY(wanting) GROUP BY a.profile LOOP
    room := cardinality(g.ns);
    SELECT array_agg(s.id) INTO picked FROM (
      SELECT w.id FROM workers w WHERE w.state = 'idle' AND w.profile = g.profile
        ORDER BY w.ready_at, w.id LIMIT room FOR UPDATE SKIP LOCKED) s;
    taken := taken || picked;
    taker := taker || g.ns[1:cardinality(coalesce(picked, '{}'))];
  END LOOP;
  IF cardinality(taken) = 0 THEN RETURN '[]'; END IF;
  at := (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock);

  -- In the order of the key, so that two batches with the same requests in them never wait for each other in a circle.
  WITH k AS MATERIALIZED (
    SELECT a.*, w.id AS worker_id, w.epoch + 1 AS epoch, w.endpoint, w.parked_counted, w.state = 'idle' AND a.activates AS binds,
        CASE WHEN w.state = 'hot_idle' THEN 'hot_idle' ELSE 'warm' END AS source, a.org = ANY(capped) AS counted
      FROM unnest(taker, taken) AS t(n, id) JOIN jsonb_to_recordset(p_asked) AS a(n integer, pk text, org text, request_id text, profile text, lease_s integer,
      ttl_s integer, wait_s integer, replies text, claim_id text, activates boolean, why text) ON a.n = t.n JOIN workers w ON w.id = t.id
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
END $$
;;
CREATE FUNCTION warmpool_release(p_asked jsonb, p_ttls jsonb, p_most_ttl_s integer, p_who text) RETURNS jsonb
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  g record;
  clear text[] := '{}';  -- profiles whose lock is ours and that nobody waits for
  free text[] := '{}';  -- orgs whose counters are not touched
  locked text[] := '{}';  -- orgs whose locks are ours
  ids text[];
  answers jsonb;
  t timestamptz;
BEGIN
  SELECT coalesce(jsonb_agg(jsonb_build_array(a.id, CASE WHEN c.id IS NULL THEN 'unknown_claim' ELSE 'already_released' END)), '[]')
    INTO answers FROM jsonb_to_recordset(p_asked) AS a(id text, why text) LEFT JOIN claims c ON c.id = a.id WHERE c.id IS NULL OR c.ended_at IS NOT NULL;

  -- Each lock in a statement of its own: what is read after it is not older than it.
  FOR g IN SELECT DISTINCT c.profile FROM claims c JOIN jsonb_to_recordset(p_asked) AS a(id text, why text) ON a.id = c.id WHERE c.ended_at IS NULL LOOP
    CONTINUE WHEN NOT pg_try_advisory_xact_lock_shared(hashtextextended(g.profile, 7));
    IF NOT EXISTS (SELECT 1 FROM requests r WHERE r.profile = g.profile AND r.state = 'waiting') THEN
      clear := clear || g.profile;
    END IF;
  END LOOP;
  IF cardinality(clear) = 0 THEN RETURN answers; END IF;
  FOR g IN SELECT c.org, bool_or(c.counted) AS counted FROM claims c JOIN jsonb_to_recordset(p_asked) AS a(id text, why text) ON a.id = c.id
      WHERE c.ended_at IS NULL GROUP BY c.org LOOP
    IF g.counted OR EXISTS (SELECT 1 FROM orgs WHERE id = g.org AND (hot_idle_floor > 0 OR hot_idle_cap > 0)) THEN
      CONTINUE WHEN g.counted AND NOT pg_try_advisory_xact_lock_shared(hashtextextended(g.org, 9));
      PERFORM 1 FROM orgs WHERE id = g.org FOR UPDATE SKIP LOCKED;
      IF FOUND THEN locked := locked || g.org; END IF;
    ELSE
      free := free || g.org;
    END IF;
  END LOOP;

  SELECT array_agg(s.id) INTO ids FROM (
    SELECT c.id FROM jsonb_to_recordset(p_asked) AS a(id text, why text) JOIN claims c ON c.id = a.id JOIN workers w ON w.id = c.worker_id AND w.claim_id = c.id
        JOIN requests r ON r.pk = c.request_pk AND r.claim_id = c.id AND r.state = 'granted'
      WHERE c.ended_at IS NULL AND c.hot_at IS NOT NULL AND NOT c.abandoned AND w.state = 'hot'
        AND c.profile = ANY(clear) AND (c.org = ANY(locked) OR (c.org = ANY(free) AND NOT c.counted))
        AND NOT EXISTS (SELECT 1 FROM rollouts u WHERE u.profile = w.profile AND u.revision <> w.revision)
      FOR UPDATE OF w, c, r SKIP LOCKED) s;
  IF ids IS NULL THEN RETURN answers; END IF;
  t := (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock);

  UPDATE requests r SET state = 'spent' FROM claims c WHERE c.id = ANY(ids) AND r.pk = c.request_pk;
  -- A worker is kept for the time that the call, else its org, else its profile says.
  WITH ended AS (
    UPDATE claims c SET ended_at = t, ended_why = a.why FROM jsonb_to_recordset(p_asked) AS a(id text, why text) WHERE a.id = c.id AND c.id = ANY(ids)
      RETURNING c.id, c.worker_id, c.org, c.profile, c.counted, c.ttl_s, c.ended_why),
  judged AS MATERIALIZED (
    SELECT e.*, e.org = ANY(locked) AND (o.hot_idle_floor > 0 OR o.hot_idle_cap > 0) AS counts_parked,
        CASE WHEN o.id IS NULL OR e.ended_why <> 'released' OR w.leaving_since IS NOT NULL OR NOT p_ttls ? e.profile THEN 0
          ELSE greatest(0, least(coalesce(e.ttl_s, o.hot_idle_ttl_s, (p_ttls ->> e.profile)::integer), p_most_ttl_s)) END AS keep_s
      FROM ended e JOIN workers w ON w.id = e.worker_id LEFT JOIN orgs o ON o.id = e.org),
  counted AS (
    UPDATE orgs o SET in_use = o.in_use - s.ended, parked = o.parked + s.parked FROM (
      SELECT j.org, count(*) FILTER (WHERE j.counted) AS ended, count(*) FILTER (WHERE j.keep_s > 0 AND j.counts_parked) AS parked
        FROM judged j WHERE j.counted OR j.counts_parked GROUP BY j.org) s
    WHERE o.id = s.org),
  moved AS (
    UPDATE workers w SET state = CASE WHEN j.keep_s > 0 THEN 'hot_idle' ELSE 'draining' END, state_since = t, epoch = w.epoch + 1,
        claim_id = NULL, hot_idle_since = CASE WHEN j.keep_s > 0 THEN t END,
        hot_idle_until = CASE WHEN j.keep_s > 0 THEN t + make_interval(secs => j.keep_s) END,
        parked_counted = j.keep_s > 0 AND j.counts_parked, moved_by = p_who, moved_why = j.ended_why
      FROM judged j WHERE w.id = j.worker_id)
  SELECT answers || jsonb_agg(jsonb_build_array(j.id, 'released', j.worker_id, j.profile, j.keep_s > 0,
      CASE WHEN j.counted THEN j.org END)) INTO answers FROM judged j;
  RETURN answers;
END $$
;;
CREATE FUNCTION warmpool_renew(p_ids jsonb) RETURNS jsonb LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  ids text[] := ARRAY(SELECT jsonb_array_elements_text(p_ids));
  live text[];
  renewed jsonb;
  gone jsonb;
  t timestamptz := (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock);
BEGIN
  SELECT coalesce(array_agg(s.id), '{}') INTO live FROM (
    SELECT c.id FROM claims c WHERE c.id = ANY(ids) AND c.ended_at IS NULL AND c.hot_at IS NOT NULL FOR UPDATE SKIP LOCKED) s;
  WITH made AS (
    UPDATE claims c SET lease_expires_at = t + make_interval(secs => c.lease_s) WHERE c.id = ANY(live)
      RETURNING c.id, c.lease_expires_at)
  SELECT coalesce(jsonb_agg(jsonb_build_array(m.id, m.lease_expires_at, CASE WHEN w.leaving_since IS NOT NULL
      THEN coalesce(w.leaving_why, '') END)), '[]') INTO renewed FROM made m LEFT JOIN workers w ON w.claim_id = m.id;
  SELECT coalesce(jsonb_agg(jsonb_build_array(i.id, CASE WHEN c.id IS NULL THEN 'unknown_claim'
      ELSE coalesce(c.ended_why, 'not_hot') END)), '[]') INTO gone
    FROM unnest(ids) AS i(id) LEFT JOIN claims c ON c.id = i.id
    WHERE i.id <> ALL(live) AND (c.id IS NULL OR c.ended_at IS NOT NULL OR c.hot_at IS NULL);
  RETURN jsonb_build_object('renewed', renewed, 'gone', gone);
END $$
;;
CREATE FUNCTION warmpool_serve(p jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  released jsonb := '[]';
  renewed jsonb;
  granted jsonb := '[]';
BEGIN
  IF p ? 'release' THEN released := warmpool_release(p -> 'release', p -> 'ttls', (p ->> 'most_ttl_s')::integer, p ->> 'who'); END IF;
  IF p ? 'renew' THEN renewed := warmpool_renew(p -> 'renew'); END IF;
  IF p ? 'acquire' THEN granted := warmpool_claim(p -> 'acquire', p ->> 'who'); END IF;
  RETURN jsonb_build_object('acquire', granted, 'release', released, 'renew', renewed);
END $$
