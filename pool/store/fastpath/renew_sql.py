"""`warmpool_renew`: the leases of many claims in one statement. A claim that somebody else has locked is left out of the answer."""

from __future__ import annotations

from pool.store.fastpath.claim_sql import PLANNED_ONCE
from pool.store.sql import PG_NOW

FUNCTION = f"""CREATE FUNCTION warmpool_renew(p_ids jsonb) RETURNS jsonb LANGUAGE plpgsql
{PLANNED_ONCE} AS $$
DECLARE
  ids text[] := ARRAY(SELECT jsonb_array_elements_text(p_ids));
  live text[];
  renewed jsonb;
  gone jsonb;
  t timestamptz := {PG_NOW};
BEGIN
  SELECT coalesce(array_agg(s.id), '{{}}') INTO live FROM (
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
END $$"""
