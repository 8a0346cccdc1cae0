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
	PRIMARY KEY (id), 
	CONSTRAINT ended_exactly_with_a_cause CHECK ((ended_at IS NULL) = (ended_why IS NULL)), 
	CONSTRAINT lease_starts_when_hot CHECK ((hot_at IS NULL) = (lease_expires_at IS NULL))
)
;;
CREATE TABLE clock (
	id SERIAL NOT NULL CONSTRAINT one_clock CHECK (id = 1), 
	shift_s FLOAT DEFAULT 0 NOT NULL, 
	PRIMARY KEY (id)
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
	first_seen_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	last_seen_at TIMESTAMP WITH TIME ZONE NOT NULL, 
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
	created_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	state_since TIMESTAMP WITH TIME ZONE NOT NULL, 
	sent_at TIMESTAMP WITH TIME ZONE, 
	ready_at TIMESTAMP WITH TIME ZONE, 
	heartbeat_at TIMESTAMP WITH TIME ZONE, 
	hot_idle_since TIMESTAMP WITH TIME ZONE, 
	hot_idle_until TIMESTAMP WITH TIME ZONE, 
	parked_counted BOOLEAN DEFAULT false NOT NULL, 
	leaving_since TIMESTAMP WITH TIME ZONE, 
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
CREATE FUNCTION workers_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF OLD.state IN ('lost', 'retired') THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'terminal_row_never_comes_back', MESSAGE = format('terminal_row_never_comes_back: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF NEW.state <> OLD.state AND OLD.state || '>' || NEW.state NOT IN ('spawning>draining', 'spawning>hot', 'spawning>idle', 'spawning>lost', 'spawning>reserved', 'idle>draining', 'idle>hot', 'idle>lost', 'idle>reserved', 'reserved>activating', 'reserved>draining', 'reserved>lost', 'activating>draining', 'activating>hot', 'activating>lost', 'hot>draining', 'hot>hot_idle', 'hot>lost', 'hot_idle>draining', 'hot_idle>hot', 'hot_idle>lost', 'draining>retired') THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'legal_moves_only', MESSAGE = format('legal_moves_only: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF NEW.epoch < OLD.epoch THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'epoch_never_goes_back', MESSAGE = format('epoch_never_goes_back: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF COALESCE(NEW.claim_id, '') <> COALESCE(OLD.claim_id, '') AND NEW.epoch <= OLD.epoch THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'new_holder_means_new_epoch', MESSAGE = format('new_holder_means_new_epoch: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF OLD.org IS NOT NULL AND (NEW.org IS NULL OR NEW.org <> OLD.org) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'one_org_for_life', MESSAGE = format('one_org_for_life: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF NEW.profile <> OLD.profile OR NEW.image <> OLD.image OR NEW.id <> OLD.id THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'one_profile_for_life', MESSAGE = format('one_profile_for_life: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF OLD.pod_uid IS NOT NULL AND (NEW.pod_uid IS NULL OR NEW.pod_uid <> OLD.pod_uid) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'one_pod_for_life', MESSAGE = format('one_pod_for_life: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  RETURN NEW; END $$
;;
CREATE TRIGGER workers_guard BEFORE UPDATE ON workers FOR EACH ROW EXECUTE FUNCTION workers_guard()
;;
CREATE FUNCTION workers_journal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO journal (at, worker_id, from_state, to_state, epoch, org, claim_id, who, why) VALUES ((SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock), NEW.id, NULL, NEW.state, NEW.epoch, NEW.org, NEW.claim_id, NEW.moved_by, NEW.moved_why);
  ELSE
    INSERT INTO journal (at, worker_id, from_state, to_state, epoch, org, claim_id, who, why) VALUES ((SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock), NEW.id, OLD.state, NEW.state, NEW.epoch, NEW.org, NEW.claim_id, NEW.moved_by, NEW.moved_why);
  END IF;
  RETURN NULL; END $$
;;
CREATE TRIGGER workers_journal_insert AFTER INSERT ON workers FOR EACH ROW EXECUTE FUNCTION workers_journal()
;;
CREATE TRIGGER workers_journal_update AFTER UPDATE ON workers FOR EACH ROW WHEN (NEW.state <> OLD.state OR NEW.epoch <> OLD.epoch OR (NEW.leaving_since IS NULL) <> (OLD.leaving_since IS NULL)) EXECUTE FUNCTION workers_journal()
;;
CREATE FUNCTION workers_begin() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'every_worker_begins_as_a_slot', MESSAGE = 'every_worker_begins_as_a_slot'; END $$
;;
CREATE TRIGGER workers_begin BEFORE INSERT ON workers FOR EACH ROW WHEN (NEW.state <> 'spawning') EXECUTE FUNCTION workers_begin()
;;
CREATE FUNCTION workers_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'live_row_is_never_deleted', MESSAGE = 'live_row_is_never_deleted'; END $$
;;
CREATE TRIGGER workers_delete BEFORE DELETE ON workers FOR EACH ROW WHEN (OLD.state NOT IN ('lost', 'retired')) EXECUTE FUNCTION workers_delete()
;;
CREATE FUNCTION claims_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'ended_claim_stays_ended', MESSAGE = 'ended_claim_stays_ended'; END $$
;;
CREATE TRIGGER claims_guard BEFORE UPDATE ON claims FOR EACH ROW WHEN (OLD.ended_at IS NOT NULL) EXECUTE FUNCTION claims_guard()
;;
CREATE FUNCTION warmpool_claim(
  p_pk text, p_org text, p_request_id text, p_profile text, p_lease_s integer, p_ttl_s integer, p_wait_s integer,
  p_replies text, p_claim_id text, p_activates boolean, p_who text, p_why text,
  OUT worker_id text, OUT epoch integer, OUT endpoint text, OUT source text, OUT lease_expires_at timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
  o record;
  w record;
  t timestamptz;
  bound boolean;
BEGIN
  IF EXISTS (SELECT 1 FROM pool WHERE paused)
    OR EXISTS (SELECT 1 FROM requests r WHERE r.profile = p_profile AND r.state = 'waiting') THEN RETURN; END IF;
  SELECT cap, in_use INTO o FROM orgs WHERE id = p_org;
  IF NOT FOUND OR (o.cap > 0 AND o.in_use >= o.cap) THEN RETURN; END IF;

  SELECT * INTO w FROM workers WHERE state = 'hot_idle' AND org = p_org AND profile = p_profile
    ORDER BY hot_idle_since DESC, id DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    SELECT * INTO w FROM workers WHERE state = 'idle' AND profile = p_profile
      ORDER BY ready_at, id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN; END IF;
  END IF;
  bound := w.state = 'idle' AND p_activates;
  t := (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock);

  INSERT INTO requests (pk, org, request_id, profile, lease_s, ttl_s, wait_s, state, claim_id, created_at, deadline_at,
      decided_at, replies)
    VALUES (p_pk, p_org, p_request_id, p_profile, p_lease_s, p_ttl_s, p_wait_s,
      CASE WHEN bound THEN 'binding' ELSE 'granted' END, p_claim_id, t, t + make_interval(secs => p_wait_s),
      CASE WHEN bound THEN NULL ELSE t END, p_replies)
    ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN RETURN; END IF;
  IF o.cap > 0 THEN
    UPDATE orgs SET in_use = in_use + 1 WHERE id = p_org AND in_use < cap;
    IF NOT FOUND THEN DELETE FROM requests WHERE pk = p_pk; RETURN; END IF;
  END IF;
  IF w.parked_counted THEN UPDATE orgs SET parked = parked - 1 WHERE id = p_org; END IF;

  source := CASE WHEN w.state = 'hot_idle' THEN 'hot_idle' ELSE 'warm' END;
  worker_id := w.id;
  epoch := w.epoch + 1;
  endpoint := w.endpoint;
  lease_expires_at := CASE WHEN bound THEN NULL ELSE t + make_interval(secs => p_lease_s) END;
  UPDATE workers SET state = CASE WHEN bound THEN 'reserved' ELSE 'hot' END, state_since = t, epoch = w.epoch + 1,
      org = p_org, claim_id = p_claim_id, heartbeat_at = t, hot_idle_since = NULL, hot_idle_until = NULL,
      parked_counted = false, moved_by = p_who, moved_why = p_why
    WHERE id = w.id;
  INSERT INTO claims (id, worker_id, org, profile, request_pk, epoch, source, lease_s, ttl_s, created_at, hot_at,
      lease_expires_at, counted)
    VALUES (p_claim_id, w.id, p_org, p_profile, p_pk, w.epoch + 1, warmpool_claim.source, p_lease_s, p_ttl_s, t,
      CASE WHEN bound THEN NULL ELSE t END, warmpool_claim.lease_expires_at, o.cap > 0);
END $$
;;
INSERT INTO clock (id, shift_s) VALUES (1, 0)
;;
INSERT INTO pool (id, live, lane_open_since, canary_at, began_at) VALUES (1, 0, (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock), (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock), (SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock))
