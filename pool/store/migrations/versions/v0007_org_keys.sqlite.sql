CREATE TABLE org_keys (
	org TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	older_until TEXT, 
	changed_at TEXT NOT NULL, 
	PRIMARY KEY (org)
)
