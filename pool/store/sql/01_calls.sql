-- What every rule is given of the call that it is part of, and the locks that rules take.

-- `at` is the one instant of the call. A call that is not patient waits for no row: what another transaction has locked stays undecided,
-- so that trouble with one org's rows delays no other org's call.
CREATE TYPE warmpool_call AS (who text, at timestamptz, patient boolean, rules jsonb, paused boolean, anyone_waits boolean)
;;
-- A live claim with what its end needs to know of it, its worker, its request and its org; all of them locked.
CREATE TYPE warmpool_held AS (
  claim_id text, worker_id text, org text, profile text, request_pk text, ttl_s integer, is_hot boolean, counted boolean, abandoned boolean,
  state text, leaves boolean, leaving_reason text, leaving_detail text, revision text, image text, binding boolean, counts boolean, counts_parked boolean, org_ttl_s integer, org_exists boolean)
;;
-- How a claim ends: its cause, where its worker goes, until when it is parked, and the reason of that move.
CREATE TYPE warmpool_ending AS (
  claim_id text, worker_id text, request_pk text, org text, why text, goes text, until timestamptz, counted boolean, parked_counted boolean,
  reason text, detail text)
;;
-- A worker that was picked and is locked.
CREATE TYPE warmpool_pick AS (id text, profile text, state text, epoch integer, endpoint text, parked_counted boolean)
;;
-- One acquire. `pk` is the row of an earlier try, if there was one.
CREATE TYPE warmpool_ask AS (
  pk text, org text, request_id text, profile text, lease_s integer, ttl_s integer, wait_s integer, reply jsonb)
;;
-- A request as it is decided, and the locked worker that it is given, if it is given one. `known`: its row exists.
CREATE TYPE warmpool_grant AS (
  pk text, known boolean, org text, request_id text, profile text, lease_s integer, ttl_s integer, wait_s integer, created_at timestamptz, replies text,
  state text, reason text, detail text, retry_after_s float8, claim_id text, counted boolean, binds boolean,
  worker_id text, worker_state text, epoch integer, endpoint text, parked_counted boolean)
;;
-- The database's clock, which tests may shift.
CREATE FUNCTION warmpool_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
  SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock
$$
;;
-- A new id of 80 random bits after its prefix.
CREATE FUNCTION warmpool_id(p_prefix text) RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT p_prefix || left(replace(gen_random_uuid()::text, '-', ''), 20)
$$
;;
-- All that a call needs to know first, read at once: the time, whether the pool is paused, and whether any request waits at all.
CREATE FUNCTION warmpool_call(p jsonb) RETURNS warmpool_call LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT ROW(p ->> 'who', clock_timestamp() + make_interval(secs => k.shift_s), coalesce((p ->> 'patient')::boolean, false), p -> 'rules',
      (SELECT g.paused FROM pool g), EXISTS (SELECT 1 FROM requests WHERE state = 'waiting'))::warmpool_call
    FROM clock k);
END $$
;;
-- No lost wake-up. A request that is about to wait takes its profile's lock alone before it looks for workers; a transaction that frees a
-- worker shares the lock before it looks for waiters. Each then sees what the other has committed. Taken before any row is locked, in
-- the order of names.
CREATE FUNCTION warmpool_lock_profile(p_profile text, p_alone boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  key bigint := hashtextextended(p_profile, 7);
BEGIN
  -- Tried without waiting first, which needs no statement.
  IF p_alone THEN
    IF NOT pg_try_advisory_xact_lock(key) THEN
      PERFORM pg_advisory_xact_lock(key);
    END IF;
  ELSIF NOT pg_try_advisory_xact_lock_shared(key) THEN
    PERFORM pg_advisory_xact_lock_shared(key);
  END IF;
END $$
;;
-- Whether claims or parked workers of an org are in its counters. An org without any of the three limits takes no lock.
CREATE FUNCTION warmpool_counts(o orgs) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT (o).cap > 0 OR (o).hot_idle_floor > 0 OR (o).hot_idle_cap > 0
$$
;;
-- The org's row, locked; NULL if another transaction has it and the call is not patient.
CREATE FUNCTION warmpool_lock_org(c warmpool_call, p_org text) RETURNS orgs LANGUAGE plpgsql AS $$
DECLARE
  o orgs;
BEGIN
  IF c.patient THEN
    PERFORM 1 FROM orgs WHERE id = p_org FOR UPDATE;
  END IF;
  SELECT * INTO o FROM orgs WHERE id = p_org FOR UPDATE SKIP LOCKED;
  RETURN o;
END $$
;;
-- The request's row, locked; NULL if another transaction has it and the call is not patient.
CREATE FUNCTION warmpool_lock_request(c warmpool_call, p_pk text) RETURNS requests LANGUAGE plpgsql AS $$
DECLARE
  r requests;
BEGIN
  IF c.patient THEN
    PERFORM 1 FROM requests WHERE pk = p_pk FOR UPDATE;
  END IF;
  SELECT * INTO r FROM requests WHERE pk = p_pk FOR UPDATE SKIP LOCKED;
  RETURN r;
END $$
;;
-- The live ones of these claims with what they hold, locked. Those of which another transaction has a row are left out, unless the call is
-- patient. A patient call locks in one order: orgs that have counters, workers, claims with their requests.
CREATE FUNCTION warmpool_hold(c warmpool_call, p_ids text[]) RETURNS warmpool_held[] LANGUAGE plpgsql AS $$
DECLARE
  held warmpool_held[];
  h warmpool_held;
  mine text[];
  busy text[];
BEGIN
  IF c.patient THEN
    PERFORM 1 FROM orgs o WHERE o.id IN (SELECT k.org FROM claims k WHERE k.id = ANY (p_ids) AND k.ended_at IS NULL AND (k.counted OR warmpool_counts(o)))
      ORDER BY o.id FOR UPDATE;
    PERFORM 1 FROM workers w JOIN claims k ON k.worker_id = w.id WHERE k.id = ANY (p_ids) ORDER BY w.id FOR UPDATE OF w;
    PERFORM 1 FROM claims k JOIN requests r ON r.pk = k.request_pk WHERE k.id = ANY (p_ids) ORDER BY k.id FOR UPDATE OF k, r;
  END IF;
  -- A live claim has no cause of its end; by `ended_at` the planner would walk an index of all that are live.
  held := ARRAY(SELECT ROW(k.id, w.id, k.org, w.profile, k.request_pk, k.ttl_s, k.hot_at IS NOT NULL, k.counted, k.abandoned, w.state,
        w.leaving_since IS NOT NULL, w.leaving_reason, w.leaving_detail, w.revision, w.image, r.state = 'binding' AND r.claim_id = k.id, k.counted OR coalesce(warmpool_counts(o), false),
        coalesce(o.hot_idle_floor > 0 OR o.hot_idle_cap > 0, false), o.hot_idle_ttl_s, o.id IS NOT NULL)::warmpool_held
      FROM claims k JOIN workers w ON w.id = k.worker_id JOIN requests r ON r.pk = k.request_pk LEFT JOIN orgs o ON o.id = k.org
      WHERE k.id = ANY (p_ids) AND k.ended_why IS NULL FOR UPDATE OF w, k, r SKIP LOCKED);
  FOREACH h IN ARRAY held LOOP
    IF h.counts AND h.org = ANY (mine) IS NOT TRUE THEN
      mine := mine || h.org;
      IF (warmpool_lock_org(c, h.org)).id IS NULL THEN
        busy := busy || h.org;
      END IF;
    END IF;
  END LOOP;
  IF busy IS NOT NULL THEN
    held := ARRAY(SELECT x FROM unnest(held) x WHERE x.org <> ALL (busy));
  END IF;
  RETURN held;
END $$
