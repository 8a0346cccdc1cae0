CREATE TABLE breakers (
	profile TEXT NOT NULL, 
	failures INTEGER NOT NULL, 
	open_until TIMESTAMP WITH TIME ZONE, 
	why TEXT NOT NULL, 
	PRIMARY KEY (profile)
)
;;
CREATE TABLE claims (
	id TEXT NOT NULL, 
	worker_id TEXT NOT NULL, 
	org TEXT NOT NULL, 
	profile TEXT NOT NULL, 
	request_pk TEXT NOT NULL, 
	epoch INTEGER NOT NULL, 
	source TEXT NOT NULL, 
	lease_s INTEGER NOT NULL, 
	ttl_s INTEGER, 
	created_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	hot_at TIMESTAMP WITH TIME ZONE, 
	lease_expires_at TIMESTAMP WITH TIME ZONE, 
	ended_at TIMESTAMP WITH TIME ZONE, 
	ended_why TEXT, 
	counted BOOLEAN NOT NULL, 
	abandoned BOOLEAN DEFAULT false NOT NULL, 
	release_asked_at TIMESTAMP WITH TIME ZONE, 
	release_condition TEXT, 
	PRIMARY KEY (id)
)
;;
CREATE TABLE clock (
	id SERIAL NOT NULL CONSTRAINT one_clock CHECK (id = 1), 
	shift_s FLOAT DEFAULT 0 NOT NULL, 
	PRIMARY KEY (id)
)
;;
CREATE TABLE deeds (
	id BIGSERIAL NOT NULL, 
	at TIMESTAMP WITH TIME ZONE NOT NULL, 
	who TEXT NOT NULL, 
	what TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	why TEXT NOT NULL, 
	PRIMARY KEY (id)
)
;;
CREATE TABLE idle_spent (
	profile TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	vcpu_s FLOAT NOT NULL, 
	gib_s FLOAT NOT NULL, 
	PRIMARY KEY (profile, reason)
)
;;
CREATE TABLE journal (
	id BIGSERIAL NOT NULL, 
	at TIMESTAMP WITH TIME ZONE NOT NULL, 
	worker_id TEXT NOT NULL, 
	from_state TEXT, 
	to_state TEXT NOT NULL, 
	epoch INTEGER NOT NULL, 
	org TEXT, 
	claim_id TEXT, 
	who TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (id)
)
;;
CREATE TABLE org_keys (
	org TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	older_until TIMESTAMP WITH TIME ZONE, 
	changed_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	PRIMARY KEY (org)
)
;;
CREATE TABLE orgs (
	id TEXT NOT NULL, 
	cap INTEGER NOT NULL, 
	weight FLOAT NOT NULL, 
	hot_idle_floor INTEGER NOT NULL, 
	hot_idle_cap INTEGER NOT NULL, 
	hot_idle_ttl_s INTEGER, 
	values TEXT NOT NULL, 
	in_use INTEGER DEFAULT 0 NOT NULL, 
	parked INTEGER DEFAULT 0 NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT org_counters_not_negative CHECK (in_use >= 0 AND parked >= 0), 
	CONSTRAINT org_limits_sane CHECK (cap >= 0 AND hot_idle_floor >= 0 AND hot_idle_cap >= 0 AND weight > 0)
)
;;
CREATE TABLE passes (
	name TEXT NOT NULL, 
	last_attempt_at TIMESTAMP WITH TIME ZONE, 
	last_success_at TIMESTAMP WITH TIME ZONE, 
	last_outcome TEXT, 
	last_detail TEXT, 
	last_duration_s FLOAT, 
	last_actions INTEGER, 
	holder TEXT, 
	failures INTEGER DEFAULT 0 NOT NULL, 
	paused BOOLEAN DEFAULT false NOT NULL, 
	paused_by TEXT, 
	PRIMARY KEY (name)
)
;;
CREATE TABLE pool (
	id SERIAL NOT NULL CONSTRAINT one_pool CHECK (id = 1), 
	live INTEGER NOT NULL CONSTRAINT pool_counter_not_negative CHECK (live >= 0), 
	paused BOOLEAN DEFAULT false NOT NULL, 
	lane_open_since TIMESTAMP WITH TIME ZONE NOT NULL, 
	canary_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	began_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	PRIMARY KEY (id)
)
;;
CREATE TABLE requests (
	pk TEXT NOT NULL, 
	org TEXT NOT NULL, 
	request_id TEXT NOT NULL, 
	profile TEXT NOT NULL, 
	lease_s INTEGER NOT NULL, 
	ttl_s INTEGER, 
	wait_s INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT, 
	detail TEXT, 
	retry_after_s FLOAT, 
	claim_id TEXT, 
	attempts INTEGER DEFAULT 0 NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	deadline_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	decided_at TIMESTAMP WITH TIME ZONE, 
	replied_at TIMESTAMP WITH TIME ZONE, 
	replies TEXT NOT NULL, 
	missed_at TIMESTAMP WITH TIME ZONE, 
	miss_consumed_at TIMESTAMP WITH TIME ZONE, 
	passed INTEGER DEFAULT 0 NOT NULL, 
	PRIMARY KEY (pk), 
	CONSTRAINT one_request_per_org_and_id UNIQUE (org, request_id)
)
;;
CREATE TABLE revisions_seen (
	profile TEXT NOT NULL, 
	revision TEXT NOT NULL, 
	first_seen_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	PRIMARY KEY (profile, revision)
)
;;
CREATE TABLE rollouts (
	profile TEXT NOT NULL, 
	revision TEXT NOT NULL, 
	image TEXT NOT NULL, 
	since TIMESTAMP WITH TIME ZONE NOT NULL, 
	seen_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	challenged_at TIMESTAMP WITH TIME ZONE, 
	challenge_seen_at TIMESTAMP WITH TIME ZONE, 
	proven_at TIMESTAMP WITH TIME ZONE, 
	PRIMARY KEY (profile)
)
;;
CREATE TABLE sightings (
	pass TEXT NOT NULL, 
	what TEXT NOT NULL, 
	count INTEGER NOT NULL, 
	at TIMESTAMP WITH TIME ZONE NOT NULL, 
	PRIMARY KEY (pass, what)
)
;;
CREATE TABLE suspects (
	kind TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	first_seen_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	last_seen_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	runs INTEGER NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (kind, subject)
)
;;
CREATE TABLE targets (
	profile TEXT NOT NULL, 
	warm_target INTEGER NOT NULL, 
	set_by TEXT NOT NULL, 
	set_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	PRIMARY KEY (profile), 
	CONSTRAINT target_not_negative CHECK (warm_target >= 0)
)
;;
CREATE TABLE workers (
	id TEXT NOT NULL, 
	profile TEXT NOT NULL, 
	image TEXT NOT NULL, 
	revision TEXT NOT NULL, 
	cpu_millicores INTEGER NOT NULL, 
	memory_mib INTEGER NOT NULL, 
	grace_s INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	epoch INTEGER DEFAULT 0 NOT NULL, 
	org TEXT, 
	claim_id TEXT, 
	endpoint TEXT, 
	pod_uid TEXT, 
	node TEXT, 
	created_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	state_since TIMESTAMP WITH TIME ZONE NOT NULL, 
	sent_at TIMESTAMP WITH TIME ZONE, 
	ready_at TIMESTAMP WITH TIME ZONE, 
	heartbeat_at TIMESTAMP WITH TIME ZONE, 
	hot_idle_since TIMESTAMP WITH TIME ZONE, 
	hot_idle_until TIMESTAMP WITH TIME ZONE, 
	parked_counted BOOLEAN DEFAULT false NOT NULL, 
	leaving_since TIMESTAMP WITH TIME ZONE, 
	leaving_reason TEXT, 
	leaving_detail TEXT, 
	moved_by TEXT NOT NULL, 
	moved_reason TEXT NOT NULL, 
	moved_detail TEXT DEFAULT '' NOT NULL, 
	starting_s FLOAT DEFAULT 0 NOT NULL, 
	warm_s FLOAT DEFAULT 0 NOT NULL, 
	parked_s FLOAT DEFAULT 0 NOT NULL, 
	overdue_s FLOAT DEFAULT 0 NOT NULL, 
	PRIMARY KEY (id)
)
;;
CREATE INDEX claimable_by_age ON workers (created_at, id) WHERE state IN ('hot_idle', 'idle')
;;
CREATE INDEX decided_unreplied ON requests (decided_at) WHERE decided_at IS NOT NULL AND replied_at IS NULL
;;
CREATE INDEX deeds_by_age ON deeds (at)
;;
CREATE INDEX deeds_by_subject ON deeds (subject, id)
;;
CREATE INDEX deeds_of_our_own ON deeds (id) WHERE what <> 'request_refused'
;;
CREATE INDEX ended_by_age ON workers (state_since, id) WHERE state IN ('lost', 'retired')
;;
CREATE INDEX ended_claims_by_age ON claims (ended_at, id) WHERE ended_at IS NOT NULL
;;
CREATE INDEX ended_claims_by_worker ON claims (worker_id) WHERE ended_at IS NOT NULL
;;
CREATE INDEX idle_in_claim_order ON workers (profile, ready_at, id) WHERE state = 'idle'
;;
CREATE INDEX journal_by_age ON journal (at)
;;
CREATE INDEX journal_by_worker ON journal (worker_id, id)
;;
CREATE INDEX leaving_busy ON workers (id) WHERE leaving_since IS NOT NULL AND (state IN ('activating', 'hot', 'reserved'))
;;
CREATE INDEX live_by_build ON workers (profile, revision, id) WHERE state IN ('activating', 'draining', 'hot', 'hot_idle', 'idle', 'reserved', 'spawning')
;;
CREATE INDEX live_by_state ON workers (state, state_since, id) WHERE state IN ('activating', 'draining', 'hot', 'hot_idle', 'idle', 'reserved', 'spawning')
;;
CREATE INDEX live_claims_by_lease ON claims (lease_expires_at, id) WHERE ended_at IS NULL
;;
CREATE INDEX live_claims_by_org ON claims (org, counted) WHERE ended_at IS NULL
;;
CREATE INDEX misses_consumed ON requests (org, miss_consumed_at) WHERE miss_consumed_at IS NOT NULL
;;
CREATE INDEX misses_unconsumed ON requests (profile, missed_at) WHERE missed_at IS NOT NULL AND miss_consumed_at IS NULL
;;
CREATE UNIQUE INDEX one_live_claim_a_worker ON claims (worker_id) WHERE ended_at IS NULL
;;
CREATE UNIQUE INDEX one_live_worker_a_claim ON workers (claim_id) WHERE claim_id IS NOT NULL
;;
CREATE INDEX orgs_that_count_parking ON orgs (id) WHERE hot_idle_floor > 0 OR hot_idle_cap > 0
;;
CREATE INDEX orgs_with_a_cap ON orgs (id) WHERE cap > 0
;;
CREATE INDEX parked_by_end ON workers (hot_idle_until, id) WHERE state = 'hot_idle'
;;
CREATE INDEX parked_in_claim_order ON workers (org, profile, hot_idle_since, id) WHERE state = 'hot_idle'
;;
CREATE INDEX releases_unfinished ON claims (release_asked_at) WHERE ended_at IS NULL AND release_asked_at IS NOT NULL
;;
CREATE INDEX requests_by_age ON requests (decided_at, pk) WHERE state IN ('refused', 'spent')
;;
CREATE INDEX waiting_by_deadline ON requests (deadline_at) WHERE state = 'waiting'
;;
CREATE INDEX waiting_by_org ON requests (org, profile) WHERE state = 'waiting'
;;
CREATE INDEX waiting_in_order ON requests (profile, org, created_at, pk) WHERE state = 'waiting'
;;
CREATE FUNCTION workers_made() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF (NOT (NEW.state IN ('activating', 'draining', 'hot', 'hot_idle', 'idle', 'lost', 'reserved', 'retired', 'spawning'))) OR (NEW.state <> 'spawning') OR (NEW.epoch < 0) OR (NOT (NEW.moved_reason IN ('abandoned', 'activated', 'activating', 'activation_failed', 'claimed', 'container_ended', 'create_failed', 'demand', 'disrupted', 'drained', 'gave_way', 'hot_idle_cap', 'hot_idle_ttl', 'lease_expired', 'max_age', 'node_returned', 'not_ready', 'pod_deleted', 'pod_gone', 'pod_terminating', 'probe_failed', 'ready', 'released', 'retired', 'rollout', 'stopped', 'surplus', 'table_behind', 'tainted', 'unconfigured', 'unhealthy', 'unknown_key', 'unschedulable', 'wrong_image')) OR NOT (NEW.leaving_reason IN ('abandoned', 'activated', 'activating', 'activation_failed', 'claimed', 'container_ended', 'create_failed', 'demand', 'disrupted', 'drained', 'gave_way', 'hot_idle_cap', 'hot_idle_ttl', 'lease_expired', 'max_age', 'node_returned', 'not_ready', 'pod_deleted', 'pod_gone', 'pod_terminating', 'probe_failed', 'ready', 'released', 'retired', 'rollout', 'stopped', 'surplus', 'table_behind', 'tainted', 'unconfigured', 'unhealthy', 'unknown_key', 'unschedulable', 'wrong_image'))) OR ((NEW.leaving_since IS NULL AND NEW.leaving_reason IS NOT NULL) OR (NEW.leaving_since IS NOT NULL AND NEW.leaving_reason IS NULL)) OR (NEW.claim_id IS NOT NULL) OR ((NEW.hot_idle_since IS NOT NULL OR NEW.hot_idle_until IS NOT NULL)) THEN
    IF NOT (NEW.state IN ('activating', 'draining', 'hot', 'hot_idle', 'idle', 'lost', 'reserved', 'retired', 'spawning')) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'known_states_only', MESSAGE = 'known_states_only: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF NEW.state <> 'spawning' THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'every_worker_begins_as_a_slot', MESSAGE = 'every_worker_begins_as_a_slot: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF NEW.epoch < 0 THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'epoch_not_negative', MESSAGE = 'epoch_not_negative: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF NOT (NEW.moved_reason IN ('abandoned', 'activated', 'activating', 'activation_failed', 'claimed', 'container_ended', 'create_failed', 'demand', 'disrupted', 'drained', 'gave_way', 'hot_idle_cap', 'hot_idle_ttl', 'lease_expired', 'max_age', 'node_returned', 'not_ready', 'pod_deleted', 'pod_gone', 'pod_terminating', 'probe_failed', 'ready', 'released', 'retired', 'rollout', 'stopped', 'surplus', 'table_behind', 'tainted', 'unconfigured', 'unhealthy', 'unknown_key', 'unschedulable', 'wrong_image')) OR NOT (NEW.leaving_reason IN ('abandoned', 'activated', 'activating', 'activation_failed', 'claimed', 'container_ended', 'create_failed', 'demand', 'disrupted', 'drained', 'gave_way', 'hot_idle_cap', 'hot_idle_ttl', 'lease_expired', 'max_age', 'node_returned', 'not_ready', 'pod_deleted', 'pod_gone', 'pod_terminating', 'probe_failed', 'ready', 'released', 'retired', 'rollout', 'stopped', 'surplus', 'table_behind', 'tainted', 'unconfigured', 'unhealthy', 'unknown_key', 'unschedulable', 'wrong_image')) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'known_move_reasons_only', MESSAGE = 'known_move_reasons_only: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF (NEW.leaving_since IS NULL AND NEW.leaving_reason IS NOT NULL) OR (NEW.leaving_since IS NOT NULL AND NEW.leaving_reason IS NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'marked_exactly_with_a_reason', MESSAGE = 'marked_exactly_with_a_reason: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF NEW.claim_id IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'claimed_exactly_with_a_claim', MESSAGE = 'claimed_exactly_with_a_claim: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF (NEW.hot_idle_since IS NOT NULL OR NEW.hot_idle_until IS NOT NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'parked_exactly_with_an_end', MESSAGE = 'parked_exactly_with_an_end: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
  END IF;
  INSERT INTO journal (at, worker_id, from_state, to_state, epoch, org, claim_id, who, reason, detail) VALUES ((SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock), NEW.id, NULL, NEW.state, NEW.epoch, NEW.org, NEW.claim_id, NEW.moved_by, NEW.moved_reason, NEW.moved_detail);
  RETURN NEW;
END $$
;;
CREATE TRIGGER workers_made BEFORE INSERT ON workers FOR EACH ROW EXECUTE FUNCTION workers_made()
;;
CREATE FUNCTION workers_guard() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE broken boolean; at timestamptz; BEGIN
  IF NEW.state = 'hot' THEN
    broken := NOT (OLD.state IN ('activating', 'hot', 'hot_idle', 'idle', 'spawning')) OR NEW.claim_id IS NULL OR NEW.org IS NULL OR (NEW.pod_uid IS NULL OR NEW.endpoint IS NULL) OR (NEW.hot_idle_since IS NOT NULL OR NEW.hot_idle_until IS NOT NULL);
  ELSIF NEW.state = 'hot_idle' THEN
    broken := NOT (OLD.state IN ('hot', 'hot_idle')) OR NEW.claim_id IS NOT NULL OR NEW.org IS NULL OR (NEW.pod_uid IS NULL OR NEW.endpoint IS NULL) OR (NEW.hot_idle_since IS NULL OR NEW.hot_idle_until IS NULL) OR NEW.leaving_since IS NOT NULL;
  ELSIF NEW.state = 'draining' THEN
    broken := NOT (OLD.state IN ('activating', 'draining', 'hot', 'hot_idle', 'idle', 'reserved', 'spawning')) OR NEW.claim_id IS NOT NULL OR (NEW.hot_idle_since IS NOT NULL OR NEW.hot_idle_until IS NOT NULL);
  ELSIF NEW.state = 'idle' THEN
    broken := NOT (OLD.state IN ('idle', 'spawning')) OR NEW.claim_id IS NOT NULL OR NEW.org IS NOT NULL OR (NEW.pod_uid IS NULL OR NEW.endpoint IS NULL) OR (NEW.hot_idle_since IS NOT NULL OR NEW.hot_idle_until IS NOT NULL) OR NEW.leaving_since IS NOT NULL;
  ELSIF NEW.state = 'spawning' THEN
    broken := NOT (OLD.state IN ('spawning')) OR NEW.claim_id IS NOT NULL OR (NEW.hot_idle_since IS NOT NULL OR NEW.hot_idle_until IS NOT NULL);
  ELSIF NEW.state = 'reserved' THEN
    broken := NOT (OLD.state IN ('idle', 'reserved', 'spawning')) OR NEW.claim_id IS NULL OR NEW.org IS NULL OR (NEW.pod_uid IS NULL OR NEW.endpoint IS NULL) OR (NEW.hot_idle_since IS NOT NULL OR NEW.hot_idle_until IS NOT NULL);
  ELSIF NEW.state = 'activating' THEN
    broken := NOT (OLD.state IN ('activating', 'reserved')) OR NEW.claim_id IS NULL OR NEW.org IS NULL OR (NEW.pod_uid IS NULL OR NEW.endpoint IS NULL) OR (NEW.hot_idle_since IS NOT NULL OR NEW.hot_idle_until IS NOT NULL);
  ELSIF NEW.state = 'retired' THEN
    broken := NOT (OLD.state IN ('draining')) OR NEW.claim_id IS NOT NULL OR (NEW.hot_idle_since IS NOT NULL OR NEW.hot_idle_until IS NOT NULL);
  ELSIF NEW.state = 'lost' THEN
    broken := NOT (OLD.state IN ('activating', 'hot', 'hot_idle', 'idle', 'reserved', 'spawning')) OR NEW.claim_id IS NOT NULL OR (NEW.hot_idle_since IS NOT NULL OR NEW.hot_idle_until IS NOT NULL);
  ELSE
    broken := true;
  END IF;
  IF broken OR (NEW.epoch < OLD.epoch) OR (NEW.epoch <= OLD.epoch AND NEW.claim_id IS DISTINCT FROM OLD.claim_id) OR (OLD.org IS NOT NULL AND (NEW.org IS NULL OR NEW.org <> OLD.org)) OR (NOT (NEW.moved_reason IN ('abandoned', 'activated', 'activating', 'activation_failed', 'claimed', 'container_ended', 'create_failed', 'demand', 'disrupted', 'drained', 'gave_way', 'hot_idle_cap', 'hot_idle_ttl', 'lease_expired', 'max_age', 'node_returned', 'not_ready', 'pod_deleted', 'pod_gone', 'pod_terminating', 'probe_failed', 'ready', 'released', 'retired', 'rollout', 'stopped', 'surplus', 'table_behind', 'tainted', 'unconfigured', 'unhealthy', 'unknown_key', 'unschedulable', 'wrong_image')) OR NOT (NEW.leaving_reason IN ('abandoned', 'activated', 'activating', 'activation_failed', 'claimed', 'container_ended', 'create_failed', 'demand', 'disrupted', 'drained', 'gave_way', 'hot_idle_cap', 'hot_idle_ttl', 'lease_expired', 'max_age', 'node_returned', 'not_ready', 'pod_deleted', 'pod_gone', 'pod_terminating', 'probe_failed', 'ready', 'released', 'retired', 'rollout', 'stopped', 'surplus', 'table_behind', 'tainted', 'unconfigured', 'unhealthy', 'unknown_key', 'unschedulable', 'wrong_image'))) OR ((NEW.leaving_since IS NULL AND NEW.leaving_reason IS NOT NULL) OR (NEW.leaving_since IS NOT NULL AND NEW.leaving_reason IS NULL)) THEN
    IF NOT (NEW.state IN ('activating', 'draining', 'hot', 'hot_idle', 'idle', 'lost', 'reserved', 'retired', 'spawning')) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'known_states_only', MESSAGE = 'known_states_only: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF OLD.state IN ('lost', 'retired') THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'terminal_row_never_comes_back', MESSAGE = 'terminal_row_never_comes_back: ' || format('worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
    IF (NEW.state IN ('hot') AND NOT (OLD.state IN ('activating', 'hot', 'hot_idle', 'idle', 'spawning'))) OR (NEW.state IN ('hot_idle') AND NOT (OLD.state IN ('hot', 'hot_idle'))) OR (NEW.state IN ('draining') AND NOT (OLD.state IN ('activating', 'draining', 'hot', 'hot_idle', 'idle', 'reserved', 'spawning'))) OR (NEW.state IN ('idle') AND NOT (OLD.state IN ('idle', 'spawning'))) OR (NEW.state IN ('spawning') AND NOT (OLD.state IN ('spawning'))) OR (NEW.state IN ('reserved') AND NOT (OLD.state IN ('idle', 'reserved', 'spawning'))) OR (NEW.state IN ('activating') AND NOT (OLD.state IN ('activating', 'reserved'))) OR (NEW.state IN ('retired') AND NOT (OLD.state IN ('draining'))) OR (NEW.state IN ('lost') AND NOT (OLD.state IN ('activating', 'hot', 'hot_idle', 'idle', 'reserved', 'spawning'))) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'legal_moves_only', MESSAGE = 'legal_moves_only: ' || format('worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
    IF NEW.epoch < OLD.epoch THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'epoch_never_goes_back', MESSAGE = 'epoch_never_goes_back: ' || format('worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
    IF NEW.epoch <= OLD.epoch AND NEW.claim_id IS DISTINCT FROM OLD.claim_id THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'new_holder_means_new_epoch', MESSAGE = 'new_holder_means_new_epoch: ' || format('worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
    IF OLD.org IS NOT NULL AND (NEW.org IS NULL OR NEW.org <> OLD.org) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'one_org_for_life', MESSAGE = 'one_org_for_life: ' || format('worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
    IF (NEW.state IN ('activating', 'hot', 'reserved') AND NEW.claim_id IS NULL) OR (NEW.state IN ('draining', 'hot_idle', 'idle', 'lost', 'retired', 'spawning') AND NEW.claim_id IS NOT NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'claimed_exactly_with_a_claim', MESSAGE = 'claimed_exactly_with_a_claim: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF (NEW.state IN ('activating', 'hot', 'hot_idle', 'reserved') AND NEW.org IS NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'bound_worker_has_an_org', MESSAGE = 'bound_worker_has_an_org: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF (NEW.state IN ('idle') AND NEW.org IS NOT NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'idle_worker_is_neutral', MESSAGE = 'idle_worker_is_neutral: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF (NEW.state IN ('activating', 'hot', 'hot_idle', 'idle', 'reserved') AND (NEW.pod_uid IS NULL OR NEW.endpoint IS NULL)) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'past_its_slot_there_is_a_pod', MESSAGE = 'past_its_slot_there_is_a_pod: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF (NEW.state IN ('activating', 'draining', 'hot', 'idle', 'lost', 'reserved', 'retired', 'spawning') AND (NEW.hot_idle_since IS NOT NULL OR NEW.hot_idle_until IS NOT NULL)) OR (NEW.state IN ('hot_idle') AND (NEW.hot_idle_since IS NULL OR NEW.hot_idle_until IS NULL)) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'parked_exactly_with_an_end', MESSAGE = 'parked_exactly_with_an_end: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF (NEW.state IN ('hot_idle', 'idle') AND NEW.leaving_since IS NOT NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'leaver_is_never_parked', MESSAGE = 'leaver_is_never_parked: ' || format('worker %s, %s', NEW.id, NEW.state); END IF;
    IF NOT (NEW.moved_reason IN ('abandoned', 'activated', 'activating', 'activation_failed', 'claimed', 'container_ended', 'create_failed', 'demand', 'disrupted', 'drained', 'gave_way', 'hot_idle_cap', 'hot_idle_ttl', 'lease_expired', 'max_age', 'node_returned', 'not_ready', 'pod_deleted', 'pod_gone', 'pod_terminating', 'probe_failed', 'ready', 'released', 'retired', 'rollout', 'stopped', 'surplus', 'table_behind', 'tainted', 'unconfigured', 'unhealthy', 'unknown_key', 'unschedulable', 'wrong_image')) OR NOT (NEW.leaving_reason IN ('abandoned', 'activated', 'activating', 'activation_failed', 'claimed', 'container_ended', 'create_failed', 'demand', 'disrupted', 'drained', 'gave_way', 'hot_idle_cap', 'hot_idle_ttl', 'lease_expired', 'max_age', 'node_returned', 'not_ready', 'pod_deleted', 'pod_gone', 'pod_terminating', 'probe_failed', 'ready', 'released', 'retired', 'rollout', 'stopped', 'surplus', 'table_behind', 'tainted', 'unconfigured', 'unhealthy', 'unknown_key', 'unschedulable', 'wrong_image')) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'known_move_reasons_only', MESSAGE = 'known_move_reasons_only: ' || format('worker %s, %s, %s', NEW.id, NEW.moved_reason, NEW.leaving_reason); END IF;
    IF (NEW.leaving_since IS NULL AND NEW.leaving_reason IS NOT NULL) OR (NEW.leaving_since IS NOT NULL AND NEW.leaving_reason IS NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'marked_exactly_with_a_reason', MESSAGE = 'marked_exactly_with_a_reason: ' || format('worker %s, %s, %s', NEW.id, NEW.moved_reason, NEW.leaving_reason); END IF;
  END IF;
  IF NEW.state <> OLD.state THEN
    IF OLD.state = 'idle' THEN
      NEW.warm_s := OLD.warm_s + greatest(0, date_part('epoch', NEW.state_since - OLD.state_since));
    ELSIF OLD.state = 'hot_idle' THEN
      NEW.parked_s := OLD.parked_s
        + greatest(0, date_part('epoch', least(NEW.state_since, OLD.hot_idle_until) - OLD.state_since));
      NEW.overdue_s := OLD.overdue_s + greatest(0, date_part('epoch', NEW.state_since - OLD.hot_idle_until));
    ELSIF OLD.state = 'spawning' THEN
      NEW.starting_s := OLD.starting_s + greatest(0, date_part('epoch', NEW.state_since - OLD.state_since));
    END IF;
  END IF;
  IF NEW.state <> OLD.state OR NEW.epoch <> OLD.epoch OR (NEW.leaving_since IS NULL AND OLD.leaving_since IS NOT NULL) OR (NEW.leaving_since IS NOT NULL AND OLD.leaving_since IS NULL) THEN
    -- A move is as old as the row says; by what else changes the row does not tell.
    IF NEW.state_since <> OLD.state_since THEN
      at := NEW.state_since;
    ELSE
      at := (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock);
    END IF;
    INSERT INTO journal (at, worker_id, from_state, to_state, epoch, org, claim_id, who, reason, detail) VALUES (at, NEW.id, OLD.state, NEW.state, NEW.epoch, NEW.org, NEW.claim_id, NEW.moved_by, NEW.moved_reason, NEW.moved_detail);
  END IF;
    IF NEW.state IN ('lost', 'retired') AND OLD.state NOT IN ('lost', 'retired') THEN
      INSERT INTO idle_spent (profile, reason, vcpu_s, gib_s)
        SELECT NEW.profile, spell.reason, spell.s * NEW.cpu_millicores / 1000.0, spell.s * NEW.memory_mib / 1024.0
        FROM (VALUES ('starting', NEW.starting_s), ('warm', NEW.warm_s), ('parked', NEW.parked_s), ('overdue', NEW.overdue_s), ('leaving', CASE WHEN OLD.state = 'draining'
          THEN GREATEST(0, EXTRACT(EPOCH FROM NEW.state_since - OLD.state_since))::float8 ELSE 0 END)) AS spell (reason, s)
        WHERE spell.s > 0 ORDER BY spell.reason
      ON CONFLICT (profile, reason) DO UPDATE
        SET vcpu_s = idle_spent.vcpu_s + EXCLUDED.vcpu_s, gib_s = idle_spent.gib_s + EXCLUDED.gib_s;
    END IF;
  RETURN NEW;
END $$
;;
CREATE TRIGGER workers_guard BEFORE UPDATE ON workers FOR EACH ROW EXECUTE FUNCTION workers_guard()
;;
CREATE FUNCTION workers_fixed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF (NEW.profile <> OLD.profile OR NEW.image <> OLD.image OR NEW.id <> OLD.id) OR (OLD.pod_uid IS NOT NULL AND (NEW.pod_uid IS NULL OR NEW.pod_uid <> OLD.pod_uid)) THEN
    IF NEW.profile <> OLD.profile OR NEW.image <> OLD.image OR NEW.id <> OLD.id THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'one_profile_for_life', MESSAGE = 'one_profile_for_life: ' || format('worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
    IF OLD.pod_uid IS NOT NULL AND (NEW.pod_uid IS NULL OR NEW.pod_uid <> OLD.pod_uid) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'one_pod_for_life', MESSAGE = 'one_pod_for_life: ' || format('worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  END IF;
  RETURN NEW;
END $$
;;
CREATE TRIGGER workers_fixed BEFORE UPDATE OF id, profile, image, pod_uid ON workers FOR EACH ROW EXECUTE FUNCTION workers_fixed()
;;
CREATE FUNCTION workers_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF (NOT (OLD.state IN ('lost', 'retired'))) THEN
    IF NOT (OLD.state IN ('lost', 'retired')) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'live_row_is_never_deleted', MESSAGE = 'live_row_is_never_deleted: ' || OLD.id; END IF;
  END IF;
  RETURN OLD;
END $$
;;
CREATE TRIGGER workers_delete BEFORE DELETE ON workers FOR EACH ROW EXECUTE FUNCTION workers_delete()
;;
CREATE FUNCTION claims_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF (OLD.ended_at IS NOT NULL) OR ((NEW.ended_at IS NULL AND NEW.ended_why IS NOT NULL) OR (NEW.ended_at IS NOT NULL AND NEW.ended_why IS NULL)) OR ((NEW.hot_at IS NULL AND NEW.lease_expires_at IS NOT NULL) OR (NEW.hot_at IS NOT NULL AND NEW.lease_expires_at IS NULL)) THEN
    IF OLD.ended_at IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'ended_claim_stays_ended', MESSAGE = 'ended_claim_stays_ended: ' || NEW.id; END IF;
    IF (NEW.ended_at IS NULL AND NEW.ended_why IS NOT NULL) OR (NEW.ended_at IS NOT NULL AND NEW.ended_why IS NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'ended_exactly_with_a_cause', MESSAGE = 'ended_exactly_with_a_cause: ' || NEW.id; END IF;
    IF (NEW.hot_at IS NULL AND NEW.lease_expires_at IS NOT NULL) OR (NEW.hot_at IS NOT NULL AND NEW.lease_expires_at IS NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'lease_starts_when_hot', MESSAGE = 'lease_starts_when_hot: ' || NEW.id; END IF;
  END IF;
  RETURN NEW;
END $$
;;
CREATE TRIGGER claims_guard BEFORE INSERT OR UPDATE ON claims FOR EACH ROW EXECUTE FUNCTION claims_guard()
;;
CREATE FUNCTION requests_guard() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE broken boolean; BEGIN
  IF NEW.state = 'granted' THEN
    broken := NEW.decided_at IS NULL OR NEW.claim_id IS NULL OR NEW.reason IS NOT NULL;
  ELSIF NEW.state = 'spent' THEN
    broken := NEW.decided_at IS NULL OR NEW.reason IS NOT NULL;
  ELSIF NEW.state = 'refused' THEN
    broken := NEW.decided_at IS NULL OR NEW.reason IS NULL;
  ELSIF NEW.state = 'waiting' THEN
    broken := NEW.decided_at IS NOT NULL OR NEW.reason IS NOT NULL;
  ELSIF NEW.state = 'binding' THEN
    broken := NEW.decided_at IS NOT NULL OR NEW.claim_id IS NULL OR NEW.reason IS NOT NULL;
  ELSE
    broken := true;
  END IF;
  IF broken THEN
    IF NOT (NEW.state IN ('binding', 'granted', 'refused', 'spent', 'waiting')) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'known_request_states_only', MESSAGE = 'known_request_states_only: ' || NEW.pk; END IF;
    IF (NEW.state IN ('granted', 'refused', 'spent') AND NEW.decided_at IS NULL) OR (NEW.state IN ('binding', 'waiting') AND NEW.decided_at IS NOT NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'decided_exactly_once_answered', MESSAGE = 'decided_exactly_once_answered: ' || NEW.pk; END IF;
    IF (NEW.state IN ('binding', 'granted') AND NEW.claim_id IS NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'grant_names_its_claim', MESSAGE = 'grant_names_its_claim: ' || NEW.pk; END IF;
    IF (NEW.state IN ('binding', 'granted', 'spent', 'waiting') AND NEW.reason IS NOT NULL) OR (NEW.state IN ('refused') AND NEW.reason IS NULL) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'refusal_has_a_reason', MESSAGE = 'refusal_has_a_reason: ' || NEW.pk; END IF;
  END IF;
  RETURN NEW;
END $$
;;
CREATE TRIGGER requests_guard BEFORE INSERT OR UPDATE OF state, decided_at, claim_id, reason ON requests FOR EACH ROW EXECUTE FUNCTION requests_guard()
;;
INSERT INTO clock (id, shift_s) VALUES (1, 0)
;;
INSERT INTO pool (id, live, lane_open_since, canary_at, began_at) VALUES (1, 0, (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock), (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock), (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock))
