-- Acquire: an immediate answer, or a wait.

-- Decide many acquires. Return one answer for each, in order: a grant, a refusal or a wait. NULL:
-- undecided, because another transaction has locked one of its rows. `must_wait`: it has to wait,
-- and the lock of its profile is not held exclusively (`p_alone` has the profiles whose lock is).
CREATE FUNCTION warmpool_acquire(c warmpool_call, p_asked jsonb, p_alone text[]) RETURNS json[]
LANGUAGE plpgsql AS $$
DECLARE
  answers json[] := array_fill(NULL::json, ARRAY[jsonb_array_length(p_asked)]);
  asks warmpool_ask[];  -- by position
  -- Profile and org of the acquires to decide, by position.
  kinds text[] := array_fill(NULL::text, ARRAY[jsonb_array_length(p_asked)]);
  keys bigint[];  -- lock keys of the requests so far
  repeated integer[];  -- positions of repeated requests
  wanting integer[];  -- positions of acquires that may get a warm worker
  shapes text[] := '{}';  -- and their profiles
  taker integer[];  -- positions of acquires that have a worker,
  taken warmpool_pick[];  -- and the worker of each
  capped text[] := '{}';  -- orgs whose claims are counted
  misses integer[];  -- positions of acquires without a worker,
  refused integer[];  -- and of those that this transaction decides
  results json[];
  each jsonb;
  a warmpool_ask;
  key bigint;
  known text;
  stands boolean;
  room integer;
  place integer;
  contested boolean;
  shape text;
  ns integer[];
  found warmpool_pick[];
  o orgs;
BEGIN
  FOR n IN 1..cardinality(kinds) LOOP
    each := p_asked -> n - 1;
    a := ROW(NULL, each ->> 'org', each ->> 'request_id', each ->> 'profile',
      (each ->> 'lease_s')::integer, (each ->> 'ttl_s')::integer,
      (each ->> 'wait_s')::integer, each -> 'reply')::warmpool_ask;
    -- Two deliveries of one request are serialised: the second sees what the first has committed.
    key := hashtextextended(concat(a.org, ' ', a.request_id), 10);
    IF NOT pg_try_advisory_xact_lock(key) THEN
      CONTINUE WHEN NOT c.patient;
      PERFORM pg_advisory_xact_lock(key);
    END IF;
    SELECT q.pk, q.state INTO a.pk, known FROM requests q WHERE q.org = a.org AND q.request_id = a.request_id;
    stands := known <> 'refused' OR key = ANY (keys);
    IF known = 'refused' THEN
      stands := stands OR (SELECT warmpool_differs(q, a) FROM requests q WHERE q.pk = a.pk);
    END IF;
    asks[n] := a;
    keys := keys || key;
    IF stands THEN
      repeated := repeated || n;
    ELSE
      kinds[n] := concat(a.profile, ' ', a.org);
    END IF;
  END LOOP;

  -- Group by org and profile.
  FOR n IN 1..cardinality(kinds) LOOP
    CONTINUE WHEN kinds[n] IS NULL OR array_position(kinds, kinds[n]) < n;
    ns := array_positions(kinds, kinds[n]);
    a := asks[n];
    SELECT * INTO o FROM orgs WHERE id = a.org;
    IF o.id IS NULL THEN
      FOREACH place IN ARRAY ns LOOP
        answers[place] := '{"outcome": "unknown_org"}';
      END LOOP;
      CONTINUE;
    END IF;
    room := 1000000;
    IF warmpool_counts(o) THEN
      o := warmpool_lock_org(c, a.org);
      CONTINUE WHEN o.id IS NULL;
      room := warmpool_room(o);
      IF o.cap > 0 THEN
        -- Grants to an earlier group of this org are not in its row yet.
        room := room - (SELECT count(*) FROM unnest(taker || wanting) y WHERE (asks[y]).org = a.org);
        capped := capped || a.org;
      END IF;
    END IF;
    -- A new acquire does not overtake an eligible waiter. A worker that is parked for its org can
    -- only be wanted by waiters of the same org.
    contested := c.anyone_waits AND warmpool_anyone_waits(a.profile, c.at);
    found := CASE WHEN room > 0 AND NOT (contested AND warmpool_org_waits(a.org, a.profile, c.at))
      THEN warmpool_pick_parked(a.org, a.profile, least(room, cardinality(ns))) ELSE '{}' END;
    IF cardinality(found) > 0 THEN
      IF NOT warmpool_counts(o) AND EXISTS (SELECT 1 FROM unnest(found) w WHERE w.parked_counted) THEN
        -- These workers are in a counter that the org no longer uses: it changes only under its
        -- lock.
        CONTINUE WHEN (warmpool_lock_org(c, a.org)).id IS NULL;
      END IF;
      taken := taken || found;
      taker := taker || ns[1:cardinality(found)];
      ns := ns[cardinality(found) + 1:];
      room := room - cardinality(found);
    END IF;
    IF contested OR room <= 0 THEN
      misses := misses || ns;
      CONTINUE;
    END IF;
    wanting := wanting || ns[:room];
    misses := misses || ns[room + 1:];
    IF cardinality(ns) > 0 AND NOT a.profile = ANY (shapes) THEN
      shapes := shapes || a.profile;
    END IF;
  END LOOP;
  FOREACH shape IN ARRAY shapes LOOP
    ns := wanting;
    IF cardinality(wanting) > 1 THEN
      -- The acquires for this profile, in the order of arrival, whatever their org.
      ns := ARRAY(SELECT y FROM unnest(wanting) y WHERE (asks[y]).profile = shape ORDER BY y);
    END IF;
    found := warmpool_pick_warm(shape, cardinality(ns));
    taken := taken || found;
    taker := taker || ns[:cardinality(found)];
    misses := misses || ns[cardinality(found) + 1:];
  END LOOP;

  IF cardinality(taker) > 0 THEN
    results := warmpool_take(c, asks, taker, taken, capped);
    FOR n IN 1..cardinality(taker) LOOP
      answers[taker[n]] := results[n];
    END LOOP;
  END IF;
  IF cardinality(misses) > 0 THEN
    FOREACH place IN ARRAY misses LOOP
      IF (asks[place]).wait_s > 0 AND NOT (asks[place]).profile = ANY (p_alone) THEN
        answers[place] := '{"outcome": "must_wait"}';
      ELSE
        refused := refused || place;
      END IF;
    END LOOP;
    results := warmpool_miss(c, asks, refused);
    FOR n IN 1..coalesce(cardinality(refused), 0) LOOP
      answers[refused[n]] := results[n];
    END LOOP;
  END IF;
  IF repeated IS NOT NULL THEN
    FOREACH place IN ARRAY repeated LOOP
      answers[place] := warmpool_repeated(c, asks[place]);
    END LOOP;
  END IF;
  RETURN answers;
END $$
;;
-- Grant locked workers to the acquires at these positions. Return the grants, in order.
CREATE FUNCTION warmpool_take(
  c warmpool_call, asks warmpool_ask[], taker integer[], taken warmpool_pick[], capped text[])
  RETURNS json[] LANGUAGE plpgsql AS $$
DECLARE
  grants warmpool_grant[];
  a warmpool_ask;
  w warmpool_pick;
  binds boolean;
  nothing text;
BEGIN
  FOR n IN 1..cardinality(taker) LOOP
    a := asks[taker[n]];
    w := taken[n];
    binds := warmpool_binds(c, w);
    grants := grants || ROW(coalesce(a.pk, warmpool_id('r-')), a.pk IS NOT NULL, a.org,
      a.request_id, a.profile, a.lease_s, a.ttl_s, a.wait_s, c.at,
      '[' || a.reply::text || ']', CASE WHEN binds THEN 'binding' ELSE 'granted' END, NULL, NULL,
      NULL, warmpool_id('c-'), a.org = ANY (capped), binds,
      w.id, w.state, w.epoch + 1, w.endpoint, w.parked_counted)::warmpool_grant;
  END LOOP;
  nothing := warmpool_decide(c, grants);
  RETURN warmpool_begin(c, grants);
END $$
;;
-- Refuse the acquires at these positions, for which there is no worker, or let them wait. Grants to
-- others of the same org in this call are already in its row. Return the answers, in order.
CREATE FUNCTION warmpool_miss(c warmpool_call, asks warmpool_ask[], misses integer[]) RETURNS json[]
LANGUAGE plpgsql AS $$
DECLARE
  most integer := (c.rules ->> 'max_workers')::integer;
  answers json[];
  missed warmpool_grant[];
  m warmpool_grant;
  a warmpool_ask;
  place integer;
  nothing text;
BEGIN
  IF misses IS NULL THEN
    RETURN NULL;
  END IF;
  FOREACH place IN ARRAY misses LOOP
    a := asks[place];
    m := ROW(coalesce(a.pk, warmpool_id('r-')), a.pk IS NOT NULL, a.org, a.request_id, a.profile,
      a.lease_s, a.ttl_s, a.wait_s, c.at,
      '[' || a.reply::text || ']', 'waiting', NULL, NULL, NULL, NULL, false, false, NULL, NULL,
      NULL, NULL, false)::warmpool_grant;
    IF m.wait_s = 0 THEN
      m.state := 'refused';
      SELECT y.reason, y.detail, y.retry_after_s INTO m.reason, m.detail, m.retry_after_s
        FROM orgs o, pool g, LATERAL (VALUES
          (o.cap > 0 AND o.in_use >= o.cap, 'org_cap',
            format('org %s is at its cap: %s of %s workers in use', o.id, o.in_use, o.cap), 1.0),
          (most > 0 AND g.live >= most, 'pool_cap',
            format('the pool is at its cap of %s workers', most), 2.0),
          (true, 'no_warm_worker',
            format('no warm %s worker is available; more are being started', m.profile), 1.0))
          y (holds, reason, detail, retry_after_s)
        WHERE o.id = m.org AND y.holds LIMIT 1;
    END IF;
    missed := missed || m;
    answers := answers || json_build_object('outcome', m.state, 'pk', m.pk, 'wait_s', m.wait_s,
      'profile', m.profile, 'reason', m.reason,
      'detail', m.detail, 'retry_after_s', m.retry_after_s);
  END LOOP;
  nothing := warmpool_decide(c, missed);
  RETURN answers;
END $$
;;
-- Write decided requests. A request that was refused before is evaluated again. A miss that is
-- demand is counted once per request, and again only if it expired unused.
CREATE FUNCTION warmpool_decide(c warmpool_call, p_decided warmpool_grant[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  d warmpool_grant;
BEGIN
  INSERT INTO requests (pk, org, request_id, profile, lease_s, ttl_s, wait_s, state, reason, detail,
      retry_after_s, claim_id, created_at,
      deadline_at, decided_at, replies, missed_at)
    SELECT x.pk, x.org, x.request_id, x.profile, x.lease_s, x.ttl_s, x.wait_s, x.state, x.reason,
        x.detail, x.retry_after_s, x.claim_id, c.at,
        c.at + make_interval(secs => x.wait_s),
        CASE WHEN x.state IN ('granted', 'refused') THEN c.at END, x.replies,
        CASE WHEN x.reason IN ('no_warm_worker', 'pool_cap') THEN c.at END
      FROM unnest(p_decided) x WHERE NOT x.known;
  FOREACH d IN ARRAY p_decided LOOP
    IF d.known THEN
      UPDATE requests q SET state = d.state, reason = d.reason, detail = d.detail,
          retry_after_s = d.retry_after_s, claim_id = d.claim_id, attempts = 0, passed = 0,
          created_at = c.at, deadline_at = c.at + make_interval(secs => d.wait_s),
          decided_at = CASE WHEN d.state IN ('granted', 'refused') THEN c.at END, replied_at = NULL,
          replies = d.replies,
          missed_at = CASE WHEN d.reason IN ('no_warm_worker', 'pool_cap') AND q.miss_consumed_at IS NULL THEN c.at ELSE q.missed_at END
        WHERE q.pk = d.pk AND q.state = 'refused';
      IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
          MESSAGE = format('request %s was changed meanwhile', d.pk);
      END IF;
    END IF;
  END LOOP;
END $$
;;
-- Return whether a request id was used before with other arguments.
CREATE FUNCTION warmpool_differs(r requests, a warmpool_ask) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT (r.profile, r.lease_s, r.ttl_s, r.wait_s) IS DISTINCT FROM (a.profile, a.lease_s, a.ttl_s, a.wait_s)
$$
;;
-- Return the answer to a repeated request: the same answer while its claim is live, and after that
-- never a second grant. An open request gets another reply address, of which the newest sixteen are
-- kept. NULL: another transaction has locked its row.
CREATE FUNCTION warmpool_repeated(c warmpool_call, a warmpool_ask) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
  r requests;
  k claims;
  known jsonb;
BEGIN
  SELECT * INTO r FROM requests q WHERE q.org = a.org AND q.request_id = a.request_id;
  r := warmpool_lock_request(c, r.pk);
  IF r.pk IS NULL THEN
    RETURN NULL;
  END IF;
  IF warmpool_differs(r, a) THEN
    RETURN json_build_object('outcome', 'refused', 'reason', 'invalid',
      'detail', format('request_id %L was already used by org %s with other arguments; use a new one', r.request_id, r.org));
  END IF;
  CASE r.state
    WHEN 'waiting', 'binding' THEN
      known := r.replies::jsonb;
      IF NOT EXISTS (SELECT 1 FROM jsonb_array_elements(known) e WHERE e = a.reply) THEN
        SELECT jsonb_agg(e.v ORDER BY e.n) INTO known FROM (
          SELECT x.v, x.n FROM jsonb_array_elements(known || jsonb_build_array(a.reply)) WITH ORDINALITY AS x(v, n)
            ORDER BY x.n DESC LIMIT 16) e;
        UPDATE requests SET replies = known::text WHERE pk = r.pk;
      END IF;
      RETURN json_build_object('outcome', 'open', 'pk', r.pk, 'wait_s', r.wait_s);
    WHEN 'refused' THEN
      RETURN json_build_object('outcome', 'refused', 'pk', r.pk, 'reason', r.reason,
        'detail', r.detail, 'retry_after_s', r.retry_after_s);
    ELSE
      SELECT * INTO k FROM claims WHERE id = r.claim_id AND ended_at IS NULL;
      IF NOT FOUND THEN
        RETURN json_build_object('outcome', 'refused', 'pk', r.pk, 'reason', 'request_spent',
          'detail', NULL, 'request_id', r.request_id);
      END IF;
      RETURN json_build_object('outcome', 'granted_before', 'pk', r.pk, 'claim_id', k.id,
        'worker_id', k.worker_id, 'epoch', k.epoch,
        'endpoint', (SELECT w.endpoint FROM workers w WHERE w.id = k.worker_id), 'source', k.source,
        'until', k.lease_expires_at, 'ttl_s', k.ttl_s);
  END CASE;
END $$
