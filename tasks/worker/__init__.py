"""A worker process: how it starts, consumes, reports its liveness, and stops."""
