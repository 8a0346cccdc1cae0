ALTER TABLE workers ADD COLUMN starting_s FLOAT DEFAULT 0 NOT NULL
;;
ALTER TABLE workers ADD COLUMN warm_s FLOAT DEFAULT 0 NOT NULL
;;
ALTER TABLE workers ADD COLUMN parked_s FLOAT DEFAULT 0 NOT NULL
;;
ALTER TABLE workers ADD COLUMN overdue_s FLOAT DEFAULT 0 NOT NULL
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
	at TIMESTAMP WITH TIME ZONE NOT NULL, 
	PRIMARY KEY (pass, what)
)
;;
CREATE OR REPLACE FUNCTION workers_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF OLD.state IN ('lost', 'retired') THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'terminal_row_never_comes_back', MESSAGE = format('terminal_row_never_comes_back: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF NEW.state <> OLD.state AND OLD.state || '>' || NEW.state NOT IN ('spawning>draining', 'spawning>hot', 'spawning>idle', 'spawning>lost', 'spawning>reserved', 'idle>draining', 'idle>hot', 'idle>lost', 'idle>reserved', 'reserved>activating', 'reserved>draining', 'reserved>lost', 'activating>draining', 'activating>hot', 'activating>lost', 'hot>draining', 'hot>hot_idle', 'hot>lost', 'hot_idle>draining', 'hot_idle>hot', 'hot_idle>lost', 'draining>retired') THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'legal_moves_only', MESSAGE = format('legal_moves_only: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF NEW.epoch < OLD.epoch THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'epoch_never_goes_back', MESSAGE = format('epoch_never_goes_back: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF COALESCE(NEW.claim_id, '') <> COALESCE(OLD.claim_id, '') AND NEW.epoch <= OLD.epoch THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'new_holder_means_new_epoch', MESSAGE = format('new_holder_means_new_epoch: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF OLD.org IS NOT NULL AND (NEW.org IS NULL OR NEW.org <> OLD.org) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'one_org_for_life', MESSAGE = format('one_org_for_life: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF NEW.profile <> OLD.profile OR NEW.image <> OLD.image OR NEW.id <> OLD.id THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'one_profile_for_life', MESSAGE = format('one_profile_for_life: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF OLD.pod_uid IS NOT NULL AND (NEW.pod_uid IS NULL OR NEW.pod_uid <> OLD.pod_uid) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'one_pod_for_life', MESSAGE = format('one_pod_for_life: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;
  IF NEW.state <> OLD.state THEN
    IF OLD.state = 'spawning' THEN
      NEW.starting_s := OLD.starting_s + GREATEST(0, EXTRACT(EPOCH FROM NEW.state_since - OLD.state_since));
    ELSIF OLD.state = 'idle' THEN
      NEW.warm_s := OLD.warm_s + GREATEST(0, EXTRACT(EPOCH FROM NEW.state_since - OLD.state_since));
    ELSIF OLD.state = 'hot_idle' THEN
      NEW.parked_s := OLD.parked_s
        + GREATEST(0, EXTRACT(EPOCH FROM LEAST(NEW.state_since, OLD.hot_idle_until) - OLD.state_since));
      NEW.overdue_s := OLD.overdue_s + GREATEST(0, EXTRACT(EPOCH FROM NEW.state_since - OLD.hot_idle_until));
    END IF;
  END IF;
  RETURN NEW; END $$
;;
CREATE FUNCTION workers_settle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO idle_spent (profile, reason, vcpu_s, gib_s)
    SELECT NEW.profile, spell.reason, spell.s * NEW.cpu_millicores / 1000.0, spell.s * NEW.memory_mib / 1024.0
    FROM (VALUES ('starting', NEW.starting_s), ('warm', NEW.warm_s), ('parked', NEW.parked_s), ('overdue', NEW.overdue_s), ('leaving', CASE WHEN OLD.state = 'draining'
      THEN GREATEST(0, EXTRACT(EPOCH FROM NEW.state_since - OLD.state_since))::float8 ELSE 0 END)) AS spell (reason, s)
    WHERE spell.s > 0 ORDER BY spell.reason
  ON CONFLICT (profile, reason) DO UPDATE
    SET vcpu_s = idle_spent.vcpu_s + EXCLUDED.vcpu_s, gib_s = idle_spent.gib_s + EXCLUDED.gib_s;
  RETURN NULL; END $$
;;
CREATE TRIGGER workers_settle AFTER UPDATE ON workers FOR EACH ROW WHEN (NEW.state IN ('lost', 'retired') AND OLD.state NOT IN ('lost', 'retired')) EXECUTE FUNCTION workers_settle()
