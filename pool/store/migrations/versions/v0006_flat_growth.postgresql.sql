DROP INDEX live_claims_by_org
;;
CREATE INDEX claimable_by_age ON workers (created_at, id) WHERE state IN ('hot_idle', 'idle')
;;
CREATE INDEX ended_claims_by_worker ON claims (worker_id) WHERE ended_at IS NOT NULL
;;
CREATE INDEX live_by_build ON workers (profile, revision, id) WHERE state IN ('activating', 'draining', 'hot', 'hot_idle', 'idle', 'reserved', 'spawning')
;;
CREATE INDEX live_claims_by_org ON claims (org, counted) WHERE ended_at IS NULL
;;
CREATE INDEX orgs_that_count_parking ON orgs (id) WHERE hot_idle_floor > 0 OR hot_idle_cap > 0
;;
CREATE INDEX orgs_with_a_cap ON orgs (id) WHERE cap > 0
