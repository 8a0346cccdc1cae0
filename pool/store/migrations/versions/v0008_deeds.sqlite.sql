CREATE INDEX deeds_of_our_own ON deeds (id) WHERE what <> 'request_refused'
