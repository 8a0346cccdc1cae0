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
CREATE TABLE targets (
	profile TEXT NOT NULL,
	warm_target INTEGER NOT NULL,
	set_by TEXT NOT NULL,
	set_at TIMESTAMP WITH TIME ZONE NOT NULL,
	PRIMARY KEY (profile),
	CONSTRAINT target_not_negative CHECK (warm_target >= 0)
)
;;
CREATE INDEX deeds_by_age ON deeds (at)
;;
CREATE INDEX deeds_by_subject ON deeds (subject, id)
