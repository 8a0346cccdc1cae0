"""`warmpool_serve`: releases, then renewals, then acquires of one batch, in one statement and one commit. Releases come first, so that an org's
next acquire finds what it has just given back."""

from __future__ import annotations

from pool.store.fastpath import claim_one_sql, claim_sql, release_sql, renew_sql

FUNCTION = """CREATE FUNCTION warmpool_serve(p jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  released jsonb := '[]';
  renewed jsonb;
  granted jsonb;
BEGIN
  IF p ? 'release' THEN released := warmpool_release(p -> 'release', p -> 'ttls', (p ->> 'most_ttl_s')::integer, p ->> 'who'); END IF;
  IF p ? 'renew' THEN renewed := warmpool_renew(p -> 'renew'); END IF;
  IF p ? 'acquire' THEN
    IF jsonb_array_length(p -> 'acquire') = 1 THEN granted := warmpool_claim_one(p -> 'acquire' -> 0, p ->> 'who'); END IF;
    IF granted IS NULL THEN granted := warmpool_claim(p -> 'acquire', p ->> 'who'); END IF;
  END IF;
  RETURN jsonb_build_object('acquire', coalesce(granted, '[]'), 'release', released, 'renew', renewed);
END $$"""

FUNCTIONS = (claim_sql.FUNCTION, claim_one_sql.FUNCTION, release_sql.FUNCTION, renew_sql.FUNCTION, FUNCTION)
