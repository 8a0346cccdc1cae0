ALTER TABLE workers RENAME TO workers_before
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
	starting_s FLOAT DEFAULT 0 NOT NULL, 
	warm_s FLOAT DEFAULT 0 NOT NULL, 
	parked_s FLOAT DEFAULT 0 NOT NULL, 
	overdue_s FLOAT DEFAULT 0 NOT NULL, 
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
INSERT INTO workers (id, profile, image, revision, cpu_millicores, memory_mib, grace_s, state, epoch, org, claim_id, endpoint, pod_uid, node, created_at, state_since, sent_at, ready_at, heartbeat_at, hot_idle_since, hot_idle_until, parked_counted, leaving_since, leaving_why, moved_by, moved_why) SELECT id, profile, image, revision, cpu_millicores, memory_mib, grace_s, state, epoch, org, claim_id, endpoint, pod_uid, node, created_at, state_since, sent_at, ready_at, heartbeat_at, hot_idle_since, hot_idle_until, parked_counted, leaving_since, leaving_why, moved_by, moved_why FROM workers_before
;;
DROP TABLE workers_before
;;
CREATE INDEX ended_by_age ON workers (state_since, id) WHERE state IN ('lost', 'retired')
;;
CREATE INDEX idle_in_claim_order ON workers (profile, ready_at, id) WHERE state = 'idle'
;;
CREATE INDEX leaving_busy ON workers (id) WHERE leaving_since IS NOT NULL AND (state IN ('activating', 'hot', 'reserved'))
;;
CREATE INDEX live_by_state ON workers (state, state_since, id) WHERE state IN ('activating', 'draining', 'hot', 'hot_idle', 'idle', 'reserved', 'spawning')
;;
CREATE UNIQUE INDEX one_live_worker_a_claim ON workers (claim_id) WHERE claim_id IS NOT NULL
;;
CREATE INDEX parked_by_end ON workers (hot_idle_until, id) WHERE state = 'hot_idle'
;;
CREATE INDEX parked_in_claim_order ON workers (org, profile, hot_idle_since, id) WHERE state = 'hot_idle'
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
CREATE TRIGGER workers_journal_insert AFTER INSERT ON workers BEGIN INSERT INTO journal (at, worker_id, from_state, to_state, epoch, org, claim_id, who, why) VALUES ((SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', shift_s || ' seconds') FROM clock), NEW.id, NULL, NEW.state, NEW.epoch, NEW.org, NEW.claim_id, NEW.moved_by, NEW.moved_why); END
;;
CREATE TRIGGER workers_journal_update AFTER UPDATE ON workers WHEN NEW.state <> OLD.state OR NEW.epoch <> OLD.epoch OR (NEW.leaving_since IS NULL) <> (OLD.leaving_since IS NULL) BEGIN INSERT INTO journal (at, worker_id, from_state, to_state, epoch, org, claim_id, who, why) VALUES ((SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', shift_s || ' seconds') FROM clock), NEW.id, OLD.state, NEW.state, NEW.epoch, NEW.org, NEW.claim_id, NEW.moved_by, NEW.moved_why); END
;;
CREATE TRIGGER workers_spend AFTER UPDATE ON workers WHEN NEW.state <> OLD.state BEGIN INSERT INTO idle_spent (profile, reason, vcpu_s, gib_s) SELECT NEW.profile, 'starting', s * NEW.cpu_millicores / 1000.0, s * NEW.memory_mib / 1024.0 FROM (SELECT (julianday(NEW.state_since) - julianday(OLD.state_since)) * 86400.0 AS s) WHERE OLD.state = 'spawning' AND s > 0 ON CONFLICT (profile, reason) DO UPDATE SET vcpu_s = vcpu_s + excluded.vcpu_s, gib_s = gib_s + excluded.gib_s; INSERT INTO idle_spent (profile, reason, vcpu_s, gib_s) SELECT NEW.profile, 'warm', s * NEW.cpu_millicores / 1000.0, s * NEW.memory_mib / 1024.0 FROM (SELECT (julianday(NEW.state_since) - julianday(OLD.state_since)) * 86400.0 AS s) WHERE OLD.state = 'idle' AND s > 0 ON CONFLICT (profile, reason) DO UPDATE SET vcpu_s = vcpu_s + excluded.vcpu_s, gib_s = gib_s + excluded.gib_s; INSERT INTO idle_spent (profile, reason, vcpu_s, gib_s) SELECT NEW.profile, 'parked', s * NEW.cpu_millicores / 1000.0, s * NEW.memory_mib / 1024.0 FROM (SELECT (julianday(MIN(NEW.state_since, OLD.hot_idle_until)) - julianday(OLD.state_since)) * 86400.0 AS s) WHERE OLD.state = 'hot_idle' AND s > 0 ON CONFLICT (profile, reason) DO UPDATE SET vcpu_s = vcpu_s + excluded.vcpu_s, gib_s = gib_s + excluded.gib_s; INSERT INTO idle_spent (profile, reason, vcpu_s, gib_s) SELECT NEW.profile, 'overdue', s * NEW.cpu_millicores / 1000.0, s * NEW.memory_mib / 1024.0 FROM (SELECT (julianday(NEW.state_since) - julianday(OLD.hot_idle_until)) * 86400.0 AS s) WHERE OLD.state = 'hot_idle' AND s > 0 ON CONFLICT (profile, reason) DO UPDATE SET vcpu_s = vcpu_s + excluded.vcpu_s, gib_s = gib_s + excluded.gib_s; INSERT INTO idle_spent (profile, reason, vcpu_s, gib_s) SELECT NEW.profile, 'leaving', s * NEW.cpu_millicores / 1000.0, s * NEW.memory_mib / 1024.0 FROM (SELECT (julianday(NEW.state_since) - julianday(OLD.state_since)) * 86400.0 AS s) WHERE OLD.state = 'draining' AND s > 0 ON CONFLICT (profile, reason) DO UPDATE SET vcpu_s = vcpu_s + excluded.vcpu_s, gib_s = gib_s + excluded.gib_s; END
;;
CREATE TABLE idle_spent (
	profile TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	vcpu_s FLOAT NOT NULL, 
	gib_s FLOAT NOT NULL, 
	PRIMARY KEY (profile, reason)
)
;;
CREATE TABLE sightings (
	pass TEXT NOT NULL, 
	what TEXT NOT NULL, 
	count INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	PRIMARY KEY (pass, what)
)
