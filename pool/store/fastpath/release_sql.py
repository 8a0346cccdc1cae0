"""`warmpool_release`: many releases in one statement.

It serves the common case only: a hot worker of a live claim, whose profile nobody waits for and whose build is the one wanted. The
worker is parked, or drains if it may not be kept. What is not such a case it leaves out of its answer, with nothing written. It waits
for no lock, the advisory ones included. Answers bear the key that was given with the claim, else its id. The moves are those of `pool.holding.end`; one contract suite runs over both.
"""

from __future__ import annotations

from pool.store.fastpath.claim_sql import PLANNED_ONCE
from pool.store.sql import PG_NOW

_ASKED = "jsonb_to_recordset(p_asked) AS a(id text, why text, org text, key text)"
# A caller that has shown whose it is reaches the claims of its org and no others.
_OF = "a.id = c.id AND (a.org IS NULL OR a.org = c.org)"

FUNCTION = f"""CREATE FUNCTION warmpool_release(p_asked jsonb, p_ttls jsonb, p_most_ttl_s integer, p_who text) RETURNS jsonb
LANGUAGE plpgsql {PLANNED_ONCE} AS $$
DECLARE
  g record;
  clear text[] := '{{}}';  -- profiles whose lock is ours and that nobody waits for
  free text[] := '{{}}';  -- orgs whose counters are not touched
  locked text[] := '{{}}';  -- orgs whose locks are ours
  ids text[];
  answers jsonb;
  t timestamptz;
BEGIN
  SELECT coalesce(jsonb_agg(jsonb_build_array(coalesce(a.key, a.id), CASE WHEN c.id IS NULL THEN 'unknown_claim' ELSE 'already_released' END)), '[]')
    INTO answers FROM {_ASKED} LEFT JOIN claims c ON {_OF} WHERE c.id IS NULL OR c.ended_at IS NOT NULL;

  -- Each lock in a statement of its own: what is read after it is not older than it.
  FOR g IN SELECT DISTINCT c.profile FROM claims c JOIN {_ASKED} ON {_OF} WHERE c.ended_at IS NULL LOOP
    CONTINUE WHEN NOT pg_try_advisory_xact_lock_shared(hashtextextended(g.profile, 7));
    IF NOT EXISTS (SELECT 1 FROM requests r WHERE r.profile = g.profile AND r.state = 'waiting') THEN
      clear := clear || g.profile;
    END IF;
  END LOOP;
  IF cardinality(clear) = 0 THEN RETURN answers; END IF;
  FOR g IN SELECT c.org, bool_or(c.counted) AS counted FROM claims c JOIN {_ASKED} ON {_OF}
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
    SELECT c.id FROM {_ASKED} JOIN claims c ON {_OF} JOIN workers w ON w.id = c.worker_id AND w.claim_id = c.id
        JOIN requests r ON r.pk = c.request_pk AND r.claim_id = c.id AND r.state = 'granted'
      WHERE c.ended_at IS NULL AND c.hot_at IS NOT NULL AND NOT c.abandoned AND w.state = 'hot'
        AND c.profile = ANY(clear) AND (c.org = ANY(locked) OR (c.org = ANY(free) AND NOT c.counted))
        AND NOT EXISTS (SELECT 1 FROM rollouts u WHERE u.profile = w.profile AND u.revision <> w.revision)
      FOR UPDATE OF w, c, r SKIP LOCKED) s;
  IF ids IS NULL THEN RETURN answers; END IF;
  t := {PG_NOW};

  UPDATE requests r SET state = 'spent' FROM claims c WHERE c.id = ANY(ids) AND r.pk = c.request_pk;
  -- A worker is kept for the time that the call, else its org, else its profile says.
  WITH ended AS (
    UPDATE claims c SET ended_at = t, ended_why = a.why FROM {_ASKED} WHERE {_OF} AND c.id = ANY(ids)
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
END $$"""
