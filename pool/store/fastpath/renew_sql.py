"""`warmpool_renew`: the leases of many claims in one statement. A claim that somebody else has locked is left out of the answer. Asked for are ids, or
objects of an id, the org that it must be of, and the key that its answer bears."""

from __future__ import annotations

from pool.store.fastpath.claim_sql import PLANNED_ONCE
from pool.store.sql import PG_NOW

FUNCTION = f"""CREATE FUNCTION warmpool_renew(p_ids jsonb) RETURNS jsonb LANGUAGE plpgsql
{PLANNED_ONCE} AS $$
DECLARE
  keys text[];
  ids text[];
  asking text[];
  live text[];
  renewed jsonb;
  gone jsonb;
  t timestamptz := {PG_NOW};
BEGIN
  SELECT array_agg(coalesce(e.v ->> 'key', e.v #>> '{{}}')), array_agg(coalesce(e.v ->> 'id', e.v #>> '{{}}')), array_agg(e.v ->> 'org')
    INTO keys, ids, asking FROM jsonb_array_elements(p_ids) AS e(v);
  SELECT coalesce(array_agg(s.id), '{{}}') INTO live FROM (
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
END $$"""
