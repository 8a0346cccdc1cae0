-- Hand-over: waiters get workers in the transaction that frees a worker or makes one ready, and in
-- the reconcile pass.

-- Grant claimable workers to at most `p_most` waiters of a profile. The profile's lock is held. An
-- org's parked workers go to its own waiters, at the pool's cap only while the org need not give way
-- to others; warm workers go to the next org in order, one by one. Return the grants, and whether a
-- row was locked by another transaction: the profile must then be matched again.
CREATE FUNCTION warmpool_match(c warmpool_call, p_profile text, p_most integer, OUT grants json[],
  OUT again boolean) LANGUAGE plpgsql AS $$
DECLARE
  warm boolean := EXISTS (SELECT 1 FROM workers w WHERE w.state = 'idle' AND w.profile = p_profile);
  cap integer := warmpool_full(c);
  l record;
  o orgs;
  waiters requests[];
  found warmpool_pick[];
  pairs warmpool_grant[];
BEGIN
  grants := '{}';
  again := false;
  FOR l IN SELECT * FROM warmpool_line(p_profile, c.at, cap) LOOP
    WHILE cardinality(grants) < p_most AND EXISTS (SELECT 1 FROM workers w
        WHERE w.state = 'hot_idle' AND w.org = l.org AND w.profile = p_profile) LOOP
      -- At the pool's cap each worker is decided by itself.
      EXIT WHEN cap > 0 AND (NOT warmpool_org_waits(l.org, p_profile, c.at)
        OR warmpool_gives_way(c, l.org, 0, 0, 0));
      o := warmpool_with_room(c, l.org);
      again := again OR o.id IS NULL;
      EXIT WHEN o.id IS NULL OR warmpool_room(o) <= 0;
      found := warmpool_pick_parked(l.org, p_profile,
        CASE WHEN cap > 0 THEN 1 ELSE least(warmpool_room(o), p_most - cardinality(grants)) END);
      waiters := warmpool_next(l.org, p_profile, c.at, cardinality(found));
      again := again OR cardinality(waiters) = 0;
      EXIT WHEN cardinality(waiters) = 0;
      pairs := ARRAY(SELECT warmpool_pair(c, waiters[n], found[n], o)
        FROM generate_series(1, cardinality(waiters)) n);
      grants := grants || warmpool_begin_waiters(c, pairs);
      EXIT WHEN cap = 0;
      PERFORM warmpool_pass_over(c, l.org, cap);
    END LOOP;
  END LOOP;
  WHILE warm AND cardinality(grants) < p_most LOOP
    pairs := '{}';
    FOR l IN SELECT * FROM warmpool_line(p_profile, c.at, cap) LOOP
      o := warmpool_with_room(c, l.org);
      again := again OR o.id IS NULL;
      CONTINUE WHEN o.id IS NULL OR warmpool_room(o) <= 0;
      waiters := warmpool_next(l.org, p_profile, c.at, 1);
      again := again OR cardinality(waiters) = 0;
      CONTINUE WHEN cardinality(waiters) = 0;
      found := warmpool_pick_warm(p_profile, 1);
      again := again OR cardinality(found) = 0;
      EXIT WHEN cardinality(found) = 0;
      pairs := ARRAY[warmpool_pair(c, waiters[1], found[1], o)];
      EXIT;
    END LOOP;
    EXIT WHEN cardinality(pairs) = 0;
    grants := grants || warmpool_begin_waiters(c, pairs);
    PERFORM warmpool_pass_over(c, l.org, cap);
    warm := EXISTS (SELECT 1 FROM workers w WHERE w.state = 'idle' AND w.profile = p_profile);
  END LOOP;
  again := again AND cardinality(grants) < p_most;
END $$
;;
-- Return the row of an org, locked if it has counters. NULL: another transaction has locked it.
CREATE FUNCTION warmpool_with_room(c warmpool_call, p_org text) RETURNS orgs LANGUAGE plpgsql AS $$
DECLARE
  o orgs;
BEGIN
  SELECT * INTO o FROM orgs WHERE id = p_org;
  IF warmpool_counts(o) THEN
    o := warmpool_lock_org(c, p_org);
  END IF;
  RETURN o;
END $$
;;
-- Return how many more claims an org may have.
CREATE FUNCTION warmpool_room(o orgs) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN (o).cap > 0 THEN (o).cap - (o).in_use ELSE 1000000 END
$$
;;
-- Handle a slot whose pod is ready: grant it to the next waiter, otherwise make it warm. Return
-- NULL if it is no longer a slot. If other transactions have locked all eligible waiters, the
-- profile must be matched again.
CREATE FUNCTION warmpool_ready(p jsonb) RETURNS json LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  c warmpool_call;
  shape text;
  took_s float8;
  has_failed boolean;
  again text[] := '{}';
  cap integer;
  l record;
  o orgs;
  events json[];
  waiters requests[];
  w workers;
  found warmpool_pick;
BEGIN
  SELECT profile INTO shape FROM workers WHERE id = p ->> 'worker_id';
  PERFORM warmpool_lock_profile(shape, false);
  SELECT * INTO w FROM workers WHERE id = p ->> 'worker_id' FOR UPDATE;
  IF w.state IS DISTINCT FROM 'spawning' THEN
    RETURN NULL;
  END IF;
  c := warmpool_call(p);
  took_s := extract(epoch FROM c.at - w.created_at);
  has_failed := EXISTS (SELECT 1 FROM breakers b WHERE b.profile = shape);
  IF EXISTS (SELECT 1 FROM requests q WHERE q.profile = shape AND q.state = 'waiting') THEN
    cap := warmpool_full(c);
    FOR l IN SELECT * FROM warmpool_line(shape, c.at, cap) LOOP
      again := ARRAY[shape];
      o := warmpool_with_room(c, l.org);
      CONTINUE WHEN o.id IS NULL OR warmpool_room(o) <= 0;
      waiters := warmpool_next(l.org, shape, c.at, 1);
      CONTINUE WHEN cardinality(waiters) = 0;
      UPDATE workers x SET ready_at = c.at, pod_uid = p -> 'pod' ->> 'uid',
        endpoint = p -> 'pod' ->> 'endpoint', node = p -> 'pod' ->> 'node'
        WHERE x.id = w.id;
      found := ROW(w.id, w.profile, w.state, w.epoch, p -> 'pod' ->> 'endpoint',
        w.parked_counted)::warmpool_pick;
      events := warmpool_begin_waiters(c, ARRAY[warmpool_pair(c, waiters[1], found, o)]);
      PERFORM warmpool_pass_over(c, l.org, cap);
      RETURN json_build_object('took_s', took_s, 'has_failed', has_failed, 'events', to_json(events));
    END LOOP;
  END IF;
  UPDATE workers x SET state = 'idle', state_since = c.at, ready_at = c.at, pod_uid = p -> 'pod' ->> 'uid',
      endpoint = p -> 'pod' ->> 'endpoint', node = p -> 'pod' ->> 'node', moved_by = c.who,
      moved_reason = 'ready', moved_detail = ''
    WHERE x.id = w.id;
  RETURN json_build_object('took_s', took_s, 'has_failed', has_failed, 'again', again,
    'events', json_build_array(json_build_object(
      'outcome', 'moved', 'worker_id', w.id, 'from', w.state, 'to', 'idle', 'moved_reason', 'ready')));
END $$
