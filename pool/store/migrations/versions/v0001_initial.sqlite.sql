CREATE TABLE breakers (
	profile TEXT NOT NULL, 
	failures INTEGER NOT NULL, 
	open_until TEXT, 
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
	created_at TEXT NOT NULL, 
	hot_at TEXT, 
	lease_expires_at TEXT, 
	ended_at TEXT, 
	ended_why TEXT, 
	counted BOOLEAN NOT NULL, 
	abandoned BOOLEAN DEFAULT 0 NOT NULL, 
	release_asked_at TEXT, 
	release_condition TEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT ended_exactly_with_a_cause CHECK ((ended_at IS NULL) = (ended_why IS NULL)), 
	CONSTRAINT lease_starts_when_hot CHECK ((hot_at IS NULL) = (lease_expires_at IS NULL))
)
;;
CREATE TABLE clock (
	id INTEGER NOT NULL CONSTRAINT one_clock CHECK (id = 1), 
	shift_s FLOAT DEFAULT 0 NOT NULL, 
	PRIMARY KEY (id)
)
;;
CREATE TABLE journal (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	worker_id TEXT NOT NULL, 
	from_state TEXT, 
	to_state TEXT NOT NULL, 
	epoch INTEGER NOT NULL, 
	org TEXT, 
	claim_id TEXT, 
	who TEXT NOT NULL, 
	why TEXT NOT NULL, 
	PRIMARY KEY (id)
)
;;
CREATE TABLE orgs (
	id TEXT NOT NULL, 
	cap INTEGER NOT NULL, 
	weight FLOAT NOT NULL, 
	hot_idle_floor INTEGER NOT NULL, 
	hot_idle_cap INTEGER NOT NULL, 
	hot_idle_ttl_s INTEGER, 
	"values" TEXT NOT NULL, 
	in_use INTEGER DEFAULT 0 NOT NULL, 
	parked INTEGER DEFAULT 0 NOT NULL, 
	created_at TEXT NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT org_counters_not_negative CHECK (in_use >= 0 AND parked >= 0), 
	CONSTRAINT org_limits_sane CHECK (cap >= 0 AND hot_idle_floor >= 0 AND hot_idle_cap >= 0 AND weight > 0)
)
;;
CREATE TABLE passes (
	name TEXT NOT NULL, 
	last_attempt_at TEXT, 
	last_success_at TEXT, 
	last_outcome TEXT, 
	last_detail TEXT, 
	last_duration_s FLOAT, 
	last_actions INTEGER, 
	holder TEXT, 
	failures INTEGER DEFAULT 0 NOT NULL, 
	paused BOOLEAN DEFAULT 0 NOT NULL, 
	paused_by TEXT, 
	PRIMARY KEY (name)
)
;;
CREATE TABLE pool (
	id INTEGER NOT NULL CONSTRAINT one_pool CHECK (id = 1), 
	live INTEGER NOT NULL CONSTRAINT pool_counter_not_negative CHECK (live >= 0), 
	paused BOOLEAN DEFAULT 0 NOT NULL, 
	lane_open_since TEXT NOT NULL, 
	canary_at TEXT NOT NULL, 
	began_at TEXT NOT NULL, 
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
	created_at TEXT NOT NULL, 
	deadline_at TEXT NOT NULL, 
	decided_at TEXT, 
	replied_at TEXT, 
	replies TEXT NOT NULL, 
	missed_at TEXT, 
	miss_consumed_at TEXT, 
	PRIMARY KEY (pk), 
	CONSTRAINT one_request_per_org_and_id UNIQUE (org, request_id), 
	CONSTRAINT known_request_states_only CHECK (state IN ('binding', 'granted', 'refused', 'spent', 'waiting')), 
	CONSTRAINT decided_exactly_once_answered CHECK ((state IN ('binding', 'waiting')) = (decided_at IS NULL)), 
	CONSTRAINT grant_names_its_claim CHECK (NOT (state IN ('binding', 'granted')) OR claim_id IS NOT NULL), 
	CONSTRAINT refusal_has_a_reason CHECK ((state = 'refused') = (reason IS NOT NULL))
)
;;
CREATE TABLE suspects (
	kind TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	first_seen_at TEXT NOT NULL, 
	last_seen_at TEXT NOT NULL, 
	runs INTEGER NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (kind, subject)
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
	created_at TEXT NOT NULL, 
	state_since TEXT NOT NULL, 
	sent_at TEXT, 
	ready_at TEXT, 
	heartbeat_at TEXT, 
	hot_idle_since TEXT, 
	hot_idle_until TEXT, 
	parked_counted BOOLEAN DEFAULT 0 NOT NULL, 
	leaving_since TEXT, 
	leaving_why TEXT, 
	moved_by TEXT NOT NULL, 
	moved_why TEXT NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT known_states_only CHECK (state IN ('activating', 'draining', 'hot', 'hot_idle', 'idle', 'lost', 'reserved', 'retired', 'spawning')), 
	CONSTRAINT claimed_exactly_with_a_claim CHECK ((state IN ('activating', 'hot', 'reserved')) = (claim_id IS NOT NULL)), 
	CONSTRAINT bound_worker_has_an_org CHECK (NOT (state IN ('activating', 'hot', 'hot_idle', 'reserved')) OR org IS NOT NULL), 
	CONSTRAINT idle_worker_is_neutral CHECK (state <> 'idle' OR org IS NULL), 
	CONSTRAINT past_its_slot_there_is_a_pod CHECK (NOT (state IN ('activating', 'hot', 'hot_idle', 'idle', 'reserved')) OR (pod_uid IS NOT NULL AND endpoint IS NOT NULL)), 
	CONSTRAINT parked_exactly_with_an_end CHECK ((state = 'hot_idle') = (hot_idle_since IS NOT NULL) AND (state = 'hot_idle') = (hot_idle_until IS NOT NULL)), 
	CONSTRAINT leaver_is_never_parked CHECK (NOT (state IN ('hot_idle', 'idle')) OR leaving_since IS NULL), 
	CONSTRAINT epoch_not_negative CHECK (epoch >= 0)
)
;;
CREATE INDEX decided_unreplied ON requests (decided_at) WHERE decided_at IS NOT NULL AND replied_at IS NULL
;;
CREATE INDEX ended_by_age ON workers (state_since, id) WHERE state IN ('lost', 'retired')
;;
CREATE INDEX ended_claims_by_age ON claims (ended_at, id) WHERE ended_at IS NOT NULL
;;
CREATE INDEX idle_in_claim_order ON workers (profile, ready_at, id) WHERE state = 'idle'
;;
CREATE INDEX journal_by_age ON journal (at)
;;
CREATE INDEX journal_by_worker ON journal (worker_id, id)
;;
CREATE INDEX leaving_busy ON workers (id) WHERE leaving_since IS NOT NULL AND (state IN ('activating', 'hot', 'reserved'))
;;
CREATE INDEX live_by_state ON workers (state, state_since, id) WHERE state IN ('activating', 'draining', 'hot', 'hot_idle', 'idle', 'reserved', 'spawning')
;;
CREATE INDEX live_claims_by_lease ON claims (lease_expires_at, id) WHERE ended_at IS NULL
;;
CREATE INDEX live_claims_by_org ON claims (org) WHERE ended_at IS NULL
;;
CREATE INDEX misses_unconsumed ON requests (profile, missed_at) WHERE missed_at IS NOT NULL AND miss_consumed_at IS NULL
;;
CREATE UNIQUE INDEX one_live_claim_a_worker ON claims (worker_id) WHERE ended_at IS NULL
;;
CREATE UNIQUE INDEX one_live_worker_a_claim ON workers (claim_id) WHERE claim_id IS NOT NULL
;;
CREATE INDEX parked_by_end ON workers (hot_idle_until, id) WHERE state = 'hot_idle'
;;
CREATE INDEX parked_in_claim_order ON workers (org, profile, hot_idle_since, id) WHERE state = 'hot_idle'
;;
CREATE INDEX releases_unfinished ON claims (release_asked_at) WHERE ended_at IS NULL AND release_asked_at IS NOT NULL
;;
CREATE INDEX requests_by_age ON requests (decided_at, pk) WHERE decided_at IS NOT NULL
;;
CREATE INDEX requests_by_claim ON requests (claim_id)
;;
CREATE INDEX waiting_by_deadline ON requests (deadline_at) WHERE state = 'waiting'
;;
CREATE INDEX waiting_by_org ON requests (org, profile) WHERE state = 'waiting'
;;
CREATE INDEX waiting_in_order ON requests (profile, created_at, pk) WHERE state = 'waiting'
;;
CREATE TRIGGER terminal_row_never_comes_back BEFORE UPDATE ON workers WHEN OLD.state IN ('lost', 'retired') BEGIN SELECT RAISE(ABORT, 'terminal_row_never_comes_back'); END
;;
CREATE TRIGGER legal_moves_only BEFORE UPDATE ON workers WHEN NEW.state <> OLD.state AND OLD.state || '>' || NEW.state NOT IN ('spawning>draining', 'spawning>hot', 'spawning>idle', 'spawning>lost', 'spawning>reserved', 'idle>draining', 'idle>hot', 'idle>lost', 'idle>reserved', 'reserved>activating', 'reserved>draining', 'reserved>lost', 'activating>draining', 'activating>hot', 'activating>lost', 'hot>draining', 'hot>hot_idle', 'hot>lost', 'hot_idle>draining', 'hot_idle>hot', 'hot_idle>lost', 'draining>retired') BEGIN SELECT RAISE(ABORT, 'legal_moves_only'); END
;;
CREATE TRIGGER epoch_never_goes_back BEFORE UPDATE ON workers WHEN NEW.epoch < OLD.epoch BEGIN SELECT RAISE(ABORT, 'epoch_never_goes_back'); END
;;
CREATE TRIGGER new_holder_means_new_epoch BEFORE UPDATE ON workers WHEN COALESCE(NEW.claim_id, '') <> COALESCE(OLD.claim_id, '') AND NEW.epoch <= OLD.epoch BEGIN SELECT RAISE(ABORT, 'new_holder_means_new_epoch'); END
;;
CREATE TRIGGER one_org_for_life BEFORE UPDATE ON workers WHEN OLD.org IS NOT NULL AND (NEW.org IS NULL OR NEW.org <> OLD.org) BEGIN SELECT RAISE(ABORT, 'one_org_for_life'); END
;;
CREATE TRIGGER one_profile_for_life BEFORE UPDATE ON workers WHEN NEW.profile <> OLD.profile OR NEW.image <> OLD.image OR NEW.id <> OLD.id BEGIN SELECT RAISE(ABORT, 'one_profile_for_life'); END
;;
CREATE TRIGGER one_pod_for_life BEFORE UPDATE ON workers WHEN OLD.pod_uid IS NOT NULL AND (NEW.pod_uid IS NULL OR NEW.pod_uid <> OLD.pod_uid) BEGIN SELECT RAISE(ABORT, 'one_pod_for_life'); END
;;
CREATE TRIGGER every_worker_begins_as_a_slot BEFORE INSERT ON workers WHEN NEW.state <> 'spawning' BEGIN SELECT RAISE(ABORT, 'every_worker_begins_as_a_slot'); END
;;
CREATE TRIGGER live_row_is_never_deleted BEFORE DELETE ON workers WHEN OLD.state NOT IN ('lost', 'retired') BEGIN SELECT RAISE(ABORT, 'live_row_is_never_deleted'); END
;;
CREATE TRIGGER ended_claim_stays_ended BEFORE UPDATE ON claims WHEN OLD.ended_at IS NOT NULL BEGIN SELECT RAISE(ABORT, 'ended_claim_stays_ended'); END
;;
CREATE TRIGGER workers_journal_insert AFTER INSERT ON workers BEGIN INSERT INTO journal (at, worker_id, from_state, to_state, epoch, org, claim_id, who, why) VALUES ((SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', shift_s || ' seconds') FROM clock), NEW.id, NULL, NEW.state, NEW.epoch, NEW.org, NEW.claim_id, NEW.moved_by, NEW.moved_why); END
;;
CREATE TRIGGER workers_journal_update AFTER UPDATE ON workers WHEN NEW.state <> OLD.state OR NEW.epoch <> OLD.epoch OR (NEW.leaving_since IS NULL) <> (OLD.leaving_since IS NULL) BEGIN INSERT INTO journal (at, worker_id, from_state, to_state, epoch, org, claim_id, who, why) VALUES ((SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', shift_s || ' seconds') FROM clock), NEW.id, OLD.state, NEW.state, NEW.epoch, NEW.org, NEW.claim_id, NEW.moved_by, NEW.moved_why); END
;;
INSERT INTO clock (id, shift_s) VALUES (1, 0)
;;
INSERT INTO pool (id, live, lane_open_since, canary_at, began_at) VALUES (1, 0, (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', shift_s || ' seconds') FROM clock), (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', shift_s || ' seconds') FROM clock), (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', shift_s || ' seconds') FROM clock))
