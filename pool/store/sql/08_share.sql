-- Fair share at the pool's cap. Below the cap every waiter gets a new worker, and these functions
-- change nothing.

-- Return the pool's cap if the pool is at it, otherwise 0.
CREATE FUNCTION warmpool_full(c warmpool_call) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  most integer := (c.rules ->> 'max_workers')::integer;
BEGIN
  IF most = 0 THEN
    RETURN 0;
  END IF;
  RETURN (SELECT CASE WHEN g.live >= most THEN most ELSE 0 END FROM pool g);
END $$
;;
-- Return the first `p_most` eligible waiters of each org, over all profiles that can get new workers.
-- `place` is the position in the org, oldest first, and `rank` is what the org would use divided by
-- its weight: waiters are served in the order of rank, then of age.
CREATE FUNCTION warmpool_ranked(c warmpool_call, p_cap integer, p_most integer)
RETURNS TABLE (pk text, org text, profile text, since timestamptz, used bigint, place bigint, rank float8)
LANGUAGE sql STABLE AS $$
  WITH RECURSIVE names AS (
    (SELECT q.org FROM requests q WHERE q.state = 'waiting' ORDER BY q.org LIMIT 1)
    UNION ALL
    SELECT (SELECT q.org FROM requests q WHERE q.state = 'waiting' AND q.org > n.org ORDER BY q.org LIMIT 1)
      FROM names n WHERE n.org IS NOT NULL),
  shapes AS (
    SELECT s.name FROM jsonb_object_keys(c.rules -> 'ttls') s(name)
      WHERE NOT EXISTS (SELECT 1 FROM breakers b WHERE b.profile = s.name AND b.open_until > c.at))
  SELECT w.pk, o.id, w.profile, w.created_at, o.used, w.place,
      CASE WHEN w.place = 1 THEN warmpool_rank(o.used, o.weight, w.passed, p_cap)
        ELSE (o.used + w.place) / o.weight END
    FROM names n
      JOIN LATERAL (SELECT x.id, x.weight, warmpool_room(x) AS room, warmpool_used(x) AS used
        FROM orgs x WHERE x.id = n.org) o ON o.room > 0
      CROSS JOIN LATERAL (
        SELECT y.pk, y.profile, y.created_at, y.passed,
            row_number() OVER (ORDER BY y.created_at, y.pk) AS place
          FROM shapes s CROSS JOIN LATERAL (
            SELECT q.* FROM requests q
              WHERE q.profile = s.name AND q.state = 'waiting' AND q.org = o.id AND q.deadline_at > c.at
              ORDER BY q.created_at, q.pk LIMIT p_most) y
          ORDER BY y.created_at, y.pk LIMIT least(p_most, o.room)) w
$$
;;
-- Return the number of workers of a profile that its waiters will get: warm ones, and slots that
-- are not stuck. A slot that has its pod may wait for a node.
CREATE FUNCTION warmpool_coming(c warmpool_call, p_profile text) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT count(*) FROM workers w WHERE w.profile = p_profile AND (w.state = 'idle'
    OR (w.state = 'spawning' AND w.state_since > c.at - make_interval(secs =>
      (c.rules ->> CASE WHEN w.pod_uid IS NULL THEN 'stuck_s' ELSE 'node_wait_s' END)::float8)))
$$
;;
-- Return the number of workers whose room is free soon, because their pods are being deleted.
CREATE FUNCTION warmpool_going(c warmpool_call) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT count(*) FROM workers w WHERE w.state = 'draining'
    AND w.state_since > c.at - make_interval(secs => (c.rules ->> 'stuck_s')::float8)
$$
;;
-- Return whether an unclaimed worker of an org must give way to waiters of other orgs: the pool is
-- at its cap, and more of them come before the org's next claim than there are workers being
-- started and pods being deleted. Equal ranks stay with the holder. A worker that its org's floor
-- keeps never gives way. `p_ended` is the number of the org's claims that this call is ending,
-- `p_parking` that of workers it is parking, and `p_given` that of workers that gave way in it.
CREATE FUNCTION warmpool_gives_way(
  c warmpool_call, p_org text, p_ended bigint, p_parking integer, p_given integer)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  cap integer := warmpool_full(c);
  supply integer;
  own float8;
  passed integer;
  o orgs;
BEGIN
  IF cap = 0 THEN
    RETURN false;
  END IF;
  -- Two ends of an index: however many of the org's own requests wait, they are not read.
  IF NOT EXISTS (SELECT 1 FROM requests q WHERE q.state = 'waiting' AND q.org < p_org)
      AND NOT EXISTS (SELECT 1 FROM requests q WHERE q.state = 'waiting' AND q.org > p_org) THEN
    RETURN false;
  END IF;
  SELECT * INTO o FROM orgs WHERE id = p_org;
  IF o.hot_idle_floor > 0 AND o.parked + p_parking <= o.hot_idle_floor THEN
    RETURN false;
  END IF;
  SELECT y.passed INTO passed FROM jsonb_object_keys(c.rules -> 'ttls') s(name) CROSS JOIN LATERAL (
      SELECT q.passed, q.created_at, q.pk FROM requests q
        WHERE q.profile = s.name AND q.state = 'waiting' AND q.org = p_org AND q.deadline_at > c.at
        ORDER BY q.created_at, q.pk LIMIT 1) y
    ORDER BY y.created_at, y.pk LIMIT 1;
  own := warmpool_rank(warmpool_used(o) - p_ended, o.weight, coalesce(passed, 0), cap);
  supply := p_given + (SELECT count(*) FROM workers w WHERE w.state IN ('idle', 'spawning', 'draining'));
  RETURN (
    SELECT coalesce(sum(greatest(0, d.waiters - warmpool_coming(c, d.profile))), 0) > warmpool_going(c) + p_given
      FROM (SELECT r.profile, count(*) AS waiters FROM warmpool_ranked(c, cap, supply + 1) r
        WHERE r.org <> p_org AND r.rank < own GROUP BY r.profile) d);
END $$
;;
-- Count that a worker went to this org while others waited that hold none: the more often the first
-- waiter of such an org is passed over, the earlier it comes (`warmpool_rank`). Rows that another
-- transaction has locked are skipped.
CREATE FUNCTION warmpool_pass_over(c warmpool_call, p_org text, p_cap integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF p_cap > 0 THEN
    UPDATE requests q SET passed = q.passed + 1 FROM (
      SELECT x.pk FROM requests x WHERE x.state = 'waiting' AND x.pk = ANY (ARRAY(
          SELECT r.pk FROM warmpool_ranked(c, p_cap, 1) r WHERE r.org <> p_org AND r.used = 0))
        FOR UPDATE SKIP LOCKED) s
      WHERE q.pk = s.pk;
  END IF;
END $$
;;
-- Return how many of the pool's free places this profile may use for new slots: those of its
-- waiters whose turn it is, and what the waiters of all profiles leave. `going` is the number of
-- workers whose room is free soon.
CREATE FUNCTION warmpool_places(p jsonb) RETURNS json LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  c warmpool_call := warmpool_call(p);
  most integer := (c.rules ->> 'max_workers')::integer;
  free integer := (SELECT greatest(0, most - g.live) FROM pool g);
  supply integer := free + (SELECT count(*) FROM workers w WHERE w.state IN ('idle', 'spawning'));
  places integer;
BEGIN
  IF NOT c.anyone_waits THEN
    RETURN json_build_object('places', free, 'going', warmpool_going(c));
  END IF;
  SELECT count(*) FILTER (WHERE t.turn <= free AND t.profile = p ->> 'profile') + greatest(0, free - count(*))
    INTO places FROM (
      SELECT u.profile, row_number() OVER (ORDER BY u.rank, u.since, u.pk) AS turn FROM (
        SELECT r.*, row_number() OVER (PARTITION BY r.profile ORDER BY r.rank, r.since, r.pk) AS nth
          FROM warmpool_ranked(c, most, supply + 1) r) u
        WHERE u.nth > warmpool_coming(c, u.profile)) t;
  RETURN json_build_object('places', places, 'going', warmpool_going(c));
END $$
