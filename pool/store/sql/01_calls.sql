-- The types of the rules, and the locks that rules take.

-- The call that a rule belongs to. `at` is the time of the whole call. A call that is not patient
-- waits for no row: if another transaction has locked a row, that part of the call stays undecided.
-- So locked rows of one org do not delay the calls of another org.
CREATE TYPE warmpool_call AS (who text, at timestamptz, patient boolean, rules jsonb,
  paused boolean, anyone_waits boolean)
;;
-- A live claim with the fields of its worker, request and org that its end needs. All of these rows
-- are locked.
CREATE TYPE warmpool_held AS (
  claim_id text, worker_id text, org text, profile text, request_pk text, ttl_s integer,
  is_hot boolean, counted boolean, abandoned boolean,
  state text, leaves boolean, leaving_reason text, leaving_detail text, revision text, image text,
  binding boolean, counts boolean, counts_parked boolean, org_ttl_s integer, org_exists boolean)
;;
-- How a claim ends: the cause, the next state of its worker, the end of parking, and the reason of
-- the move.
CREATE TYPE warmpool_ending AS (
  claim_id text, worker_id text, request_pk text, org text, why text, goes text, until timestamptz,
  counted boolean, parked_counted boolean,
  reason text, detail text)
;;
-- A worker that was selected and is locked.
CREATE TYPE warmpool_pick AS (id text, profile text, state text, epoch integer, endpoint text,
  parked_counted boolean)
;;
-- One acquire. `pk` is the request row of an earlier call with the same request id, if there is
-- one.
CREATE TYPE warmpool_ask AS (
  pk text, org text, request_id text, profile text, lease_s integer, ttl_s integer, wait_s integer,
  reply jsonb)
;;
-- A decided request, with the locked worker that is granted to it, if any. `known`: its row exists.
CREATE TYPE warmpool_grant AS (
  pk text, known boolean, org text, request_id text, profile text, lease_s integer, ttl_s integer,
  wait_s integer, created_at timestamptz, replies text,
  state text, reason text, detail text, retry_after_s float8, claim_id text, counted boolean, binds boolean,
  worker_id text, worker_state text, epoch integer, endpoint text, parked_counted boolean)
;;
-- The database's clock, which tests may shift.
CREATE FUNCTION warmpool_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
  SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock
$$
;;
-- Return a new id: the prefix and 80 random bits.
CREATE FUNCTION warmpool_id(p_prefix text) RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT p_prefix || left(replace(gen_random_uuid()::text, '-', ''), 20)
$$
;;
-- Read what a call needs first, in one statement: the time, whether the pool is paused, and whether
-- any request waits.
CREATE FUNCTION warmpool_call(p jsonb) RETURNS warmpool_call LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT ROW(p ->> 'who', clock_timestamp() + make_interval(secs => k.shift_s),
      coalesce((p ->> 'patient')::boolean, false), p -> 'rules',
      (SELECT g.paused FROM pool g), EXISTS (SELECT 1 FROM requests WHERE state = 'waiting'))::warmpool_call
    FROM clock k);
END $$
;;
-- Prevent lost wake-ups. A request that is about to wait takes its profile's lock exclusively
-- before it searches for workers. A transaction that frees a worker takes the lock shared before it
-- searches for waiters. So each sees what the other has committed. Locks are taken before any row
-- is locked, in the order of profile names.
CREATE FUNCTION warmpool_lock_profile(p_profile text, p_alone boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  key bigint := hashtextextended(p_profile, 7);
BEGIN
  -- The attempt without waiting comes first, because it needs no statement.
  IF p_alone THEN
    IF NOT pg_try_advisory_xact_lock(key) THEN
      PERFORM pg_advisory_xact_lock(key);
    END IF;
  ELSIF NOT pg_try_advisory_xact_lock_shared(key) THEN
    PERFORM pg_advisory_xact_lock_shared(key);
  END IF;
END $$
;;
-- Return whether an org has counters for claims or parked workers. An org without any of the three
-- limits takes no lock.
CREATE FUNCTION warmpool_counts(o orgs) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT (o).cap > 0 OR (o).hot_idle_floor > 0 OR (o).hot_idle_cap > 0
$$
;;
-- Lock and return the row of an org; NULL if another transaction has locked it and the call is not
-- patient.
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
-- Lock and return the row of a request; NULL if another transaction has locked it and the call is
-- not patient.
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
-- Lock and return those of these claims that are live, with their rows. Claims with a row that
-- another transaction has locked are left out, unless the call is patient. A patient call locks in
-- one order: orgs that have counters, workers, then claims with their requests.
CREATE FUNCTION warmpool_hold(c warmpool_call, p_ids text[]) RETURNS warmpool_held[] LANGUAGE plpgsql AS $$
DECLARE
  held warmpool_held[];
  h warmpool_held;
  mine text[];
  busy text[];
BEGIN
  IF c.patient THEN
    PERFORM 1 FROM orgs o WHERE o.id IN (SELECT k.org FROM claims k WHERE k.id = ANY (p_ids)
        AND k.ended_at IS NULL AND (k.counted OR warmpool_counts(o)))
      ORDER BY o.id FOR UPDATE;
    PERFORM 1 FROM workers w JOIN claims k ON k.worker_id = w.id WHERE k.id = ANY (p_ids)
      ORDER BY w.id FOR UPDATE OF w;
    PERFORM 1 FROM claims k JOIN requests r ON r.pk = k.request_pk WHERE k.id = ANY (p_ids)
      ORDER BY k.id FOR UPDATE OF k, r;
  END IF;
  -- A live claim has no `ended_why`. With a condition on `ended_at` the planner would scan an index
  -- of all live claims.
  held := ARRAY(SELECT ROW(k.id, w.id, k.org, w.profile, k.request_pk, k.ttl_s,
        k.hot_at IS NOT NULL, k.counted, k.abandoned, w.state,
        w.leaving_since IS NOT NULL, w.leaving_reason, w.leaving_detail, w.revision, w.image,
        r.state = 'binding' AND r.claim_id = k.id, k.counted OR coalesce(warmpool_counts(o), false),
        coalesce(o.hot_idle_floor > 0 OR o.hot_idle_cap > 0, false), o.hot_idle_ttl_s,
        o.id IS NOT NULL)::warmpool_held
      FROM claims k JOIN workers w ON w.id = k.worker_id JOIN requests r ON r.pk = k.request_pk
      LEFT JOIN orgs o ON o.id = k.org
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
