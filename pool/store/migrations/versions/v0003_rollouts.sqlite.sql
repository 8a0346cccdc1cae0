CREATE TABLE rollouts (
	profile TEXT NOT NULL, 
	revision TEXT NOT NULL, 
	image TEXT NOT NULL, 
	since TEXT NOT NULL, 
	started_at TEXT NOT NULL, 
	seen_at TEXT NOT NULL, 
	proven_at TEXT, 
	PRIMARY KEY (profile)
)
