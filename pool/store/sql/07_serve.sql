-- Serve: decide callers' messages, one or many, in one statement and one commit.

-- Match the waiters of these profiles, whose locks are held. Return the events, and the profiles
-- that must be matched again in another transaction: those of orgs that are below their cap again,
-- and those with a row that another transaction had locked.
CREATE FUNCTION warmpool_followed(
  c warmpool_call, p_events json[], p_freed text[], p_locked text[], OUT events json[],
  OUT again text[]) LANGUAGE plpgsql AS $$
DECLARE
  matched record;
  shape text;
BEGIN
  events := p_events;
  again := '{}';
  IF cardinality(p_freed) > 0 THEN
    again := ARRAY(SELECT DISTINCT q.profile FROM requests q WHERE q.state = 'waiting'
      AND q.org = ANY (p_freed));
  END IF;
  FOREACH shape IN ARRAY p_locked LOOP
    CONTINUE WHEN NOT EXISTS (SELECT 1 FROM requests q WHERE q.profile = shape AND q.state = 'waiting');
    matched := warmpool_match(c, shape, 200);
    events := events || matched.grants;
    again := array_remove(again, shape);
    IF matched.again THEN
      again := again || shape;
    END IF;
  END LOOP;
END $$
;;
-- Decide a batch. Releases come first, so that an org's next acquire finds the workers that it has
-- just released; then waiters, renewals and cancellations; then acquires, in the order of arrival.
-- Answers are in the order of the calls. A null answer is undecided, and nothing was written for
-- it.
CREATE FUNCTION warmpool_serve(p jsonb) RETURNS json LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  c warmpool_call;
  by_itself boolean := (p ->> 'alone')::boolean;
  alone text[] := '{}';
  locked text[] := '{}';
  ids text[];
  conditions text[];
  nothing text;
  shape text;
  each jsonb;
  done record;
  withdrawn record;
  events json[] := '{}';
  again text[] := '{}';
  freed text[];
  released json;
  cancelled text[];
  renewed json;
  acquired json[];
BEGIN
  IF p ? 'acquire' THEN
    c := warmpool_call(p);
  END IF;
  IF c.at IS NULL OR c.anyone_waits OR by_itself OR p ?| '{match, release, cancel}' THEN
    IF p ? 'match' THEN
      locked := ARRAY(SELECT jsonb_array_elements_text(p -> 'match'));
    END IF;
    IF p ? 'release' THEN
      -- A claim of another org does not exist for the caller.
      FOR n IN 0..jsonb_array_length(p -> 'release') - 1 LOOP
        each := p -> 'release' -> n;
        SELECT k.profile INTO shape FROM claims k WHERE k.id = each ->> 0 AND k.org = coalesce(each ->> 1, k.org);
        IF FOUND THEN
          locked := locked || shape;
          ids := ids || (each ->> 0);
          conditions := conditions || (each ->> 2);
        END IF;
      END LOOP;
    END IF;
    -- If a request waits for the profile, waiters come before new acquires, which then probably
    -- wait as well.
    IF p ? 'acquire' AND (c.anyone_waits OR by_itself) THEN
      SELECT locked || array_agg(DISTINCT a.profile),
        coalesce(array_agg(DISTINCT a.profile) FILTER (WHERE a.wait_s > 0), '{}') INTO locked, alone
        FROM jsonb_to_recordset(p -> 'acquire') AS a(profile text, wait_s integer)
        -- Not EXISTS: planned while few requests waited, it would read all that wait for any profile.
        WHERE by_itself OR (SELECT q.profile FROM requests q WHERE q.profile = a.profile
        AND q.state = 'waiting' LIMIT 1) IS NOT NULL;
    END IF;
    IF cardinality(locked) > 1 THEN
      locked := ARRAY(SELECT DISTINCT s FROM unnest(locked) s ORDER BY s);
    END IF;
    FOREACH shape IN ARRAY locked LOOP
      nothing := warmpool_lock_profile(shape, by_itself OR shape = ANY (alone));
    END LOOP;
    -- Everything below is read after the locks were taken.
    IF c.at IS NULL OR cardinality(locked) > 0 THEN
      c := warmpool_call(p);
    END IF;

    IF p ? 'release' THEN
      done := warmpool_release(c, p -> 'release', ids, conditions);
      released := done.outcomes;
      events := done.events;
      freed := done.freed;
      -- A request of an org that is below its cap again may have started to wait while this call
      -- waited for a row.
      IF cardinality(freed) > 0 AND NOT c.anyone_waits THEN
        c.anyone_waits := EXISTS (SELECT 1 FROM requests WHERE state = 'waiting');
      END IF;
    END IF;
    IF p ? 'cancel' THEN
      FOR each IN SELECT jsonb_array_elements(p -> 'cancel') LOOP
        withdrawn := warmpool_cancel(c, each ->> 0, each ->> 1);
        cancelled := cancelled || withdrawn.outcome;
        IF withdrawn.event IS NOT NULL THEN
          events := events || withdrawn.event;
        END IF;
      END LOOP;
    END IF;
    IF c.anyone_waits AND cardinality(locked) > 0 THEN
      SELECT f.events, f.again INTO events, again FROM warmpool_followed(c, events, freed, locked) f;
    END IF;
  END IF;
  IF p ? 'renew' THEN
    renewed := warmpool_renew(c, p -> 'renew');
  END IF;
  IF p ? 'acquire' THEN
    IF c.paused THEN
      acquired := array_fill('{"outcome": "paused"}'::json, ARRAY[jsonb_array_length(p -> 'acquire')]);
    ELSE
      acquired := warmpool_acquire(c, p -> 'acquire', alone);
    END IF;
  END IF;
  RETURN json_build_object('events', events, 'again', again, 'release', released,
    'cancel', cancelled, 'renew', renewed, 'acquire', acquired);
END $$
