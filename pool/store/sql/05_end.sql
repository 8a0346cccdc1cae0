-- The end of claims: the only place where a worker loses its holder. Workers, claims, requests and
-- counters change together.

-- Return how a locked claim ends for a cause. A released worker is parked for the TTL of its
-- request, of its org or of its profile, in this order. It is not parked if it is leaving, is being
-- replaced, or if its profile is no longer configured.
CREATE FUNCTION warmpool_ends(c warmpool_call, h warmpool_held, p_why text, p_reason text,
  p_detail text) RETURNS warmpool_ending LANGUAGE plpgsql AS $$
DECLARE
  reason text := coalesce(p_reason, p_why);
  detail text := CASE WHEN p_reason IS NULL THEN '' ELSE p_detail END;
  keep_s integer := 0;
BEGIN
  IF p_why IN ('released', 'abandoned') AND h.state = 'hot' AND NOT h.leaves AND h.org_exists
      AND c.rules -> 'ttls' ? h.profile THEN
    keep_s := least(coalesce(h.ttl_s, h.org_ttl_s, (c.rules -> 'ttls' ->> h.profile)::integer),
      (c.rules ->> 'most_ttl_s')::integer);
  END IF;
  -- A worker that was released clean and is not parked moves for the reason of its mark, or because
  -- it is replaced.
  IF p_reason IS NULL AND h.leaves AND p_why IN ('released', 'abandoned') THEN
    reason := h.leaving_reason;
    detail := coalesce(h.leaving_detail, '');
  END IF;
  IF keep_s > 0 THEN
    IF EXISTS (SELECT 1 FROM rollouts u WHERE u.profile = h.profile AND u.revision <> h.revision
        AND u.proven_at IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM breakers b WHERE b.profile = u.profile)) THEN
      keep_s := 0;
      IF p_reason IS NULL THEN
        reason := 'rollout';
        detail := format('%s is being replaced', h.image);
      END IF;
    END IF;
  END IF;
  RETURN ROW(h.claim_id, h.worker_id, h.request_pk, h.org, p_why,
    CASE WHEN keep_s > 0 THEN 'hot_idle' WHEN p_why = 'worker_lost' THEN 'lost' ELSE 'draining' END,
    CASE WHEN keep_s > 0 THEN c.at + make_interval(secs => keep_s) END, h.counted,
    keep_s > 0 AND h.counts_parked, reason, detail)::warmpool_ending;
END $$
;;
-- End live claims whose rows are locked, and move their workers. At the pool's cap a released worker
-- is retired if its org must give way to others that wait. A request that was being bound
-- gets another worker, continues to wait, or is refused. `p_reason` is why the workers move; NULL:
-- their holders released them. Return the events.
CREATE FUNCTION warmpool_end(c warmpool_call, p_held warmpool_held[], p_why text[], p_reason text,
  p_detail text, p_cause text) RETURNS json[]
LANGUAGE plpgsql AS $$
DECLARE
  events json[];
  ends warmpool_ending[];
  e warmpool_ending;
  h warmpool_held;
  moved integer;
  given integer := 0;
BEGIN
  FOR n IN 1..cardinality(p_held) LOOP
    h := p_held[n];
    e := warmpool_ends(c, h, p_why[n], p_reason, p_detail);
    IF e.goes = 'hot_idle' AND c.anyone_waits AND warmpool_gives_way(c, e.org,
        1 + (SELECT count(*) FROM unnest(ends) x WHERE x.org = e.org AND NOT x.counted), 1, given) THEN
      given := given + 1;
      e.goes := 'draining';
      e.until := NULL;
      e.parked_counted := false;
      e.reason := 'gave_way';
      e.detail := format('org %s is ahead of its fair share', e.org);
    END IF;
    ends := ends || e;
    IF e.counted OR e.parked_counted THEN
      UPDATE orgs SET in_use = in_use - e.counted::int, parked = parked + e.parked_counted::int
        WHERE id = e.org;
    END IF;
    events := events || json_build_object('outcome', 'ended', 'claim_id', e.claim_id,
      'worker_id', e.worker_id, 'profile', h.profile, 'org', e.org,
      'why', e.why, 'from', h.state, 'to', e.goes, 'moved_reason', e.reason, 'moved_detail', e.detail);
  END LOOP;
  UPDATE claims k SET ended_at = c.at, ended_why = x.why FROM unnest(ends) x WHERE k.id = x.claim_id;
  UPDATE requests r SET state = 'spent' FROM unnest(ends) x WHERE r.pk = x.request_pk
    AND r.claim_id = x.claim_id AND r.state = 'granted';
  UPDATE workers w SET state = x.goes, state_since = c.at, epoch = w.epoch + 1, claim_id = NULL,
      hot_idle_since = CASE WHEN x.goes = 'hot_idle' THEN c.at END, hot_idle_until = x.until,
      parked_counted = x.parked_counted, moved_by = c.who, moved_reason = x.reason, moved_detail = x.detail
    FROM unnest(ends) x WHERE w.id = x.worker_id AND w.claim_id = x.claim_id;
  GET DIAGNOSTICS moved = ROW_COUNT;
  IF moved < cardinality(ends) THEN
    RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'one_live_worker_a_claim',
      MESSAGE = format('a live claim does not match its worker: %s', to_json(events));
  END IF;
  IF 'worker_lost' = ANY (p_why) THEN
    UPDATE pool SET live = live - cardinality(array_positions(p_why, 'worker_lost'));
  END IF;
  FOREACH h IN ARRAY p_held LOOP
    IF h.binding THEN
      events := events || warmpool_rebind(c, h, p_cause);
    END IF;
  END LOOP;
  RETURN events;
END $$
;;
-- Decide the request of a claim that ended while its worker was being bound. It gets another
-- worker, up to a number of attempts; otherwise it continues to wait or is refused. If the claim
-- was released in the meantime it has no holder, and its request gets no other worker.
CREATE FUNCTION warmpool_rebind(c warmpool_call, h warmpool_held, p_cause text) RETURNS json[]
LANGUAGE plpgsql AS $$
DECLARE
  r requests;
  o orgs;
  found warmpool_pick[] := '{}';
BEGIN
  SELECT * INTO r FROM requests WHERE pk = h.request_pk;
  IF h.abandoned THEN
    RETURN ARRAY[warmpool_refuse(c, r, 'cancelled', 'released before it was hot', NULL)];
  END IF;
  IF r.attempts + 1 < (c.rules ->> 'tries')::integer THEN
    UPDATE requests SET state = 'waiting', claim_id = NULL, attempts = attempts + 1 WHERE pk = r.pk;
    SELECT * INTO o FROM orgs WHERE id = h.org;
    IF warmpool_room(o) > 0 AND (r.wait_s = 0 OR r.deadline_at > c.at) THEN
      found := warmpool_pick_parked(h.org, h.profile, 1);
      IF cardinality(found) = 0 THEN
        found := warmpool_pick_warm(h.profile, 1);
      END IF;
    END IF;
    IF cardinality(found) > 0 THEN
      RETURN warmpool_begin_waiters(c, ARRAY[warmpool_pair(c, r, found[1], o)]);
    END IF;
    IF r.wait_s > 0 THEN
      RETURN ARRAY[json_build_object('outcome', 'again', 'profile', h.profile)];
    END IF;
  END IF;
  RETURN ARRAY[warmpool_refuse(c, r, 'activation_failed', p_cause, 5.0)];
END $$
;;
-- End one claim for a cause other than its holder's release: it expired, its worker was lost, its
-- activation failed, or an operator retired its worker. Return NULL if it had already ended, or if
-- it was to expire and has been renewed.
CREATE FUNCTION warmpool_end_claim(p jsonb) RETURNS json LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  c warmpool_call := warmpool_call(p);
  h warmpool_held[] := warmpool_hold(c, ARRAY[p ->> 'claim_id']);
  k claims;
BEGIN
  c.at := warmpool_now();
  SELECT * INTO k FROM claims WHERE id = (h[1]).claim_id;
  -- The holder must have been able to renew. So the lane must have been open for a whole lease, and
  -- a lease that is shorter than an outage that no canary shows gets that time in addition: a holder
  -- renews at a third of its lease, before the outage and again after it.
  IF k.id IS NULL OR (p ->> 'why' = 'expired' AND NOT (k.lease_expires_at
      + make_interval(secs => greatest(0, (p ->> 'unseen_s')::float8 - k.lease_s / 3.0)) < c.at AND EXISTS (
      SELECT 1 FROM pool WHERE lane_open_since + make_interval(secs => k.lease_s) < c.at))) THEN
    RETURN NULL;
  END IF;
  -- An activation that continues or has finished is kept.
  IF p ? 'silent_s' AND (k.lease_expires_at IS NOT NULL
      OR (SELECT w.heartbeat_at FROM workers w WHERE w.id = k.worker_id) > c.at - make_interval(secs => (p ->> 'silent_s')::float8)) THEN
    RETURN NULL;
  END IF;
  -- If the org is now below its cap, its waiters must be matched again.
  RETURN to_json(warmpool_followed(
    c, warmpool_end(c, h, ARRAY[p ->> 'why'], p ->> 'reason', p ->> 'detail',
      coalesce(p ->> 'cause', nullif(p ->> 'detail', ''), p ->> 'reason')), warmpool_freed(h), '{}'));
END $$
;;
-- Handle a claim whose worker is hot: its lease starts and its request is answered. If the request
-- was cancelled, the worker is released at once. Return NULL if the claim has ended or its lease
-- has already started.
CREATE FUNCTION warmpool_confirm(p jsonb) RETURNS json LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  c warmpool_call;
  h warmpool_held[];
  k claims;
  w workers;
  r requests;
  shape text;
  events json[] := '{}';
BEGIN
  SELECT profile INTO shape FROM claims WHERE id = p ->> 'claim_id';
  PERFORM warmpool_lock_profile(shape, false);
  c := warmpool_call(p);
  h := warmpool_hold(c, ARRAY[p ->> 'claim_id']);
  c.at := warmpool_now();
  SELECT * INTO k FROM claims WHERE id = (h[1]).claim_id;
  SELECT * INTO w FROM workers WHERE id = (h[1]).worker_id;
  SELECT * INTO r FROM requests WHERE pk = (h[1]).request_pk;
  IF k.id IS NULL OR k.hot_at IS NOT NULL THEN
    RETURN NULL;
  END IF;
  IF w.state = 'activating' THEN
    UPDATE workers SET state = 'hot', state_since = c.at, moved_by = c.who,
      moved_reason = 'activated', moved_detail = '' WHERE id = w.id RETURNING * INTO w;
    events := events || json_build_object('outcome', 'moved', 'worker_id', w.id,
      'from', 'activating', 'to', 'hot', 'moved_reason', 'activated');
  END IF;
  UPDATE claims SET hot_at = c.at, lease_expires_at = c.at + make_interval(secs => lease_s)
    WHERE id = k.id RETURNING * INTO k;
  IF NOT k.abandoned AND r.state = 'binding' AND r.claim_id = k.id THEN
    UPDATE requests SET state = 'granted', decided_at = c.at, replied_at = NULL WHERE pk = r.pk;
    events := events || json_build_object('outcome', 'granted', 'pk', r.pk, 'claim_id', k.id,
      'worker_id', w.id, 'epoch', k.epoch,
      'endpoint', w.endpoint, 'source', k.source, 'until', k.lease_expires_at, 'org', k.org, 'ttl_s', k.ttl_s,
      'profile', k.profile, 'wait_s', r.wait_s,
      'waited_s', extract(epoch FROM c.at - r.created_at),
      'bound_s', extract(epoch FROM c.at - k.created_at), 'replies', r.replies);
    RETURN json_build_object('events', to_json(events));
  END IF;
  IF r.state = 'binding' AND r.claim_id = k.id THEN
    events := events || warmpool_refuse(c, r, 'cancelled', 'released before it was hot', NULL);
  END IF;
  -- Read the rows again: the claim is hot and its request is answered.
  h := warmpool_hold(c, ARRAY[k.id]);
  events := events || warmpool_end(c, h,
    ARRAY[CASE WHEN k.release_condition = 'tainted' THEN 'tainted' ELSE 'abandoned' END], NULL, '', '');
  -- A worker that was parked for the org may serve the org's next waiter at once.
  RETURN to_json(warmpool_followed(c, events, warmpool_freed(h), ARRAY[k.profile]));
END $$
;;
-- Release claims: their workers are parked or drain. Each element of `p_asked` is [claim, org,
-- condition]. `p_ids` and `p_conditions` are those claims that exist and belong to the org. If a
-- claim occurs more than once, the first counts. Return an outcome for each element, NULL if
-- another transaction has locked one of its rows; the events; and the orgs that are below their cap
-- again.
CREATE FUNCTION warmpool_release(
  c warmpool_call, p_asked jsonb, p_ids text[], p_conditions text[], OUT outcomes json,
  OUT events json[], OUT freed text[]) LANGUAGE plpgsql AS $$
DECLARE
  held warmpool_held[] := warmpool_hold(c, p_ids);
  hot warmpool_held[];
  causes text[];
  h warmpool_held;
  condition text;
BEGIN
  IF cardinality(held) = jsonb_array_length(p_asked) THEN
    outcomes := to_json(array_fill('released'::text, ARRAY[cardinality(held)]));
  ELSE
    SELECT json_agg(CASE
        WHEN a.id IS NULL THEN 'unknown_claim'
        WHEN a.ended_at IS NOT NULL THEN 'already_released'
        WHEN EXISTS (SELECT 1 FROM unnest(held) x WHERE x.claim_id = a.id) THEN
          CASE WHEN a.times > 1 THEN 'already_released' ELSE 'released' END END ORDER BY a.n)
      INTO outcomes
      FROM (SELECT k.id, k.ended_at, e.n, row_number() OVER (PARTITION BY k.id ORDER BY e.n) AS times
          FROM jsonb_array_elements(p_asked) WITH ORDINALITY AS e(v, n)
            LEFT JOIN claims k ON k.id = e.v ->> 0 AND k.org = coalesce(e.v ->> 1, k.org)) a;
  END IF;
  FOREACH h IN ARRAY held LOOP
    condition := p_conditions[array_position(p_ids, h.claim_id)];
    IF h.is_hot THEN
      hot := hot || h;
      causes := causes || CASE WHEN condition = 'tainted' THEN 'tainted' ELSE 'released' END;
    ELSE
      -- Still being bound: it is released when the binding ends.
      UPDATE claims SET abandoned = true, release_condition = condition WHERE id = h.claim_id;
    END IF;
  END LOOP;
  events := '{}';
  IF hot IS NOT NULL THEN
    events := warmpool_end(c, hot, causes, NULL, '', '');
    freed := warmpool_freed(hot);
  END IF;
END $$
;;
-- Return the orgs of claims that counted against their caps.
CREATE FUNCTION warmpool_freed(p_held warmpool_held[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  freed text[] := '{}';
  h warmpool_held;
BEGIN
  FOREACH h IN ARRAY p_held LOOP
    IF h.counted THEN
      freed := freed || h.org;
    END IF;
  END LOOP;
  RETURN freed;
END $$
;;
-- Extend the leases of claims that are live, hot and of the given org. A claim that another
-- transaction has locked has no answer, unless the call is patient. Claims are locked in the order
-- of their ids.
CREATE FUNCTION warmpool_renew(c warmpool_call, p_asked jsonb) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
  live text[];
  answers json;
BEGIN
  IF c.patient THEN
    PERFORM 1 FROM claims k
      WHERE k.id = ANY (ARRAY(SELECT e ->> 0 FROM jsonb_array_elements(p_asked) e)) ORDER BY k.id FOR UPDATE;
  END IF;
  SELECT coalesce(array_agg(s.id), '{}') INTO live FROM (
    SELECT k.id FROM jsonb_array_elements(p_asked) e JOIN claims k ON k.id = e ->> 0 AND coalesce(e ->> 1, k.org) = k.org
      WHERE k.ended_why IS NULL AND k.hot_at IS NOT NULL
      FOR UPDATE OF k SKIP LOCKED) s;
  UPDATE claims k SET lease_expires_at = c.at + make_interval(secs => k.lease_s) WHERE k.id = ANY (live);
  -- Each answer is the new end of the lease, why the worker is leaving, if it is, and why it is
  -- unhealthy, if it is; or the cause of the claim's end.
  SELECT json_agg(CASE
      WHEN k.id IS NULL THEN json_build_array(NULL, 'unknown_claim', NULL)
      WHEN k.id = ANY (live) THEN json_build_array(k.lease_expires_at,
        CASE WHEN w.leaving_since IS NOT NULL THEN
          concat_ws(': ', w.leaving_reason, nullif(w.leaving_detail, '')) END,
        (SELECT format('%s consecutive probes failed', s.runs) FROM suspects s WHERE s.kind = 'probe'
          AND s.subject = w.id AND s.runs >= (c.rules ->> 'probe_failures')::integer))
      WHEN k.ended_at IS NOT NULL OR k.hot_at IS NULL
        THEN json_build_array(NULL, coalesce(k.ended_why, 'not_hot'), NULL) END ORDER BY a.n)
    INTO answers
    FROM jsonb_array_elements(p_asked) WITH ORDINALITY AS a(v, n)
      LEFT JOIN claims k ON k.id = a.v ->> 0 AND coalesce(a.v ->> 1, k.org) = k.org
      LEFT JOIN workers w ON w.claim_id = k.id;
  RETURN answers;
END $$
