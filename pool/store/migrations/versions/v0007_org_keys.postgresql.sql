CREATE TABLE org_keys (
	org TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	older_until TIMESTAMP WITH TIME ZONE, 
	changed_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	PRIMARY KEY (org)
)
;;
CREATE OR REPLACE FUNCTION warmpool_release(p_asked jsonb, p_ttls jsonb, p_most_ttl_s integer, p_who text) RETURNS jsonb
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
  SELECT coalesce(jsonb_agg(jsonb_build_array(coalesce(a.key, a.id), CASE WHEN c.id IS NULL THEN 'unknown_claim' ELSE 'already_released' END)), '[]')
    INTO answers FROM jsonb_to_recordset(p_asked) AS a(id text, why text, org text, key text) LEFT JOIN claims c ON a.id = c.id AND (a.org IS NULL OR a.org = c.org) WHERE c.id IS NULL OR c.ended_at IS NOT NULL;

  -- Each lock in a statement of its own: what is read after it is not older than it.
  FOR g IN SELECT DISTINCT c.profile FROM claims c JOIN jsonb_to_recordset(p_asked) AS a(id text, why text, org text, key text) ON a.id = c.id AND (a.org IS NULL OR a.org = c.org) WHERE c.ended_at IS NULL LOOP
    CONTINUE WHEN NOT pg_try_advisory_xact_lock_shared(hashtextextended(g.profile, 7));
    IF NOT EXISTS (SELECT 1 FROM requests r WHERE r.profile = g.profile AND r.state = 'waiting') THEN
      clear := clear || g.profile;
    END IF;
  END LOOP;
  IF cardinality(clear) = 0 THEN RETURN answers; END IF;
  FOR g IN SELECT c.org, bool_or(c.counted) AS counted FROM claims c JOIN jsonb_to_recordset(p_asked) AS a(id text, why text, org text, key text) ON a.id = c.id AND (a.org IS NULL OR a.org = c.org)
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
    SELECT c.id FROM jsonb_to_recordset(p_asked) AS a(id text, why text, org text, key text) JOIN claims c ON a.id = c.id AND (a.org IS NULL OR a.org = c.org) JOIN workers w ON w.id = c.worker_id AND w.claim_id = c.id
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
    UPDATE claims c SET ended_at = t, ended_why = a.why FROM jsonb_to_recordset(p_asked) AS a(id text, why text, org text, key text) WHERE a.id = c.id AND (a.org IS NULL OR a.org = c.org) AND c.id = ANY(ids)
      RETURNING coalesce(a.key, a.id) AS key, c.worker_id, c.org, c.profile, c.counted, c.ttl_s, c.ended_why),
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
  SELECT answers || jsonb_agg(jsonb_build_array(j.key, 'released', j.worker_id, j.profile, j.keep_s > 0,
      CASE WHEN j.counted THEN j.org END)) INTO answers FROM judged j;
  RETURN answers;
END $$
;;
CREATE OR REPLACE FUNCTION warmpool_renew(p_ids jsonb) RETURNS jsonb LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  keys text[];
  ids text[];
  asking text[];
  live text[];
  renewed jsonb;
  gone jsonb;
  t timestamptz := (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock);
BEGIN
  SELECT array_agg(coalesce(e.v ->> 'key', e.v #>> '{}')), array_agg(coalesce(e.v ->> 'id', e.v #>> '{}')), array_agg(e.v ->> 'org')
    INTO keys, ids, asking FROM jsonb_array_elements(p_ids) AS e(v);
  SELECT coalesce(array_agg(s.id), '{}') INTO live FROM (
    SELECT c.id FROM claims c WHERE c.id = ANY(ids) AND c.ended_at IS NULL AND c.hot_at IS NOT NULL
        AND EXISTS (SELECT 1 FROM unnest(ids, asking) AS a(id, org) WHERE a.id = c.id AND (a.org IS NULL OR a.org = c.org))
      FOR UPDATE SKIP LOCKED) s;
  WITH made AS (
    UPDATE claims c SET lease_expires_at = t + make_interval(secs => c.lease_s) WHERE c.id = ANY(live)
      RETURNING c.id, c.org, c.lease_expires_at)
  SELECT coalesce(jsonb_agg(jsonb_build_array(a.key, m.lease_expires_at, CASE WHEN w.leaving_since IS NOT NULL
      THEN coalesce(w.leaving_why, '') END)), '[]') INTO renewed
    FROM unnest(keys, ids, asking) AS a(key, id, org) JOIN made m ON m.id = a.id AND (a.org IS NULL OR a.org = m.org)
      LEFT JOIN workers w ON w.claim_id = m.id;
  SELECT coalesce(jsonb_agg(jsonb_build_array(a.key, CASE WHEN c.id IS NULL THEN 'unknown_claim'
      ELSE coalesce(c.ended_why, 'not_hot') END)), '[]') INTO gone
    FROM unnest(keys, ids, asking) AS a(key, id, org) LEFT JOIN claims c ON c.id = a.id AND (a.org IS NULL OR a.org = c.org)
    WHERE c.id IS NULL OR (c.id <> ALL(live) AND (c.ended_at IS NOT NULL OR c.hot_at IS NULL));
  RETURN jsonb_build_object('renewed', renewed, 'gone', gone);
END $$
